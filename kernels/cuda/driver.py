"""The part of CUDA that Lamella uses: the driver's verbs on one device, and a compiler of kernels.

`bindings.py` implements them with NVIDIA's driver, `nvrtc.py` with NVRTC; tests emulate both.
Addresses, streams, events, modules, functions and graphs are handles, plain integers. Verbs may be
called from any thread. Knows no tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NewType, Protocol

import numpy as np
import numpy.typing as npt

from ...alloc.buffer import Bytes
from .table import CudaSource, Dim3

Address = int
Stream = NewType("Stream", int)
Event = NewType("Event", int)
Module = NewType("Module", int)
Function = NewType("Function", int)
GraphExec = NewType("GraphExec", int)


@dataclass(frozen=True, slots=True)
class GpuInfo:
    """A device: its name, `arch` as in sm_90 (here 90), and sizes in bytes.

    `shared_memory` is the maximum of a block, `n_sm` the number of multiprocessors.
    """

    index: int
    name: str
    arch: int
    total: int
    n_sm: int
    shared_memory: int
    pci: str


class Gpu(Protocol):
    """The verbs of one device (CUDA driver API). Each raises BackendError with CUDA's name of the
    error; `alloc` and `alloc_host` raise OutOfMemoryError."""

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
        """Set bytes; done on return."""

    def write(self, to: Address, data: Bytes) -> None:
        """Host to device; done on return. Does not wait for streams."""

    def read(self, out: Bytes, source: Address) -> None:
        """Device to host; done on return. Does not wait for streams."""

    # work, in the order of its stream
    def write_async(self, to: Address, source: Address, size: int, stream: Stream) -> None:
        """Host to device. Pageable memory has been read on return, pinned memory has not."""

    def read_async(self, to: Address, source: Address, size: int, stream: Stream) -> None:
        """Device to host."""

    def copy_async(self, to: Address, source: Address, size: int, stream: Stream) -> None:
        """Within the device."""

    def copy_peer_async(
        self, to: Address, source: Address, source_gpu: int, size: int, stream: Stream
    ) -> None:
        """From the device of index `source_gpu` to this one."""

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
    def event_record(self, event: Event, stream: Stream) -> None: ...
    def event_synchronize(self, event: Event) -> None: ...
    def event_wait(self, stream: Stream, event: Event) -> None:
        """Let later work of `stream` wait for the event, which may be another device's."""

    def elapsed_ms(self, begin: Event, end: Event) -> float: ...

    # kernels
    def load(self, image: bytes) -> Module: ...
    def unload(self, module: Module) -> None: ...
    def function(self, module: Module, name: str, shared_memory: int) -> Function:
        """A kernel of a module, allowed that much dynamic memory for a block."""

    # graphs
    def capture_begin(self, stream: Stream) -> None: ...
    def capture_end(self, stream: Stream) -> GraphExec:
        """The work submitted since `capture_begin`, which has not run, ready to launch."""

    def graph_launch(self, graph: GraphExec, stream: Stream) -> None: ...
    def graph_free(self, graph: GraphExec) -> None: ...


class Driver(Protocol):
    """All devices of the machine."""

    @property
    def version(self) -> str:
        """Of the driver: the CUDA it supports, as in 12.9."""

    def gpus(self) -> Sequence[Gpu]: ...


class Compiler(Protocol):
    """Compiles kernels for an architecture."""

    @property
    def version(self) -> str:
        """Name and version: what it compiles differs between them."""

    def compile(self, source: CudaSource, arch: int) -> bytes:
        """The image of a source's kernels for `Gpu.load`.

        Raises:
            BackendError: it does not compile; contains the compiler's message.
        """
