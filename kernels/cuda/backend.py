"""The backend of a CUDA device: one stream, on which plans run as CUDA graphs.

A plan is captured once, when its addresses are known. It is launched as one graph, so the host does
no work for each kernel. A kernel reports a bad index in a few words of the host's memory, and
`synchronize` checks them.
Tested by tests/kernels/test_cuda_backend.py.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final

from ...alloc.buffer import Buffer, Data, Usage, as_bytes, buffer_of
from ...alloc.host import HostBuffer
from ...base.errors import BackendError
from ...graph.graph import Graph
from ...graph.tensor import BUNDLE, Tensor
from ...sched.backend import Backend, CallTime, Event
from ..compute import unusable_memory
from ..plan.timing import Timing
from .driver import Address, Gpu, GraphExec, Stream
from .driver import Event as CudaHandle
from .inputs import INPUT_BYTES, Bundle, InputMemory
from .memory import CudaBuffer, PinnedBuffer
from .plan import CudaPlan
from .results import RESULT_BYTES, Results

if TYPE_CHECKING:
    from .device import CudaDevice

ERROR_BYTES: Final = 32  # a report: the words call, value, limit, and an unused one
LINE: Final = 64  # alignment of inputs in bytes
STAGING: Final = 256  # offset of inputs in pinned memory
STAGED_BYTES: Final = 2 << 20  # most bytes of inputs in flight: page tables of 128k positions fit
NUMBERS: Final = 64  # offset of the numbers of `InputMemory`
PINNED_BYTES: Final = STAGING + STAGED_BYTES + RESULT_BYTES + INPUT_BYTES
CALLS: Final = count(1)  # numbers of calls, unique in the process


class CudaEvent(Event):
    """A point in a stream."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self.handle: CudaHandle = gpu.event_new()
        weakref.finalize(self, gpu.event_free, self.handle).atexit = False

    def synchronize(self) -> None:
        self._gpu.event_synchronize(self.handle)


class CapturedPlan:
    """A plan as CUDA graphs, one for each place of its results, and the inputs that it copies.

    Attributes:
        work: its scratch memory.
        place: where the last run put the results.
    """

    def __init__(
        self, plan: CudaPlan, work: Buffer | None, results: Results, bundle: Bundle | None
    ) -> None:
        self.plan = plan
        self.graphs: list[GraphExec] = []
        self.work = work
        self.results = results
        self.bundle = bundle
        self.place = 0

    def add(self, graph: GraphExec, gpu: Gpu) -> None:
        """Add a graph, which is freed with the plan."""
        self.graphs.append(graph)
        weakref.finalize(self, gpu.graph_free, graph).atexit = False


class CudaBackend(Backend):
    """One stream of a device. Only one thread at a time may use it."""

    device: CudaDevice

    def __init__(self, device: CudaDevice) -> None:
        super().__init__(device)
        self.gpu = device.gpu
        self._plans: weakref.WeakSet[CudaPlan] = weakref.WeakSet()
        self._in_flight: set[CapturedPlan] = set()  # keeps their memory and graphs alive
        self._freed = False
        (pinned,) = (b.alloc_buffer(size) for b, size in device.backend_memory)
        pinned.usage = Usage.WORK
        assert isinstance(pinned, PinnedBuffer)
        pinned.clear()
        self._pinned = pinned
        self._reported = pinned.memory[:ERROR_BYTES].data.cast("q")  # kernels write it
        end = STAGING + STAGED_BYTES + RESULT_BYTES
        self._results = pinned.memory[STAGING + STAGED_BYTES : end]  # kernels write it, too
        self._shown: Results | None = None
        self._staged = 0  # bytes of inputs in flight, from STAGING on
        self._inputs = InputMemory(pinned.memory[NUMBERS:STAGING], pinned.memory[end:])
        self._bundles: dict[Tensor, Bundle] = {}  # by their copies, while the plans live
        self._given: Bundle | None = None  # inputs for the next plan, until it runs
        self._may_read = False  # work in flight may still read `_inputs`
        self._has_ahead = False  # some copies of weights may still run
        # last, because the allocations before may fail; so may these
        with ExitStack() as undo:
            self.stream = self._new_stream(undo)
            self._tail = CudaEvent(self.gpu)
            self._ahead = self._new_stream(undo)  # copies weights while `stream` computes
            self._ahead_tail = CudaEvent(self.gpu)
            undo.pop_all()

    def _new_stream(self, undo: ExitStack) -> Stream:
        stream = self.gpu.stream_new()
        undo.callback(self.gpu.stream_free, stream)
        return stream

    def free(self) -> None:
        if self._freed:
            return
        self._freed = True
        self._show(None)
        for stream in (self._ahead, self.stream):
            with suppress(BackendError):  # if the device has failed, free the rest anyway
                self.gpu.stream_synchronize(stream)
            self.gpu.stream_free(stream)
        self._in_flight.clear()
        self._pinned.free()
        super().free()

    # --- computing ---

    def graph_plan_create(self, graph: Graph) -> CapturedPlan:
        return self.graph_plan_with_inputs(graph, ())

    def graph_plan_with_inputs(
        self, graph: Graph, inputs: Sequence[tuple[Tensor, Tensor]]
    ) -> CapturedPlan:
        results = Results(graph, self._results)
        plan = self._compile(graph, results)
        feeding = (
            None if results.feeding is None else (results.feeding, self._here(results.feeding))
        )
        bundles = {
            dst: self._inputs.bundle(src, self._here(dst), self.device.library, feeding)
            for src, dst in inputs
            if src.flags & BUNDLE
        }
        bundle = next(iter(bundles.values())) if len(bundles) == 1 else None

        def submit() -> None:
            if bundle is not None:
                bundle.launch.submit(self.gpu, self.stream)
            plan.launch(self.gpu, self.stream)

        captured = CapturedPlan(plan, self.work, results, bundle)
        can_feed = bundle is not None and bundle.can_feed and results.step > 0
        for _ in range(2 if can_feed else 1):
            captured.add(self._captured(submit), self.gpu)
            self.gpu.graph_upload(captured.graphs[-1], self.stream)
            plan.move_results(results.step)
        plan.move_results(-len(captured.graphs) * results.step)
        if bundle is not None:
            (copy,) = bundles
            self._bundles[copy] = bundle
            weakref.finalize(captured, self._bundles.pop, copy, None).atexit = False
        return captured

    def _captured(self, submit: Callable[[], None]) -> GraphExec:
        """The work that `submit` gives to the stream, as a graph."""
        try:
            self.gpu.capture_begin(self.stream)
            submit()
            return self.gpu.capture_end(self.stream)
        except BaseException:
            self._end_broken_capture()
            raise

    def _end_broken_capture(self) -> None:
        """End the capture after an error, so that the stream can be used again. Other errors that
        follow are dropped."""
        with suppress(BackendError):
            self.gpu.graph_free(self.gpu.capture_end(self.stream))

    def graph_plan_compute(self, plan: CapturedPlan) -> None:
        self._given = None  # the plan's own, which it copies
        follows = len(plan.graphs) > 1 and plan in self._in_flight
        if follows:  # the host may not have read the results of its last run
            plan.place = 1 - plan.place
        self._in_flight.add(plan)
        if follows or self._shown is not plan.results:
            self._show(plan.results, plan.place)
        self.gpu.graph_launch(plan.graphs[plan.place], self.stream)

    def graph_plan_feeds(self, plan: CapturedPlan) -> bool:
        return len(plan.graphs) > 1

    def _show(self, results: Results | None, place: int = 0) -> None:
        """Let reads take these results where the host has them, and no others."""
        if self._shown is not None and self._shown is not results:
            self._shown.hide()
        if results is not None:
            results.show(place)
        self._shown = results

    def graph_plan_profile(self, plan: CapturedPlan) -> Sequence[CallTime]:
        """Launch kernels in graphs that record an event before each and after the last, so that no
        time includes a wait for the host. It includes the gap to the kernel before."""
        timing = Timing(plan.plan.parts)
        self._copy_given()  # the launches below do not
        self._show(None)
        with self._timed_events(len(plan.plan.launches) + 1) as events:
            self.synchronize()  # inputs have arrived, and earlier work is not measured
            for first, end in timing.runs():
                timing.look(first)
                marks = events[first : end + 1]
                timing.took(first, self._timed_run(plan.plan, first, end, marks))
        return timing.calls()

    def _timed_run(
        self, plan: CudaPlan, first: int, end: int, events: Sequence[CudaHandle]
    ) -> list[int]:
        """Compute launches in one graph. Return the times of the events, of the host's clock."""

        def submit() -> None:
            for i, event in zip(range(first, end), events, strict=False):
                self.gpu.event_record(event, self.stream, captured=True)
                plan.launch_one(i, self.gpu, self.stream)
            self.gpu.event_record(events[-1], self.stream, captured=True)

        graph = self._captured(submit)
        try:
            begin = perf_counter_ns()
            self.gpu.graph_launch(graph, self.stream)
            self.synchronize()
        finally:
            self.gpu.graph_free(graph)
        return [begin + int(1e6 * self.gpu.elapsed_ms(events[0], event)) for event in events]

    @contextmanager
    def _timed_events(self, n: int) -> Iterator[list[CudaHandle]]:
        events: list[CudaHandle] = []
        try:
            events += (self.gpu.event_new(timing=True) for _ in range(n))
            yield events
        finally:
            for event in events:
                self.gpu.event_free(event)

    def graph_compute(self, graph: Graph) -> None:
        self._copy_given()
        self._show(None)
        plan = self._compile(graph)
        plan.launch(self.gpu, self.stream)
        self.synchronize()  # then the plan's words and memory are no longer needed

    def _compile(self, graph: Graph, results: Results | None = None) -> CudaPlan:
        plan = CudaPlan(
            graph,
            self.device.kernels,
            self._address_of,
            self.device.library,
            lambda size: self.workspace(size).address,
            self._pinned.address,  # the report
            CALLS,
            results,
        )
        self._plans.add(plan)
        return plan

    def _address_of(self, node: Tensor, tensor: Tensor) -> Address:
        buffer = buffer_of(tensor)
        if isinstance(buffer, CudaBuffer) and self.supports_buft(buffer.buft):
            return buffer.address + tensor.offset
        if buffer.size == 0:
            return 0
        raise unusable_memory(self.name, node, tensor)

    def synchronize(self) -> None:
        if self._freed:
            return  # `free` has waited
        if self._given is not None:  # a profiler waits for copies before the plan runs
            self._copy_given()
        if self._has_ahead:
            self.gpu.stream_synchronize(self._ahead)
            self._has_ahead = False
        self.gpu.stream_synchronize(self.stream)
        self._in_flight.clear()
        self._staged = 0
        self._may_read = False
        self.check()

    def check(self) -> None:
        if self._reported[0]:
            self.gpu.stream_synchronize(self.stream)  # a kernel may still write the other words
            call, value, limit, _ = self._reported
            self._reported[0] = 0
            raise self._error_of(call, value, limit)

    def _error_of(self, call: int, value: int, limit: int) -> BackendError:
        found = (plan.error_of(call, value, limit) for plan in self._plans)
        return next((e for e in found if e), BackendError(f"{self.name}: index {value} is bad"))

    # --- copying ---

    def set_tensor_async(self, tensor: Tensor, data: Data, offset: int = 0) -> None:
        raw = as_bytes(data)
        if raw.size:
            at = self._here(tensor, offset, raw.size)
            self.gpu.write_async(at, raw.ctypes.data, raw.size, self.stream)

    def set_input_async(self, src: Tensor, dst: Tensor) -> bool:
        bundle = self._bundles.get(dst)
        if bundle is not None:
            self._give(bundle)
            return True
        source, size = buffer_of(src), src.nbytes
        if size == 0:
            return True
        if not isinstance(source, HostBuffer) or size > STAGED_BYTES:
            return False
        if size > STAGED_BYTES - self._staged:
            self.gpu.stream_synchronize(self.stream)
            self._staged = 0
        # through pinned memory: CUDA does not guarantee when it has read the user's memory
        begin = STAGING + self._staged
        self._pinned.memory[begin : begin + size] = source.memory[src.offset : src.offset + size]
        at = self._pinned.address + begin
        self.gpu.write_async(self._here(dst), at, size, self.stream)
        self._staged += -(-size // LINE) * LINE
        return True

    def _give(self, bundle: Bundle) -> None:
        """Write inputs to the memory that the next plan reads, as soon as the last one has."""
        if self._may_read and not self._inputs.is_read:
            self.gpu.stream_synchronize(self.stream)
        self._inputs.write(bundle)
        self._given, self._may_read = bundle, True

    def _copy_given(self) -> None:
        """Copy the inputs that were given to a plan which does not run next, or not as a whole."""
        bundle, self._given = self._given, None
        if bundle is not None:
            self.gpu.write_async(bundle.copy, self._inputs.address, bundle.size, self.stream)

    def cpy_tensor_async(self, src_backend: Backend, src: Tensor, dst: Tensor) -> bool:
        source = buffer_of(src)
        if src.nbytes == 0:
            return True
        if isinstance(source, HostBuffer) and not src_backend.is_async:
            at = source.address + src.offset
            self.gpu.write_async(self._here(dst), at, src.nbytes, self.stream)
            return True
        if not isinstance(source, CudaBuffer) or not isinstance(src_backend, CudaBackend):
            return False
        self._after(src_backend)
        at, to, size = source.address + src.offset, self._here(dst), src.nbytes
        if source.gpu is self.gpu:
            self.gpu.copy_async(to, at, size, self.stream)
        else:
            self.gpu.copy_peer_async(to, at, source.gpu.info.index, size, self.stream)
        src_backend._after(self)
        return True

    def copy_ahead_async(self, src: Tensor, dst: Tensor) -> None:
        if src.nbytes == 0:
            return
        source = buffer_of(src)
        assert isinstance(source, HostBuffer), f"{src!r} is no weight in host memory"
        self._has_ahead = True
        self.event_record(self._tail)
        self.gpu.event_wait(self._ahead, self._tail.handle)
        at = source.address + src.offset
        self.gpu.write_async(self._here(dst), at, src.nbytes, self._ahead)

    def wait_copies_ahead(self) -> None:
        self.gpu.event_record(self._ahead_tail.handle, self._ahead)
        self.event_wait(self._ahead_tail)

    def _here(self, tensor: Tensor, offset: int = 0, size: int | None = None) -> Address:
        """The address of `size` bytes of a tensor, which must be on this device."""
        buffer = buffer_of(tensor)
        assert isinstance(buffer, CudaBuffer) and buffer.gpu is self.gpu, f"{tensor!r} is elsewhere"
        return buffer.address + buffer._locate(
            tensor, offset, tensor.nbytes - offset if size is None else size
        )

    def _after(self, other: CudaBackend) -> None:
        """Make later work here wait for all work submitted to `other`."""
        if other is not self:
            other.event_record(other._tail)
            self.event_wait(other._tail)

    # --- events ---

    def event_record(self, event: Event) -> None:
        assert isinstance(event, CudaEvent), f"{event} is no event of a CUDA device"
        self.gpu.event_record(event.handle, self.stream)

    def event_wait(self, event: Event) -> None:
        if isinstance(event, CudaEvent):
            self.gpu.event_wait(self.stream, event.handle)
        else:
            event.synchronize()
