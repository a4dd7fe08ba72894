"""Compiling kernels with NVRTC, NVIDIA's compiler as a library: no toolkit, no headers.

Knows neither devices nor the cache. Tested by tests/kernels/test_cuda_compile.py.
"""

from __future__ import annotations

import signal
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from ...base.errors import BackendError
from . import lookup_tables
from .table import CudaSource

FOLDER: Final = Path(__file__).parent / "src"
OPTIONS: Final = ("--std=c++17", "--fmad=false", "--ptxas-options=-v")


class NvrtcCompiler:
    """The installed NVRTC.

    Raises:
        BackendError: it is not installed.
    """

    def __init__(self) -> None:
        try:
            from cuda.bindings import nvrtc  # noqa: PLC0415 - optional

            self._nvrtc: Any = nvrtc
            self._version = self._call("nvrtcVersion")
        except Exception as e:  # the package or its library is missing, or of another version
            raise BackendError(f"NVRTC, which compiles CUDA kernels, cannot be used: {e}") from e

    @property
    def version(self) -> str:
        major, minor = self._version
        return f"NVRTC {major}.{minor}"

    @cached_property
    def archs(self) -> list[int]:
        """The architectures that it compiles for; 90 is sm_90."""
        return sorted(self._call("nvrtcGetSupportedArchs"))

    def compile(self, source: CudaSource, arch: int) -> bytes:
        return self.compile_with_log(source, arch)[0]

    def compile_with_log(self, source: CudaSource, arch: int) -> tuple[bytes, str]:
        """The image, and the compiler's log about registers and spills.

        For an unknown architecture, PTX for the newest known one before it, which the driver
        translates.
        """
        text = (FOLDER / source.file).read_bytes()
        headers = {h.name: h.read_bytes() for h in sorted(FOLDER.glob("*.cuh"))}
        headers[lookup_tables.NAME] = lookup_tables.header().encode()
        program = self._call(
            "nvrtcCreateProgram",
            text,
            source.file.encode(),
            len(headers),
            list(headers.values()),
            [name.encode() for name in headers],
        )
        try:
            exact = arch in self.archs
            target = f"sm_{arch}" if exact else f"compute_{self._before(arch)}"
            defines = (f"-D{name}={value}" for name, value in source.defines)
            options = [f"--gpu-architecture={target}", *OPTIONS, *defines]
            code = self._nvrtc.nvrtcCompileProgram(
                program, len(options), [o.encode() for o in options]
            )[0]
            _let_signals_interrupt()
            log = self._bytes(program, "nvrtcGetProgramLog").decode(errors="replace").rstrip("\0")
            if int(code):
                raise BackendError(f"{source} does not compile for {target}:\n{log.strip()}")
            return self._bytes(program, "nvrtcGetCUBIN" if exact else "nvrtcGetPTX"), log
        finally:
            self._call("nvrtcDestroyProgram", program)

    def _before(self, arch: int) -> int:
        older = [known for known in self.archs if known < arch]
        if not older:
            raise BackendError(
                f"{self.version} cannot compile for sm_{arch}, only for: "
                + ", ".join(f"sm_{known}" for known in self.archs)
            )
        return older[-1]

    def _bytes(self, program: Any, getter: str) -> bytes:
        size: int = self._call(f"{getter}Size", program)
        out = bytearray(size)
        self._call(getter, program, out)
        return bytes(out)

    def _call(self, name: str, *args: Any) -> Any:
        code, *values = getattr(self._nvrtc, name)(*args)
        if int(code):
            raise BackendError(f"{name}: {code.name}")
        return values[0] if len(values) == 1 else values


def _let_signals_interrupt() -> None:
    """Let signals interrupt system calls again. NVRTC installs its own handlers. It then restores
    Python's with the flag to restart calls, so that Ctrl-C would only act after a wait."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if callable(signal.getsignal(number)):
            signal.siginterrupt(number, True)
