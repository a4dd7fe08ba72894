"""CUDA devices: what they are, what they can run, and the memory they bring.

    registry = find_cuda()      # no devices, and why, where none can be used
    scheduler = Scheduler([registry.devices()[0].init_backend(), CpuDevice().init_backend()])

Tested by tests/kernels/test_cuda_device.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Final

from ...alloc.buffer import BufferType
from ...base.errors import BackendError
from ...graph.graph import Graph
from ...graph.op import Op
from ...graph.tensor import Tensor
from ...sched.backend import Caps, Device, DeviceType, KeepAlive, Registry
from ..compute import address_of
from .backend import ERROR_BYTES, STAGED_BYTES, STAGING, CudaBackend, CudaEvent
from .bindings import CudaDriver
from .driver import Compiler, Driver, Gpu
from .kernel_set import KERNELS
from .library import Library, Progress
from .memory import CudaBufferType, PinnedBufferType
from .nvrtc import NvrtcCompiler
from .plan import work_size

MIN_OFFLOADED: Final = 32  # rows from which on an op is worth copying its weights (ggml-cuda.cu)
DRIVER_MARGIN: Final = 128 << 20  # more than tests have seen it take, and give back, of an H100
COPIED_BYTES: Final = 256 << 20  # to measure: more than any cache holds
LEAST_COPIED: Final = 1 << 12
N_COPIES: Final = 10


class CudaDevice(Device):
    """One GPU. `progress` is told which kernels are compiled on their first use."""

    type = DeviceType.GPU
    caps = Caps(async_=True, events=True, copy_ahead=True)
    kernels_by_size = True
    driver_margin = DRIVER_MARGIN

    def __init__(self, gpu: Gpu, compiler: Compiler, progress: Progress | None = None) -> None:
        info = gpu.info
        self.gpu = gpu
        self.name = f"CUDA{info.index}"
        self.description = f"{info.name}, sm_{info.arch}, {info.n_sm} multiprocessors"
        self.library = Library(gpu, compiler, progress)
        self._buffer_type = CudaBufferType(self.name, gpu)
        self._host_buffer_type = PinnedBufferType("CUDA_Host", gpu)
        self._staging = PinnedBufferType(f"{self.name}_Host", gpu)

    def memory(self) -> tuple[int, int]:
        return self.gpu.memory()

    def init_backend(self) -> CudaBackend:
        return CudaBackend(self)

    @property
    def buffer_type(self) -> BufferType:
        return self._buffer_type

    @property
    def host_buffer_type(self) -> BufferType:
        return self._host_buffer_type

    def supports_op(self, op: Tensor) -> bool:
        return KERNELS.supports(op)

    def supports_buft(self, buft: BufferType) -> bool:
        return buft is self._buffer_type

    def offload_op(self, op: Tensor) -> bool:
        return _batch_size(op) >= MIN_OFFLOADED and self.supports_op(op)

    def graph_optimize(self, graph: Graph) -> Sequence[KeepAlive]:
        return KERNELS.optimize(graph)

    def work_size(self, graph: Graph, n_threads: int | None = None) -> int:
        return work_size(graph, address_of)

    @property
    def backend_memory(self) -> Sequence[tuple[BufferType, int]]:
        return ((self._buffer_type, ERROR_BYTES), (self._staging, STAGING + STAGED_BYTES))

    def event_new(self) -> CudaEvent:
        return CudaEvent(self.gpu)

    def bandwidth(self) -> float:
        """Bytes per second that it reads and writes in its own memory: the best of some copies.

        Raises:
            OutOfMemoryError: there is too little memory to copy; BackendError: the device failed.
        """
        n_bytes = min(COPIED_BYTES, self.memory()[0] // 4)
        src, dst = (self._buffer_type.alloc_buffer(max(n_bytes, LEAST_COPIED)) for _ in range(2))
        stream = self.gpu.stream_new()
        begin, end = (self.gpu.event_new(timing=True) for _ in range(2))
        try:
            times = []
            for _ in range(N_COPIES):
                self.gpu.event_record(begin, stream)
                self.gpu.copy_async(dst.address, src.address, src.size, stream)
                self.gpu.event_record(end, stream)
                self.gpu.event_synchronize(end)
                times.append(self.gpu.elapsed_ms(begin, end))
            return 2 * src.size / (1e-3 * min(times))
        finally:
            for event in (begin, end):
                self.gpu.event_free(event)
            self.gpu.stream_free(stream)
            src.free()
            dst.free()


def _batch_size(op: Tensor) -> int:
    """Tokens that an op works on (ggml-cuda.cu, get_op_batch_size)."""
    if op.op is Op.GET_ROWS:
        return 0
    if op.op is Op.MUL_MAT:
        return op.ne[1]
    if op.op in (Op.MUL_MAT_ID, Op.ROPE):
        return op.ne[2]
    return op.n_rows


class CudaRegistry(Registry):
    """All CUDA devices that can be used. `reason` says why there are none."""

    def __init__(self, devices: Sequence[CudaDevice], reason: str = "", versions: str = "") -> None:
        self._devices = tuple(devices)
        self.reason = reason
        self.versions = versions

    @property
    def name(self) -> str:
        return "cuda"

    def devices(self) -> Sequence[CudaDevice]:
        return self._devices


def open_cuda(
    make_driver: Callable[[], Driver] = CudaDriver,
    make_compiler: Callable[[], Compiler] = NvrtcCompiler,
    progress: Progress | None = None,
) -> CudaRegistry:
    """The machine's CUDA devices; none, with the reason in one line, where they cannot be used."""
    try:
        driver = make_driver()
        gpus = driver.gpus()
        if not gpus:
            return CudaRegistry((), "no NVIDIA GPU of compute capability 7.5 or newer is visible")
        compiler = make_compiler()
        _check_versions(driver.version, compiler.version)
    except BackendError as e:
        return CudaRegistry((), str(e))
    devices = [CudaDevice(gpu, compiler, progress) for gpu in gpus]
    return CudaRegistry(devices, versions=f"CUDA driver {driver.version}, {compiler.version}")


def _check_versions(driver: str, compiler: str) -> None:
    """A driver runs what compilers of its own and older major versions of CUDA make."""
    found = re.search(r"NVRTC (\d+)", compiler)
    if found and int(found[1]) > int(driver.partition(".")[0]):
        raise BackendError(
            f"{compiler} compiles for newer NVIDIA drivers than this one, for CUDA {driver}: "
            "pip install 'lamella[cuda]'"
        )


@cache
def find_cuda() -> CudaRegistry:
    """The machine's CUDA devices, looked for once in the life of the process."""
    return open_cuda()
