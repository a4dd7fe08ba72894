"""Compiling kernels: each on its first use, cached on disk for this processor.

    @kernel
    def add_f32(p, ith, nth): ...

    add_f32.address    # compiles or loads the kernel

Several processes compile many kernels at once (`worker_pool.py`). The name of the cache folder is a
key of the sources of the CPU's kernels, the versions of Numba and llvmlite, and the processor.
Knows nothing of ops or graphs. Tested by tests/kernels/test_cpu_jit.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import cache, wraps
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from threading import RLock
from time import perf_counter
from typing import Final, NamedTuple, ParamSpec

import llvmlite

from ....base import folders
from ....base.errors import BackendError
from ....base.settings import NO_JIT
from ....sched.backend import CompileProgress
from ... import host
from ...disk_cache import mark_used, one_process, read, write
from .deferred import numba_side
from .isa import target
from .objects import load_objects
from .worker_pool import compile_all

SOURCES: Final = ("cpu/**/*.py", "plan/*.py", "quants/*.py")  # in kernels/; code depends on them
KERNEL_ARGS: Final = 3  # address of the parameters, index of this thread, number of threads

Made = ParamSpec("Made")


@cache
def cache_folder() -> Path:
    """The folder of compiled kernels. If it is unusable, each process compiles its own."""
    key = hashlib.sha256()
    kernels = Path(__file__).parents[2]
    for source in sorted(chain(*(kernels.glob(pattern) for pattern in SOURCES))):
        name = source.relative_to(kernels).as_posix()
        key.update(name.encode() + b"\0" + source.read_bytes())
    key.update(_numba_version())
    for part in (llvmlite.__version__, *target()):
        key.update(part.encode() + b"\0")
    return folders.cache_folder("kernels", key.hexdigest()[:16])


def _numba_version() -> bytes:
    """The file with Numba's version: importing Numba is slow."""
    found = find_spec("numba")
    assert found is not None and found.origin is not None, "numba is installed"
    return Path(found.origin).with_name("_version.py").read_bytes()


class Recipe(NamedTuple):
    """The function of a module that makes a kernel in another process, and its arguments."""

    module: str
    function: str
    args: tuple[Hashable, ...]


class Kernel:
    """A function of int64s that Numba compiles; `address` is the address of its machine code.

    `recipe` is None if importing the kernels' module declares the kernel.
    """

    recipe: Recipe | None = None

    def __init__(self, function: Callable[..., None], n_args: int = KERNEL_ARGS) -> None:
        self.name = function.__name__
        assert self.name not in KERNELS, f"kernel {self.name} is declared twice"
        KERNELS[self.name] = self
        self.function = function
        self._n_args = n_args
        self._address: int | None = None

    @property
    def address(self) -> int:
        """The address of the machine code. The first access compiles or loads it.

        Raises:
            BackendError: it cannot be compiled or loaded.
        """
        if self._address is None:
            load_all([self])
            assert self._address is not None, f"{self} was loaded"
        return self._address

    def compile(self) -> bytes:
        """The object file.

        Raises:
            BackendError: it cannot be compiled.
        """
        try:
            data: bytes = numba_side().compile_object(self.function, self.name, self._n_args)
        except Exception as e:  # Numba raises many kinds
            raise BackendError(f"kernel {self.name} cannot be compiled: {e}") from e
        return data

    def __repr__(self) -> str:
        return f"<Kernel {self.name}>"


KERNELS: Final[dict[str, Kernel]] = {}  # all that are declared, by name
_LOADING: Final = RLock()  # guards LLVM and the addresses
_WANTED: Final[dict[str, Kernel]] = {}  # the next compilation includes them, by name
_MAKING: Final = RLock()  # two threads may request the same kernel


def kernel(function: Callable[..., None]) -> Kernel:
    """Declare `function(p, ith, nth)` as a kernel of the same name (a decorator)."""
    return Kernel(function)


def family(make: Callable[Made, Kernel]) -> Callable[Made, Kernel]:
    """Declare a function that makes kernels on demand, each only once (a decorator).

    Its arguments are positional: types, numbers or names. The kernel's name contains them.
    """

    @cache
    def made(*args: Hashable) -> Kernel:
        kernel = make(*args)  # type: ignore[call-arg, arg-type]
        kernel.recipe = Recipe(make.__module__, make.__qualname__, args)
        return kernel

    @wraps(make)
    def one_at_a_time(*args: Hashable) -> Kernel:
        with _MAKING:  # without the lock, the cache could call `made` once for each thread
            return made(*args)

    return one_at_a_time  # type: ignore[return-value]


def want(kernels: Iterable[Kernel]) -> None:
    """Let the next compilation include these kernels: one for all is faster than two."""
    _WANTED.update((k.name, k) for k in kernels)


def load_all(kernels: Iterable[Kernel], progress: CompileProgress | None = None) -> None:
    """Load kernels. Compile those that are not on disk; several processes do so if there are many.

    `progress(done, total, name of one in flight, seconds so far)` is called before and after
    compilations.

    Raises:
        BackendError: one of them cannot be compiled or loaded.
    """
    if not host.HAS_POSIX_THREADS:
        raise BackendError(
            "compiled CPU kernels need POSIX threads, which Windows lacks: use WSL, or set "
            f"{NO_JIT.name}=1 (very slow)"
        )
    with _LOADING:
        missing = {k.name: k for k in kernels if k._address is None}
        objects = on_disk(missing)
        if objects:
            mark_used(cache_folder())
        if len(objects) < len(missing):
            missing |= {name: k for name, k in _WANTED.items() if k._address is None}
            _WANTED.clear()
            objects = on_disk(missing)
            slow = [k for name, k in missing.items() if name not in objects]
            objects |= _compiled(slow, progress)
        for name, address in load_objects(objects).items():
            missing[name]._address = address


def on_disk(names: Iterable[str]) -> dict[str, bytes]:
    """The object files of these kernels that are in the cache, by name."""
    files = {name: read(cache_folder(), f"{name}.o") for name in names}
    return {name: data for name, data in files.items() if data is not None}


def _compiled(kernels: Sequence[Kernel], progress: CompileProgress | None) -> dict[str, bytes]:
    """Compile kernels and write them to the cache, or read those that another process compiled."""
    begin, objects, n_seen = perf_counter(), dict[str, bytes](), -1

    def report(done: int, name: str) -> None:
        if progress:
            progress(done, len(kernels), name, perf_counter() - begin)

    def waiting() -> None:
        nonlocal n_seen
        n_made = sum((cache_folder() / f"{k.name}.o").exists() for k in kernels)
        if n_seen < n_made < len(kernels):
            n_seen = n_made
            report(n_made, "")

    def keep(k: Kernel, data: bytes) -> None:
        objects[k.name] = data
        write(cache_folder(), f"{k.name}.o", data)

    with one_process(cache_folder(), waiting):
        objects |= on_disk(k.name for k in kernels)
        n_made = len(objects)  # by another process
        left = [k for k in kernels if k.name not in objects]
        compile_all(left, cache_folder().name, lambda n, name: report(n_made + n, name), keep)
        if not left:
            report(n_made, "")
    return objects
