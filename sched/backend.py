"""The interfaces of a backend: Device -> Backend, and Event (ggml-backend-impl.h).

A device describes its abilities and opens backends. A backend is one stream of work on its device.
An optional method has a fallback, which its docstring states. Does not know any computing backend;
`kernels.registry` lists devices. Tested by tests/kernels/test_sim_fallbacks.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any, NamedTuple

from ..alloc.buffer import Buffer, BufferType, Data, Usage, tensor_set
from ..alloc.memory import REAL_MEMORY, Memory
from ..graph.cost import Cost
from ..graph.graph import Graph
from ..graph.tensor import Tensor


class DeviceType(Enum):
    """The kind of a device: a GPU with its own memory, an accelerator beside the CPU, the CPU."""

    GPU = "gpu"
    ACCEL = "accel"
    CPU = "cpu"


@dataclass(frozen=True, slots=True)
class Caps:
    """The abilities of a device beside computing.

    `async_`: its backends return before their work is done. `events`: it has events.
    `copy_ahead`: it can copy weights from host memory while it computes.
    """

    async_: bool = False
    events: bool = False
    copy_ahead: bool = False


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """A request of `graph_optimize`: `tensor` must keep its data until `until` is computed."""

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


class Link(NamedTuple):
    """The measured connection to a device of another process: `seconds` for a short message one
    way, and the bytes per second of long ones."""

    seconds: float
    bytes_per_second: float

    def cost(self, n_bytes: int) -> float:
        """The seconds that a copy of `n_bytes` takes."""
        return self.seconds + n_bytes / self.bytes_per_second

    def __str__(self) -> str:
        return f"{1e6 * self.seconds:.0f} us, {self.bytes_per_second / 2**30:.2f} GiB/s"


class DeviceReport(NamedTuple):
    """What `lamella doctor` shows of a device: facts for JSON, and lines of text."""

    facts: Mapping[str, Any]
    lines: Sequence[str]


class Event(ABC):
    """A point in a backend's work. `Backend.event_record` records it, once or more often."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait on the host until the point is reached; return at once if it was never recorded."""


class Device(ABC):
    """A device: its description, the ops that it can run, and its memory.

    `progress` is called while its kernels are compiled.
    """

    name: str
    description: str
    type: DeviceType
    caps: Caps = Caps()
    kernels_by_size: bool = False  # another batch size may need other kernels
    # up to so many tokens, and from the next one on, larger batches need at least as much memory as
    # smaller ones; None: unknown
    few_tokens: int | None = None
    gathers: bool = False  # rows of embeddings are fetched faster here than on the CPU
    driver_margin: int = 0  # bytes for its driver's kernels and graphs
    first_run_is_slow: bool = False  # its driver prepares a graph when it runs for the first time
    caveats: Mapping[str, str] = MappingProxyType({})  # lines that a plan shows, by their labels
    progress: CompileProgress | None = None
    link: Link | None = None  # for a device of another process or machine

    @abstractmethod
    def memory(self) -> tuple[int, int]:
        """(free, total) bytes."""

    @property
    def lost(self) -> str:
        """Why it can not be used any more; "" if it can. Fallback: "".

        Takes no time."""
        return ""

    def bandwidth(self, n_threads: int) -> float | None:
        """The bytes per second that the device reads from its memory, measured in less than a
        second; None if unknown. `n_threads` applies to a CPU. Fallback: None.

        Raises:
            OutOfMemoryError: the device has too little memory to measure.
            BackendError: the device failed.
        """
        return None

    def report(self) -> DeviceReport:
        """Facts for `lamella doctor`, besides its memory. Fallback: name and description."""
        return DeviceReport({"name": self.name, "model": self.description}, [self.description])

    @abstractmethod
    def init_backend(self) -> Backend:
        """A new stream of work on this device."""

    @property
    @abstractmethod
    def buffer_type(self) -> BufferType:
        """The default buffer type for its tensors."""

    @property
    def host_buffer_type(self) -> BufferType | None:
        """Pinned host memory, with fast copies. Fallback: None, use ordinary memory."""
        return None

    @property
    def extra_buffer_types(self) -> Sequence[BufferType]:
        """Memory in which weights compute faster, the best first (ggml's extra buffer types). Few
        ops can use it: ask `supports_op`. Fallback: none."""
        return ()

    @abstractmethod
    def supports_op(self, op: Tensor) -> bool:
        """True if the node can be computed here, wherever its tensors are; always for op NONE."""

    @abstractmethod
    def supports_buft(self, buft: BufferType) -> bool:
        """True if tensors in this kind of memory can be read and written here without a copy."""

    def offload_op(self, op: Tensor) -> bool:
        """True if computing the node here is worth a copy of its weights. Fallback: never."""
        return False

    def graph_optimize(self, graph: Graph) -> Sequence[KeepAlive]:
        """See `Backend.graph_optimize`. Fallback: change nothing."""
        return ()

    def work_size(self, graph: Graph, n_threads: int | None = None) -> int:
        """The bytes of scratch memory of a plan for `graph` on `n_threads` threads. The graph's
        tensors must have addresses. Fallback: 0."""
        return 0

    @property
    def backend_memory(self) -> Sequence[tuple[BufferType, int]]:
        """The buffers that each of its backends allocates when opened. Fallback: none."""
        return ()

    def event_new(self) -> Event | None:
        """A new event for this device's backends. Fallback: None, the caller synchronizes."""
        return None


def copy_seconds(a: Device, b: Device, n_bytes: int) -> float | None:
    """The seconds that a copy from `a` to `b` takes between processes; None if it stays in one."""
    return max((d.link.cost(n_bytes) for d in (a, b) if d.link is not None), default=None)


class Backend(ABC):
    """One stream of work on a device: work runs in the order of the calls.

    With `caps.async_`, the async methods and `graph_compute` return before the work is done;
    `synchronize` waits for it and raises its errors.
    """

    compiles = True  # plans are compiled, not only measured
    reads_at_once = False  # `cpy_tensor_async` has read a source in host memory when it returns
    memory: Memory = REAL_MEMORY  # where scratch memory is allocated

    def __init__(self, device: Device) -> None:
        self.device = device
        self.n_threads: int | None = None
        self.work: Buffer | None = None  # scratch memory of plans
        # bound once, as the scheduler calls them for every node
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
        """End the stream and free the scratch memory; a second call does nothing."""
        if self.work is not None:
            self.work.free()

    def set_tensor_async(self, tensor: Tensor, data: Data, offset: int = 0) -> None:
        """Write bytes. `data` must not change until `synchronize`. Fallback: write at once."""
        self.synchronize()
        tensor_set(tensor, data, offset)

    def set_input_async(self, src: Tensor, dst: Tensor) -> bool:
        """Copy `src` in host memory to `dst` of this backend, after all earlier work here. On
        return, `src` has been read, and the user may write it again.

        Fallback: return False and do nothing; the caller waits and copies.
        """
        return False

    def cpy_tensor_async(
        self,
        src_backend: Backend,
        src: Tensor,
        dst: Tensor,
    ) -> bool:
        """Copy `src` of `src_backend` to `dst` of this backend.

        The copy runs after all earlier work of both backends, and before all later work of both. If
        `src_backend` is synchronous, the caller must not change the source until it has waited.
        Fallback: return False and do nothing; the caller synchronizes both and copies.
        """
        return False

    def copy_ahead_async(self, src: Tensor, dst: Tensor) -> None:
        """Copy weights from host memory to `dst` on this device. The copy runs after all earlier
        work here, but in parallel with later work until `wait_copies_ahead`. Needs
        `caps.copy_ahead`."""
        raise NotImplementedError(f"{self.name} does not copy ahead")

    def wait_copies_ahead(self) -> None:
        """Let later work here run after all copies ahead. Needs `caps.copy_ahead`."""
        raise NotImplementedError(f"{self.name} does not copy ahead")

    def begin_synchronize(self) -> None:  # noqa: B027 - optional
        """Prepare `synchronize`, which follows after the same call to other backends: so that their
        messages are on the way at once. Fallback: nothing."""

    def synchronize(self) -> None:  # noqa: B027 - optional
        """Wait until all work is done. Fallback: return, as it is done.

        Raises:
            BackendError: a kernel failed; later work was not done.
        """

    def check(self) -> None:  # noqa: B027 - optional
        """Raise an error that work has reported so far, as `synchronize` does. If there is none, do
        not wait. Fallback: nothing."""

    @abstractmethod
    def graph_compute(self, graph: Graph) -> None:
        """Compute all nodes in order. All tensors must be in memory that this backend supports."""

    def set_n_threads(self, n: int | None) -> None:
        """Let later plans use `n` of the device's threads; None: all of them.

        Results do not depend on it. A backend may ignore it.
        """
        self.n_threads = n

    def lower_priority(self) -> None:
        """Let other programs go first on busy cores: lower the priority of the backend's threads.

        A backend without threads has nothing to lower.
        """
        return

    def workspace(self, size: int) -> Buffer:
        """Scratch memory of `size` bytes or more. Plans run one after another, so they share it; a
        plan with smaller scratch memory keeps that."""
        if self.work is None or self.work.size < size:
            self.work = None  # freed first, unless a plan keeps it: both may not fit
            self.work = self.memory.alloc_buffer(self.device.buffer_type, size)
            self.work.usage = Usage.WORK
        return self.work

    def graph_reserve(self, graph: Graph) -> None:
        """Allocate scratch memory for a plan of `graph`. Its tensors must have addresses."""
        size = self.device.work_size(graph, self.n_threads)
        if size:
            self.workspace(size)

    def graph_plan_create(self, graph: Graph) -> Any:
        """Compile a graph with fixed addresses into a plan. Fallback: the plan is the graph."""
        return graph

    def graph_plan_with_inputs(self, graph: Graph, inputs: Sequence[tuple[Tensor, Tensor]]) -> Any:
        """Compile a graph as `graph_plan_create` does. Before each run of the plan,
        `set_input_async` is called for `inputs`, pairs of a graph input and its copy here. The plan
        may make these copies, before it computes. Fallback: it makes none."""
        return self.graph_plan_create(graph)

    def graph_plan_compute(self, plan: Any) -> None:
        """Compute a plan of `graph_plan_create`."""
        self.graph_compute(plan)

    def graph_plan_feeds(self, plan: Any) -> bool:
        """True if a run of a plan of `graph_plan_with_inputs` can follow its own last run before
        the host has read the results of that. It takes fed words (`Tensor.set_feeding`), and has
        other memory for its results in `Buffer.in_place`. Fallback: False."""
        return False

    def graph_plan_profile(self, plan: Any) -> Sequence[CallTime]:
        """Compute a plan, with the same bits, and wait; return its kernel calls with their times.

        Fallback: compute as usual, and return no calls.
        """
        self.graph_plan_compute(plan)
        self.synchronize()
        return ()

    def graph_optimize(self, graph: Graph) -> Sequence[KeepAlive]:
        """Reorder `graph.nodes`, or request that tensors stay alive, before memory is planned.

        The set of nodes must stay the same, with each node after its sources. Fallback: call
        `Device.graph_optimize`.
        """
        return self.device.graph_optimize(graph)

    def event_record(self, event: Event) -> None:
        """Record the end of the work so far. The event must be from this device's `event_new`."""
        raise NotImplementedError(f"{self.name} has no events")

    def event_wait(self, event: Event) -> None:
        """Let later work here wait for an event of any device. Fallback: the host waits."""
        event.synchronize()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"
