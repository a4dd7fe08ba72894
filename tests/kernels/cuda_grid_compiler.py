"""Compiles CUDA kernels for the host: a kernel file and `cuda_grid.hpp` become a shared library.

The image of a source is its name and definitions. Its library is in the user's cache folder; the
library's name has a hash of everything that it depends on. Knows no device. Tested by
tests/kernels/test_cuda_grid.py.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from threading import Lock
from time import time
from typing import Final

import numpy as np
import numpy.typing as npt
import platformdirs
import pytest
from llvmlite import binding

from lamella.base.errors import BackendError
from lamella.kernels.cuda import lookup_tables, table
from lamella.kernels.cuda.table import CudaSource, Dim3

SRC: Final = Path(table.__file__).parent / "src"
HEADER: Final = Path(__file__).with_name("cuda_grid.hpp").resolve()
HEADERS: Final = sorted(HEADER.parent.glob("cuda_grid*.hpp"))  # with the headers that it includes
_FLAGS: Final = "-Og -g1 -shared -fPIC -fvisibility=hidden -w -ffp-contract=off"
FLAGS: Final = ("-std=c++17", *_FLAGS.split(), "-fno-strict-aliasing", "-U_FORTIFY_SOURCE")
# flags that find more mistakes, or make it faster; not every compiler has all of them
OPTIONAL: Final = (
    "-march=native",
    "-fno-gnu-unique",
    "-fcf-protection=none",
    "-ftrivial-auto-var-init=pattern",
    "-fsanitize=alignment,bounds,shift-exponent,integer-divide-by-zero",
    "-fsanitize-undefined-trap-on-error",
)
HEADER_DEFINES: Final = ("GRID_PORTABLE", "GRID_RACES")  # which the header reads
KEPT_SECONDS: Final = 14 * 24 * 3600  # a library unused for longer is removed
MESSAGE_BYTES: Final = 1024
RACES: Final = "LAMELLA_TEST_RACES"  # if it is set, kernels are compiled to find races


@cache
def compiler() -> str | None:
    """The host's C++ compiler, if it can compile kernels for the emulated GPU."""
    if not sys.platform.startswith("linux"):
        return None
    named = os.environ.get("CXX")
    return next(
        filter(None, map(shutil.which, filter(None, (named, "c++", "g++", "clang++")))), None
    )


def has_compiler() -> bool:
    return compiler() is not None


needs_compiler = pytest.mark.skipif(
    not has_compiler(), reason="the emulated GPU needs Linux and a C++ compiler (c++)"
)


def run(*args: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(args, capture_output=True, text=True, check=False)


@cache
def flags() -> tuple[str, ...]:
    """The flags that this compiler supports."""
    cxx = compiler()
    assert cxx is not None

    def accepts(more: Sequence[str]) -> bool:
        empty = ("-x", "c++", "-fsyntax-only", "-Werror", os.devnull)
        return run(cxx, *more, *empty).returncode == 0

    if accepts(OPTIONAL):
        return (*FLAGS, *OPTIONAL)
    return (*FLAGS, *(flag for flag in OPTIONAL if accepts([flag])))


@cache
def version() -> str:
    cxx = compiler()
    assert cxx is not None
    return run(cxx, "--version").stdout.splitlines()[0]


@cache
def folder() -> Path:
    return Path(platformdirs.user_cache_dir("lamella")) / "cuda_grid"


class GridCompiler:
    """A `Compiler` for `GridGpu`. A source's file may be a path. The architecture is ignored."""

    def __init__(self) -> None:
        self._finds_races = bool(os.environ.get(RACES))

    @property
    def version(self) -> str:
        return version() + ", finds races" * self._finds_races

    def compile(self, source: CudaSource, arch: int) -> bytes:
        if self._finds_races:
            source = CudaSource.of(source.file, **dict(source.defines), GRID_RACES=1)
        _library_of(source)
        return json.dumps([source.file, source.defines]).encode()


def finds_races() -> bool:
    """True if kernels can be compiled to find races."""
    return has_compiler() and "clang" not in version()


def load(image: bytes) -> Library:
    """The kernels of an image.

    Raises:
        ValueError: it is not an image of `GridCompiler`.
    """
    file, defines = json.loads(image)
    return _load(_library_of(CudaSource(file, tuple((name, value) for name, value in defines))))


@cache
def _load(path: Path) -> Library:
    return Library(str(path))


def _library_of(source: CudaSource) -> Path:
    path = folder() / f"{Path(source.file).stem}-{_key(source)}.so"
    try:
        os.utime(path)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_old()
        _compile(source, path)
    return path


def _compile(source: CudaSource, path: Path) -> None:
    cxx = compiler()
    assert cxx is not None
    header = _precompiled()
    with tempfile.TemporaryDirectory(dir=path.parent) as made:
        wrapper, library = Path(made, "kernels.cpp"), Path(made, "kernels.so")
        compiled = Path(made, "kernels.o")
        Path(made, lookup_tables.NAME).write_text(lookup_tables.header())
        # after the header: g++ ignores the compiled one if an option defines a name in it
        defines = [("LAMELLA_GRID", f'"{HEADER}"'), *source.defines]
        lines = [f"#define {name} {value}" for name, value in defines]
        options = [f"-D{name}={value}" for name, value in defines if name in HEADER_DEFINES]
        kernels = ["namespace {", f'#include "{SRC / source.file}"', "}"]
        wrapper.write_text("\n".join((f'#include "{header}"', *lines, *kernels, "")))
        includes = (f"-I{SRC}", f"-I{made}", "-c", wrapper, "-o", compiled)
        result = run(cxx, *flags(), *options, *_races(source), *includes)
        if result.returncode == 0:
            # not in one step: with the flags to find races, another runtime would be linked
            result = run(cxx, *flags(), compiled, "-o", library)
        if result.returncode:
            raise BackendError(f"{source} does not compile:\n{result.stderr}")
        library.replace(path)  # another process may have made the same one


def _races(source: CudaSource) -> Sequence[str]:
    return ("-fsanitize=thread",) if "GRID_RACES" in dict(source.defines) else ()


def _precompiled() -> Path:
    """A header that includes `HEADER`, with the file from which g++ reads it faster, `.gch`."""
    path = folder() / f"grid-{_hash(HEADERS)}.hpp"
    compiled = path.with_name(path.name + ".gch")
    if not compiled.exists():
        cxx = compiler()
        assert cxx is not None
        path.write_text(f'#include "{HEADER}"\n')
        with tempfile.TemporaryDirectory(dir=path.parent) as made:
            new = Path(made, compiled.name)
            if run(cxx, *flags(), "-x", "c++-header", path, "-o", new).returncode == 0:
                new.replace(compiled)  # another process may have made the same one
    return path


def _processor() -> tuple[str, str]:
    return binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten()


def _key(source: CudaSource) -> str:
    files = (*HEADERS, *_files(SRC / source.file, set()))
    return _hash(files, str(source), lookup_tables.header())


def _hash(files: Iterable[Path], *parts: str) -> str:
    """A hash of files, other parts, and the compiler."""
    key = hashlib.sha256()
    for part in (version(), *flags(), *_processor(), *parts):
        key.update(part.encode() + b"\0")
    for path in files:
        key.update(str(path).encode() + b"\0" + path.read_bytes() + b"\0")
    return key.hexdigest()[:24]


def _files(path: Path, seen: set[Path]) -> Iterator[Path]:
    """A kernel file and what it includes."""
    if path in seen or not path.is_file():
        return
    seen.add(path)
    yield path
    for name in re.findall(r'^#include "(.+)"', path.read_text(), re.MULTILINE):
        yield from _files(SRC / name, seen)


def _remove_old() -> None:
    for path in folder().glob("*.*"):
        try:
            if path.stat().st_mtime < time() - KEPT_SECONDS:
                path.unlink()
        except FileNotFoundError:
            pass  # another process has removed it


class Library:
    """The kernels of an image, ready to run."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._library = ctypes.CDLL(path)
        self._library.grid_run.argtypes = (
            ctypes.c_char_p,
            ctypes.c_void_p,
            ctypes.c_int,
            ctypes.c_size_t,
            ctypes.c_void_p,
            ctypes.c_int,
            ctypes.c_char_p,
            ctypes.c_size_t,
            ctypes.c_void_p,
        )

    def has(self, name: str) -> bool:
        return bool(self._library.grid_has(name.encode()))

    def run(
        self,
        name: str,
        grid: Dim3,
        block: int,
        shared_memory: int,
        words: npt.NDArray[np.int64],
        reverse: bool = False,
    ) -> None:
        """Run a kernel.

        Raises:
            BackendError: the kernel misused the device. Names kernel, block and thread.
        """
        size = np.array(grid, np.uint32)
        message = ctypes.create_string_buffer(MESSAGE_BYTES)
        with _RUNNING:
            failed = self._library.grid_run(
                name.encode(), size.ctypes.data, block, shared_memory, words.ctypes.data,
                reverse, message, MESSAGE_BYTES, _ROOMS,
            )  # fmt: skip
        if failed:
            raise BackendError(self._with_line(message.value.decode()))

    def _with_line(self, message: str) -> str:
        """The message, with the source's line instead of a place in the library."""

        def named(found: re.Match[str]) -> str:
            lines = run("addr2line", "-i", "-e", self.path, found[1]).stdout.split("\n")
            return "[" + " from ".join(Path(line).name for line in lines if line.strip()) + "]"

        if shutil.which("addr2line") is None:
            return message
        return re.sub(r"\[pc (0x\w+)\]", named, message)


_RUNNING: Final = Lock()  # held while a grid runs
# of all libraries: stacks of threads, and guards between them. If each library had its own, a
# process with many would reach the system's limit of mappings
_ROOMS: Final = (ctypes.c_void_p * 2)()
