"""Things of Numba that are made when a kernel is compiled, because importing Numba is slow.

Modules of kernels declare types, intrinsics and inlined functions when they are imported, but most
starts find all machine code on disk. So a declaration only keeps how to make the thing. Numba asks
each global of a kernel for its type: that makes the thing. Only modules named `numba_*` import
Numba, and nothing imports these before it compiles.
Tested by tests/kernels/test_cpu_jit.py and tests/cli/test_imports.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any


class Deferred:
    """A thing of Numba. `make()` makes it."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    @cached_property
    def real(self) -> Any:
        """The thing itself. The first access makes it."""
        return self._make()

    @cached_property
    def _numba_type_(self) -> Any:
        return numba_side().type_of(self.real)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.real, name)  # Numba looks at the options of functions

    def __deepcopy__(self, _memo: object) -> Deferred:
        return self  # Numba copies the code of functions


class Inlined(Deferred):
    """A function that is inlined into kernels. Python can call it, too."""

    def __init__(self, function: Callable[..., Any], make: Callable[[], Any]) -> None:
        super().__init__(make)
        self.py_func = function

    def __call__(self, *args: Any) -> Any:
        return self.py_func(*args)


def real(thing: Any) -> Any:
    """A thing itself, also of a deferred one."""
    return thing.real if isinstance(thing, Deferred) else thing


def numba_side() -> Any:
    """The module that declares things to Numba."""
    from . import numba_compile  # noqa: PLC0415 - imports Numba

    return numba_compile
