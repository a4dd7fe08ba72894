"""Compiling kernels: each on its first use, kept on disk for this processor.

    @kernel
    def add_f32(p, ith, nth): ...

    add_f32.address    # compiled or loaded now

The cache folder is named after everything that shapes machine code: the sources of all kernels,
Numba, llvmlite, the processor. Numba itself would look at the kernel's own file only and miss a
change in a helper. Knows nothing of ops or graphs. Tested by tests/kernels/test_cpu_jit.py.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import llvmlite
import numba
import platformdirs
from llvmlite import binding
from numba import types
from numba.core.caching import CompileResultCacheImpl, FunctionCache, _CacheLocator
from numba.core.ccallback import CFunc

from ...base.errors import BackendError

# the signature of every kernel: (address of its parameters, index of this thread, threads)
KERNEL_ARGS: Final = (types.int64, types.int64, types.int64)

Progress = Callable[[int, int, str, float], None]


@cache
def cache_folder() -> Path:
    """Where compiled kernels are kept: the user's cache folder, else a temporary one."""
    key = hashlib.sha256()
    for source in sorted(Path(__file__).parents[1].rglob("*.py")):
        key.update(source.name.encode() + b"\0" + source.read_bytes())
    cpu = f"{binding.get_host_cpu_name()} {binding.get_host_cpu_features().flatten()}"
    python = str(sys.implementation.cache_tag)
    for part in (python, numba.__version__, llvmlite.__version__, cpu):
        key.update(part.encode() + b"\0")
    folder = Path(platformdirs.user_cache_dir("lamella")) / "kernels" / key.hexdigest()[:16]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass  # no home folder, or a full or read-only disk
    return Path(tempfile.mkdtemp(prefix="lamella-kernels-"))


class Kernel:
    """A function for Numba to compile; `address` is that of its machine code."""

    def __init__(self, function: Callable[..., None], args: Sequence[Any] = KERNEL_ARGS) -> None:
        self.name = function.__name__
        assert self.name not in KERNELS, f"kernel {self.name} is declared twice"
        KERNELS[self.name] = self
        self._cfunc = CFunc(function, (args, types.void), {}, {"error_model": "numpy"})
        self._address: int | None = None

    @property
    def is_loaded(self) -> bool:
        return self._address is not None

    @property
    def is_cached(self) -> bool:
        """True if the machine code is on disk."""
        return (cache_folder() / f"{self.name}.1.nbc").exists()

    @property
    def address(self) -> int:
        """Address of the machine code, compiled or loaded from disk if need be.

        Raises:
            BackendError: it cannot be compiled.
        """
        if self._address is None:
            try:
                self._cfunc._cache = _KernelCache(self._cfunc._pyfunc)
                self._cfunc.compile()
            except Exception as e:  # whatever Numba raises: the kernel is at fault, or the machine
                raise BackendError(f"kernel {self.name} cannot be compiled: {e}") from e
            self._address = int(self._cfunc.address)
        return self._address

    def __repr__(self) -> str:
        return f"<Kernel {self.name}>"


KERNELS: Final[dict[str, Kernel]] = {}  # all that are declared, by name


def kernel(function: Callable[..., None]) -> Kernel:
    """Declare a kernel `function(p, ith, nth)`, named after it (for use as a decorator)."""
    return Kernel(function)


def load_all(kernels: Iterable[Kernel], progress: Progress | None = None) -> None:
    """Load kernels, compiling those that are not on disk.

    `progress(done, total, name of the next, seconds so far)` is called around each compilation.
    """
    missing = [k for k in dict.fromkeys(kernels) if not k.is_loaded]
    slow = [k for k in missing if not k.is_cached]
    begin = perf_counter()
    for done, k in enumerate(slow):
        if progress:
            progress(done, len(slow), k.name, perf_counter() - begin)
        _ = k.address
    if slow and progress:
        progress(len(slow), len(slow), "", perf_counter() - begin)
    for k in missing:
        _ = k.address


class _Locator(_CacheLocator):
    """All kernels lie in one folder, whose name changes whenever one of them may."""

    def get_cache_path(self) -> str:
        return str(cache_folder())

    def get_source_stamp(self) -> str:
        return ""

    def get_disambiguator(self) -> str:
        return ""


class _CacheImpl(CompileResultCacheImpl):
    def __init__(self, py_func: Callable[..., None]) -> None:
        self._lineno = py_func.__code__.co_firstlineno
        self._locator = _Locator()
        self._filename_base = py_func.__name__


class _KernelCache(FunctionCache):
    """Numba's cache, found by the kernel's name alone: the folder stands for all the rest."""

    _impl_class = _CacheImpl

    def _index_key(self, sig: Any, codegen: Any) -> tuple[Any, ...]:
        return (self._name_key(), sig, codegen.magic_tuple())

    def _name_key(self) -> str:
        return str(self._py_func.__name__)
