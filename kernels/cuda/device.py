"""A CUDA device: the ops that it supports, and its memory.

Tested by tests/kernels/test_cuda_device.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final

from ...alloc.buffer import BufferType
from ...graph.graph import Graph
from ...graph.op import Op
from ...graph.tensor import Tensor
from ...sched.backend import Caps, CompileProgress, Device, DeviceReport, DeviceType, KeepAlive
from ..compute import address_of
from ..plan.kernel_set import KernelSet
from .backend import PINNED_BYTES, CudaBackend, CudaEvent
from .driver import Compiler, Event, Gpu
from .kernel_set import kernels_for
from .library import Library
from .limits import sizes_of
from .memory import CudaBufferType, PinnedBufferType
from .plan import work_size
from .table import CudaCall

MIN_OFFLOADED: Final = 32  # tokens from which on copying an op's weights is worth it (ggml-cuda.cu)
DRIVER_BYTES: Final = 96 << 20  # of code and graphs; an H100's driver took 35 MiB for everything
# Local memory: the largest stack of a kernel in bytes (attention's), and how many of its threads a
# multiprocessor has at once. They have 255 registers, so 256 of them fit. The margin has room for
# twice that. Room for all 2048 threads would be 140 MiB on the H100, more than its driver took.
STACK_BYTES: Final = 640
STACK_THREADS: Final = 256
COPIED_BYTES: Final = 256 << 20  # copied for a measurement: more than any cache holds
LEAST_COPIED: Final = 1 << 12
N_COPIES: Final = 10


class CudaDevice(Device):
    """One GPU."""

    type = DeviceType.GPU
    caps = Caps(async_=True, events=True, copy_ahead=True)
    kernels_by_size = True
    gathers = True
    first_run_is_slow = True

    def __init__(
        self, gpu: Gpu, compiler: Compiler, progress: CompileProgress | None = None
    ) -> None:
        info = gpu.info
        self.gpu = gpu
        self.driver_margin = DRIVER_BYTES + 2 * STACK_BYTES * STACK_THREADS * info.n_sm
        self.name = f"CUDA{info.index}"
        self.description = f"{info.name}, sm_{info.arch}, {info.n_sm} multiprocessors"
        self.progress = progress
        self.library = Library(gpu, compiler, self._report_progress)
        self._buffer_type = CudaBufferType(self.name, gpu)
        self._host_buffer_type = PinnedBufferType("CUDA_Host", gpu)
        self._staging = PinnedBufferType(f"{self.name}_Host", gpu)

    @property
    def kernels(self) -> KernelSet[CudaCall]:
        """The kernels, with the sizes for this device."""
        return kernels_for(sizes_of(self.gpu.info.limits))

    def memory(self) -> tuple[int, int]:
        return self.gpu.memory()

    def report(self) -> DeviceReport:
        info, folder = self.gpu.info, str(self.library.folder)
        facts = {
            "name": self.name,
            "model": info.name,
            "arch": info.arch,
            "n_sm": info.n_sm,
            "pci": info.pci,
            "kept": folder,
        }
        return DeviceReport(facts, [f"{self.description}, {info.pci}", f"kernel cache: {folder}"])

    def _report_progress(self, done: int, total: int, name: str, seconds: float) -> None:
        if self.progress:
            self.progress(done, total, name, seconds)

    def init_backend(self) -> CudaBackend:
        return CudaBackend(self)

    @property
    def buffer_type(self) -> BufferType:
        return self._buffer_type

    @property
    def host_buffer_type(self) -> BufferType:
        return self._host_buffer_type

    def supports_op(self, op: Tensor) -> bool:
        return self.kernels.supports(op)

    def supports_buft(self, buft: BufferType) -> bool:
        return buft is self._buffer_type

    def offload_op(self, op: Tensor) -> bool:
        return _batch_size(op) >= MIN_OFFLOADED and self.supports_op(op)

    def graph_optimize(self, graph: Graph) -> Sequence[KeepAlive]:
        return self.kernels.optimize(graph)

    def work_size(self, graph: Graph, n_threads: int | None = None) -> int:
        return work_size(graph, self.kernels, address_of)

    @property
    def backend_memory(self) -> Sequence[tuple[BufferType, int]]:
        return ((self._staging, PINNED_BYTES),)

    def event_new(self) -> CudaEvent:
        return CudaEvent(self.gpu)

    def bandwidth(self, n_threads: int) -> float:
        """The speed of the fastest of several copies within its memory: bytes read and written."""
        n_bytes = max(min(COPIED_BYTES, self.memory()[0] // 4), LEAST_COPIED)
        gpu, times = self.gpu, []
        with ExitStack() as stack:
            src, dst = (self._buffer_type.alloc_buffer(n_bytes) for _ in range(2))
            for buffer in (src, dst):
                stack.callback(buffer.free)
            stream = gpu.stream_new()
            stack.callback(gpu.stream_free, stream)
            begin, end = (self._timing_event(stack) for _ in range(2))
            for _ in range(N_COPIES):
                gpu.event_record(begin, stream)
                gpu.copy_async(dst.address, src.address, src.size, stream)
                gpu.event_record(end, stream)
                gpu.event_synchronize(end)
                times.append(gpu.elapsed_ms(begin, end))
            return 2 * src.size / (1e-3 * min(times))

    def _timing_event(self, stack: ExitStack) -> Event:
        event = self.gpu.event_new(timing=True)
        stack.callback(self.gpu.event_free, event)
        return event


def _batch_size(op: Tensor) -> int:
    """The number of tokens of an op (ggml-cuda.cu, get_op_batch_size)."""
    if op.op is Op.GET_ROWS:
        return 0
    if op.op is Op.MUL_MAT:
        return op.ne[1]
    if op.op in (Op.MUL_MAT_ID, Op.ROPE):
        return op.ne[2]
    return op.n_rows
