"""Compiling kernels: each on its first use, kept on disk for this processor.

    @kernel
    def add_f32(p, ith, nth): ...

    add_f32.address    # compiled or loaded now

The cache folder is named after everything that shapes machine code: the sources of all kernels,
Numba, llvmlite, the processor. Knows nothing of ops or graphs. Tested by
tests/kernels/test_cpu_jit.py.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from threading import RLock
from time import perf_counter
from typing import Final

import llvmlite
import numba
import platformdirs

from ...base.errors import BackendError
from ...base.log import get_logger
from .objects import compile_object, load_objects, target

KERNEL_ARGS: Final = 3  # address of its parameters, index of this thread, threads
DIGEST_BYTES: Final = 32

Progress = Callable[[int, int, str, float], None]

log = get_logger("kernels")


@cache
def cache_folder() -> Path:
    """Where compiled kernels are kept; each process compiles its own where that cannot be used."""
    key = hashlib.sha256()
    for source in sorted(Path(__file__).parents[1].rglob("*.py")):
        key.update(source.name.encode() + b"\0" + source.read_bytes())
    for part in (numba.__version__, llvmlite.__version__, *target()):
        key.update(part.encode() + b"\0")
    return Path(platformdirs.user_cache_dir("lamella")) / "kernels" / key.hexdigest()[:16]


class Kernel:
    """A function of int64s for Numba to compile; `address` is that of its machine code."""

    def __init__(self, function: Callable[..., None], n_args: int = KERNEL_ARGS) -> None:
        self.name = function.__name__
        assert self.name not in KERNELS, f"kernel {self.name} is declared twice"
        KERNELS[self.name] = self
        self._function = function
        self._n_args = n_args
        self._address: int | None = None

    @property
    def address(self) -> int:
        """Address of the machine code, compiled or loaded from disk if need be.

        Raises:
            BackendError: it cannot be compiled, or not loaded.
        """
        if self._address is None:
            load_all([self])
            assert self._address is not None, f"{self} was loaded"
        return self._address

    def _compile(self) -> bytes:
        try:
            return compile_object(self._function, self.name, self._n_args)
        except Exception as e:  # whatever Numba raises: the kernel is at fault, or the machine
            raise BackendError(f"kernel {self.name} cannot be compiled: {e}") from e

    def __repr__(self) -> str:
        return f"<Kernel {self.name}>"


KERNELS: Final[dict[str, Kernel]] = {}  # all that are declared, by name
_LOADING: Final = RLock()  # LLVM and the table of addresses are one thread's at a time


def kernel(function: Callable[..., None]) -> Kernel:
    """Declare a kernel `function(p, ith, nth)`, named after it (for use as a decorator)."""
    return Kernel(function)


def load_all(kernels: Iterable[Kernel], progress: Progress | None = None) -> None:
    """Load kernels, compiling those that are not on disk.

    `progress(done, total, name of the next, seconds so far)` is called around each compilation.

    Raises:
        BackendError: one of them cannot be compiled, or not loaded.
    """
    with _LOADING:
        missing = {k.name: k for k in kernels if k._address is None}
        objects = {name: data for name in missing if (data := _read(name)) is not None}
        slow = [k for name, k in missing.items() if name not in objects]
        begin = perf_counter()
        for done, k in enumerate(slow):
            if progress:
                progress(done, len(slow), k.name, perf_counter() - begin)
            objects[k.name] = k._compile()
            _write(k.name, objects[k.name])
        if slow and progress:
            progress(len(slow), len(slow), "", perf_counter() - begin)
        for name, address in load_objects(objects).items():
            missing[name]._address = address


# --- files: a digest, then the object; LLVM trusts what it loads ---


def _read(name: str) -> bytes | None:
    """The object of a kernel; None if the file is not there, or is not what was written."""
    try:
        raw = (cache_folder() / f"{name}.o").read_bytes()
    except OSError:
        return None
    digest, data = raw[:DIGEST_BYTES], raw[DIGEST_BYTES:]
    return data if digest == _digest(name, data) else None


def _write(name: str, data: bytes) -> None:
    """Keep an object; where that cannot be done, it only costs the next start."""
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # in one step: another process may be reading, or writing the same
        with tempfile.TemporaryDirectory(dir=folder) as fresh:
            file = Path(fresh) / f"{name}.o"
            file.write_bytes(_digest(name, data) + data)
            file.replace(folder / file.name)
    except OSError as e:  # no home folder, or a disk that is full or read-only
        _warn_once(f"compiled kernels cannot be kept, every start compiles them anew: {e}")


@cache
def _warn_once(text: str) -> None:
    log.warning(text)


def _digest(name: str, data: bytes) -> bytes:
    return hashlib.sha256(name.encode() + b"\0" + data).digest()
