"""The interfaces of a backend: Device -> Backend, and Event (ggml-backend-impl.h).

A device says what it can do and opens backends. A backend is one stream of work on its device.
Optional verbs come with a fallback, which their docstring states. This module knows no computing
backend; `kernels.registry` lists devices.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from ..alloc.buffer import Buffer, BufferType, Data, Usage, tensor_set
from ..alloc.memory import REAL_MEMORY, Memory
from ..graph.cost import Cost
from ..graph.graph import Graph
from ..graph.tensor import Tensor


class DeviceType(Enum):
    """What kind of device: a GPU with memory of its own, an accelerator beside the CPU, the CPU."""

    GPU = "gpu"
    ACCEL = "accel"
    CPU = "cpu"


@dataclass(frozen=True, slots=True)
class Caps:
    """What a device can do beyond computing.

    `async_`: its backends return before the work is done. `events`: it has events to wait for.
    `copy_ahead`: it copies weights from host memory while it computes.
    """

    async_: bool = False
    events: bool = False
    copy_ahead: bool = False


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """A wish from `graph_optimize`: `tensor` must keep its data until `until` is computed."""

    tensor: Tensor
    until: Tensor


@dataclass(frozen=True, slots=True)
class CallTime:
    """A timed kernel call of a plan; times are nanoseconds of `time.perf_counter_ns`.

    `kind` is the op that the call computes, `ADD+RMS_NORM+MUL` for fused ops, `MUL_MAT quantize`
    for the conversion of a source. `nodes` are the nodes that the call computes or works for. If a
    node takes several calls, the last one carries the whole `cost`.
    """

    kind: str
    kernel: str
    nodes: tuple[Tensor, ...]
    cost: Cost
    begin: int
    end: int


CompileProgress = Callable[[int, int, str, float], None]  # compiled, in all, name of one, seconds


class Report(NamedTuple):
    """What `lamella doctor` shows of a device: facts for JSON, and lines of text."""

    facts: Mapping[str, Any]
    lines: Sequence[str]


class Event(ABC):
    """A point in a backend's work. Recorded by `Backend.event_record`; may be recorded again."""

    @abstractmethod
    def synchronize(self) -> None:
        """Make the host wait until the point is reached; at once if it was never recorded."""


class Device(ABC):
    """A device: what it is, what it can run, and the memory it brings.

    `progress` is called while its kernels are compiled.
    """

    name: str
    description: str
    type: DeviceType
    caps: Caps = Caps()
    kernels_by_size: bool = False  # a graph of another batch size may need other kernels
    driver_margin: int = 0  # bytes that its driver takes for kernels and graphs
    progress: CompileProgress | None = None

    @abstractmethod
    def memory(self) -> tuple[int, int]:
        """(free, total) bytes."""

    def bandwidth(self, n_threads: int) -> float | None:
        """Bytes per second that it reads from its memory, measured in less than a second; None if
        it is unknown. `n_threads` are those of a CPU. Fallback: None.

        Raises:
            OutOfMemoryError: there is too little memory for it. BackendError: the device failed.
        """
        return None

    def report(self) -> Report:
        """Facts for `lamella doctor`, besides its memory. Fallback: name and description."""
        return Report({"name": self.name, "model": self.description}, [self.description])

    @abstractmethod
    def init_backend(self) -> Backend:
        """A new stream of work on this device."""

    @property
    @abstractmethod
    def buffer_type(self) -> BufferType:
        """The memory its tensors live in by default."""

    @property
    def host_buffer_type(self) -> BufferType | None:
        """Host memory from which copies are fast (pinned). Fallback: None, use ordinary memory."""
        return None

    @property
    def extra_buffer_types(self) -> Sequence[BufferType]:
        """Memory in which weights are faster to compute with, the best first (ggml's extra buffer
        types). Few ops can use it: ask `supports_op`. Fallback: none."""
        return ()

    @abstractmethod
    def supports_op(self, op: Tensor) -> bool:
        """Whether the node can be computed here, wherever its tensors lie; always for op NONE."""

    @abstractmethod
    def supports_buft(self, buft: BufferType) -> bool:
        """Whether tensors in this kind of memory can be read and written here, without a copy."""

    def offload_op(self, op: Tensor) -> bool:
        """Whether the node is worth copying its weights from host memory. Fallback: never."""
        return False

    def graph_optimize(self, graph: Graph) -> Sequence[KeepAlive]:
        """What its backends do in `Backend.graph_optimize`. Fallback: nothing is changed."""
        return ()

    def work_size(self, graph: Graph, n_threads: int | None = None) -> int:
        """Bytes of scratch memory of a plan for `graph`, whose tensors have addresses, on that many
        threads. Fallback: 0."""
        return 0

    @property
    def backend_memory(self) -> Sequence[tuple[BufferType, int]]:
        """What each of its backends allocates for itself. Fallback: nothing."""
        return ()

    def event_new(self) -> Event | None:
        """An event for this device's backends. Fallback: None, callers synchronise."""
        return None


class Backend(ABC):
    """One stream of work on a device: what is given to it later runs later.

    Where `caps.async_` holds, the async verbs and `graph_compute` return before the work is done,
    and `synchronize` waits for it and raises what went wrong.
    """

    compiles = True  # plans are more than numbers
    memory: Memory = REAL_MEMORY  # where scratch memory is allocated

    def __init__(self, device: Device) -> None:
        self.device = device
        self.n_threads: int | None = None
        self.work: Buffer | None = None  # scratch memory of plans
        # asked for every node: bound once
        self.supports_op = device.supports_op
        self.supports_buft = device.supports_buft
        self.offload_op = device.offload_op

    @property
    def name(self) -> str:
        return self.device.name

    @property
    def is_async(self) -> bool:
        return self.device.caps.async_

    def free(self) -> None:
        """End the stream and give the scratch memory back; twice is fine."""
        if self.work is not None:
            self.work.free()

    def set_tensor_async(self, tensor: Tensor, data: Data, offset: int = 0) -> None:
        """Write bytes, which must stay as they are until synchronised. Fallback: at once."""
        self.synchronize()
        tensor_set(tensor, data, offset)

    def set_input_async(self, src: Tensor, dst: Tensor) -> bool:
        """Copy `src`, in host memory, to `dst`, which this backend works on, after all earlier work
        here. `src` has been read on return, so that the user may write it again.

        Fallback: False, and nothing is done; the caller waits and copies.
        """
        return False

    def cpy_tensor_async(
        self,
        src_backend: Backend,
        src: Tensor,
        dst: Tensor,
    ) -> bool:
        """Copy `src`, which `src_backend` works on, to `dst`, which this backend works on.

        The copy runs after all earlier work of both backends and before any later work of either;
        if `src_backend` is synchronous, the caller keeps the source as it is until it has waited.
        Fallback: False, and nothing is done; the caller synchronises both and copies.
        """
        return False

    def copy_ahead_async(self, src: Tensor, dst: Tensor) -> None:
        """Copy `src`, weights in host memory, to `dst` on this device, after all earlier work here
        but beside later work, until `wait_copies_ahead`. Only where `caps.copy_ahead` holds."""
        raise NotImplementedError(f"{self.name} does not copy ahead")

    def wait_copies_ahead(self) -> None:
        """Let later work here run after all copies made ahead. Only where `caps.copy_ahead`."""
        raise NotImplementedError(f"{self.name} does not copy ahead")

    def synchronize(self) -> None:  # noqa: B027 - optional
        """Wait until all work is done. Fallback: it is.

        Raises:
            BackendError: a kernel failed; the work after it was not done.
        """

    @abstractmethod
    def graph_compute(self, graph: Graph) -> None:
        """Compute all nodes in order; every tensor is allocated in memory this backend supports."""

    def set_n_threads(self, n: int | None) -> None:
        """Let plans made from now on use `n` of the device's threads, None: all of them.

        Results do not depend on it. A backend may have no use for it.
        """
        self.n_threads = n

    def workspace(self, size: int) -> Buffer:
        """Scratch memory of at least so many bytes. Plans share it, as they run one after another;
        those made over a smaller one keep that."""
        if self.work is None or self.work.size < size:
            self.work = None  # if no plan keeps it, it need not fit beside the new one
            self.work = self.memory.alloc_buffer(self.device.buffer_type, size)
            self.work.usage = Usage.WORK
        return self.work

    def graph_reserve(self, graph: Graph) -> None:
        """Have scratch memory for a plan of `graph`, whose tensors have addresses."""
        size = self.device.work_size(graph, self.n_threads)
        if size:
            self.workspace(size)

    def graph_plan_create(self, graph: Graph) -> Any:
        """Compile a graph whose addresses no longer change. Fallback: the plan is the graph."""
        return graph

    def graph_plan_compute(self, plan: Any) -> None:
        """Compute a plan of `graph_plan_create`."""
        self.graph_compute(plan)

    def graph_plan_profile(self, plan: Any) -> Sequence[CallTime]:
        """Compute a plan, to the same bits, and wait; its kernel calls, each with its time.

        Fallback: it is computed as always, and nothing is known of its calls.
        """
        self.graph_plan_compute(plan)
        self.synchronize()
        return ()

    def graph_optimize(self, graph: Graph) -> Sequence[KeepAlive]:
        """Reorder `graph.nodes` or ask to keep tensors alive, before memory is planned.

        The set of nodes must stay, each after its sources. By default as its device says.
        """
        return self.device.graph_optimize(graph)

    def event_record(self, event: Event) -> None:
        """Mark the end of the work given so far. Only for events of this device's `event_new`."""
        raise NotImplementedError(f"{self.name} has no events")

    def event_wait(self, event: Event) -> None:
        """Let later work here wait for an event of any device. Fallback: the host waits."""
        event.synchronize()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"
