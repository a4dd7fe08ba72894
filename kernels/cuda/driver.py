"""The part of CUDA that Lamella uses: driver calls on one device, and a compiler of kernels.

`bindings.py` implements them with NVIDIA's driver, `nvrtc.py` with NVRTC; tests emulate both.
Addresses, streams, events, modules, functions and graphs are handles: plain integers. Any thread
may make any call. Knows no tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NewType, Protocol

import numpy as np
import numpy.typing as npt

from ...alloc.buffer import Bytes
from .limits import Limits
from .table import CudaSource, Dim3

Address = int
Stream = NewType("Stream", int)
Event = NewType("Event", int)
Module = NewType("Module", int)
Function = NewType("Function", int)
GraphExec = NewType("GraphExec", int)


@dataclass(frozen=True, slots=True)
class GpuInfo:
    """A device: its name, its memory in bytes, and its limits."""

    index: int
    name: str
    total: int
    limits: Limits
    pci: str

    @property
    def arch(self) -> int:
        """The architecture: 90 for sm_90."""
        return self.limits.arch

    @property
    def n_sm(self) -> int:
        """The number of multiprocessors."""
        return self.limits.n_sm


class Gpu(Protocol):
    """The calls of one device (CUDA driver API). They raise BackendError with CUDA's name of the
    error; `alloc` and `alloc_host` also raise OutOfMemoryError."""

    @property
    def info(self) -> GpuInfo: ...

    # memory
    def memory(self) -> tuple[int, int]:
        """(free, total) bytes."""

    def alloc(self, size: int) -> Address: ...
    def free(self, address: Address) -> None: ...
    def alloc_host(self, size: int) -> Address:
        """Pinned memory of the host."""

    def free_host(self, address: Address) -> None: ...
    def fill(self, address: Address, value: int, size: int) -> None:
        """Set bytes. Synchronous."""

    def write(self, to: Address, data: Bytes) -> None:
        """Copy from host to device. Synchronous, but does not wait for streams."""

    def read(self, out: Bytes, source: Address) -> None:
        """Copy from device to host. Synchronous, but does not wait for streams."""

    # work, which runs in the order of its stream
    def write_async(self, to: Address, source: Address, size: int, stream: Stream) -> None:
        """Copy from host to device. On return, pageable memory has been read; pinned memory may be
        read later."""

    def read_async(self, to: Address, source: Address, size: int, stream: Stream) -> None:
        """Copy from device to host."""

    def copy_async(self, to: Address, source: Address, size: int, stream: Stream) -> None:
        """Copy within the device."""

    def copy_peer_async(
        self, to: Address, source: Address, source_gpu: int, size: int, stream: Stream
    ) -> None:
        """Copy from the device of index `source_gpu` to this one."""

    def launch(
        self,
        function: Function,
        grid: Dim3,
        block: int,
        shared_memory: int,
        words: npt.NDArray[np.int64],
        stream: Stream,
    ) -> None:
        """Run a kernel on a copy of `words`, its one parameter."""

    # streams and events
    def stream_new(self) -> Stream: ...
    def stream_free(self, stream: Stream) -> None: ...
    def stream_synchronize(self, stream: Stream) -> None: ...
    def event_new(self, timing: bool = False) -> Event: ...
    def event_free(self, event: Event) -> None: ...
    def event_record(self, event: Event, stream: Stream, captured: bool = False) -> None:
        """Record an event. If `captured`, the stream is being captured, and each launch of the
        graph records it."""

    def event_synchronize(self, event: Event) -> None: ...
    def event_wait(self, stream: Stream, event: Event) -> None:
        """Make later work of `stream` wait for the event, which may be another device's."""

    def elapsed_ms(self, begin: Event, end: Event) -> float: ...

    # kernels
    def load(self, image: bytes) -> Module: ...
    def unload(self, module: Module) -> None: ...
    def function(self, module: Module, name: str, shared_memory: int) -> Function:
        """A kernel of a module, loaded. Its blocks may have `shared_memory` bytes of dynamic
        memory."""

    # graphs
    def capture_begin(self, stream: Stream) -> None: ...
    def capture_end(self, stream: Stream) -> GraphExec:
        """The work submitted since `capture_begin` as a graph. None of it has run yet."""

    def graph_upload(self, graph: GraphExec, stream: Stream) -> None:
        """Prepare the first launch, in the order of the stream."""

    def graph_launch(self, graph: GraphExec, stream: Stream) -> None: ...
    def graph_free(self, graph: GraphExec) -> None: ...


class Driver(Protocol):
    """All devices of the machine."""

    @property
    def version(self) -> str:
        """The version of CUDA that the driver supports, for example 12.9."""

    def gpus(self) -> Sequence[Gpu]: ...


class Compiler(Protocol):
    """Compiles kernels for an architecture."""

    @property
    def version(self) -> str:
        """The name and version of the compiler; its output depends on them."""

    def compile(self, source: CudaSource, arch: int) -> bytes:
        """The image of a source's kernels for `Gpu.load`.

        Raises:
            BackendError: it does not compile; contains the compiler's message.
        """
