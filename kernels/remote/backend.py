"""The backend of a remote device: one stream of messages, which the worker executes in order.

Messages are collected until work starts, so that a step's inputs and its plan are one write to the
connection. Memory of a worker is only used by the work of its own streams: what another machine
needs is sent to it. Tested by tests/kernels/test_remote_backend.py.
"""

from __future__ import annotations

import struct
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from ...alloc.buffer import Buffer, Data, as_bytes, buffer_of, tensor_get
from ...alloc.host import HostBuffer
from ...base.errors import BackendError, DeviceLostError
from ...graph.cost import Cost
from ...graph.graph import Graph
from ...graph.op import VIEW_OPS
from ...graph.tensor import OUTPUT, Tensor
from ...sched.backend import Backend, CallTime, Event
from ..compute import unusable_memory
from .failures import remote_error
from .graphs import Encoded, encode_graph
from .memory import RemoteBuffer
from .wire import Kind, Message, to_json

if TYPE_CHECKING:
    from .device import RemoteDevice

IN_FLIGHT_BYTES: Final = 32 << 20  # most bytes of inputs that a worker has to keep
TAGS: Final = count(1)  # of tensors between workers, unique in a run
RESULT: Final = struct.Struct("<qqq")  # buffer, offset, size: before each result
RESULT_BYTES: Final = 1 << 16  # largest result that a worker sends unasked


def is_result(t: Tensor) -> bool:
    """True if a worker sends a tensor when it is computed."""
    return bool(t.flags & OUTPUT) and 0 < t.nbytes <= RESULT_BYTES


class RemoteEvent(Event):
    """A point in the stream of a backend."""

    def __init__(self) -> None:
        self.backend: RemoteBackend | None = None
        self.n_messages = 0  # that were sent before it

    def synchronize(self) -> None:
        if self.backend is not None:
            self.backend.wait_for(self.n_messages)


class RemotePlan:
    """A plan of the worker. Its scratch memory lives as long as the plan."""

    def __init__(self, id: int, graph: Encoded, work: Buffer | None, dropped: deque[int]) -> None:
        self.id = id
        self.graph = graph
        self.has_results = any(map(is_result, graph.tensors))
        self.work = work
        self._dropped = dropped

    def __del__(self) -> None:
        self._dropped.append(self.id)  # the collector may call this anywhere: sent later


class RemoteBackend(Backend):
    """A stream of a worker. Only one thread at a time may use it."""

    device: RemoteDevice
    reads_at_once = True

    def __init__(self, device: RemoteDevice) -> None:
        super().__init__(device)
        self.control = device.control
        self._channel = self.control.open_stream()
        self._plans = count(1)
        self._dropped: deque[int] = deque()
        self._feeders: set[RemoteBackend] = set()  # they send tensors that this one waits for
        self._writes: deque[tuple[int, int]] = deque()  # messages before them, and their bytes
        self._n_bytes = 0  # of these
        self._sent = 0  # messages that the worker counts
        self._asked = 0  # the number of them in the last ASK
        self._reached = 0  # the number that is known to be done
        self._last_run = 0  # the number of the last RUN whose end the worker tells unasked
        self._n_writes = 0  # of the host to the worker's memory, before that RUN
        self._done: Message | None = None  # what it told
        self._is_idle = True  # nothing was sent since the last `synchronize`
        self._syncs = False  # a SYNC is on its way
        self._freed = False

    def free(self) -> None:
        if not self._freed:
            with suppress(BackendError):  # its work uses memory that may be freed next
                self.synchronize()
            self._freed = True
            self.control.close_stream(self._channel)
            super().free()

    # --- computing ---

    def graph_compute(self, graph: Graph) -> None:
        self.graph_plan_compute(self.graph_plan_create(graph))

    def graph_plan_create(self, graph: Graph) -> RemotePlan:
        self._check_memory(graph)
        self.graph_reserve(graph)
        sent, id = encode_graph(graph, self.control.reference_of), next(self._plans)
        work = self.work.id if isinstance(self.work, RemoteBuffer) else 0
        plan = RemotePlan(id, sent, self.work, self._dropped)
        self._ask(Kind.PLAN, id, work, data=to_json(sent.json))
        return plan

    def _check_memory(self, graph: Graph) -> None:
        for node in (node for node in graph.nodes if node.op not in VIEW_OPS):
            for tensor in (node, *node.src):
                if buffer_of(tensor).size and self.control.reference_of(tensor.buffer) is None:
                    raise unusable_memory(self.name, node, tensor)

    def graph_plan_compute(self, plan: RemotePlan) -> None:
        self._queue(Kind.RUN, plan.id, plan.has_results)
        if plan.has_results:
            self._last_run, self._n_writes = self._sent, self.control.n_writes
        self._flush()

    def graph_plan_profile(self, plan: RemotePlan) -> Sequence[CallTime]:
        self.control.forget_results()
        calls, now = self._ask(Kind.PROFILE, plan.id).json()
        # the worker's clock and this one have nothing in common but the arrival of the reply
        shift = time.perf_counter_ns() - int(1e9 * self.control.link.seconds) - now
        tensors = plan.graph.tensors
        return [
            CallTime(
                kind,
                kernel,
                tuple(tensors[i] for i in nodes),
                Cost(*cost),
                begin + shift,
                end + shift,
            )
            for kind, kernel, nodes, cost, begin, end in calls
        ]

    def begin_synchronize(self) -> None:
        if not (self._is_idle or self._syncs or self._freed or self._tells_its_end):
            self._queue(Kind.SYNC)
            self._flush()
            self._syncs = True

    @property
    def _tells_its_end(self) -> bool:
        """True if the last work ends with a message of the worker."""
        return self._last_run == self._sent

    def synchronize(self) -> None:
        if self._tells_its_end and not (self._is_idle or self._freed):
            self.wait_for(self._sent)
            done = self._done
            if done is not None and done.numbers[:2] == (self._sent, 0):
                self._settle()
                if self._n_writes == self.control.n_writes:
                    self.control.keep_results(_results(done))
                return
            self._last_run = 0  # it failed, and tells why when it is asked
        self.begin_synchronize()
        if self._syncs:
            self._settle()  # also after an error: the work is lost
            reply = self._reply()
            self._reached = self._sent
            self.control.keep_results(_results(reply))

    def _settle(self) -> None:
        """Nothing is in flight any more."""
        self._syncs, self._is_idle = False, True
        self._writes.clear()
        self._n_bytes = 0

    # --- copying ---

    def set_tensor_async(self, tensor: Tensor, data: Data, offset: int = 0) -> None:
        raw = as_bytes(data)
        buffer, at = self._here(tensor, offset, raw.size)
        self._queue(Kind.WRITE, buffer, at, data=raw)
        self._limit_writes(raw.size)

    def set_input_async(self, src: Tensor, dst: Tensor) -> bool:
        if not isinstance(buffer_of(src), HostBuffer):
            return False
        self.set_tensor_async(dst, tensor_get(src))
        return True

    def cpy_tensor_async(self, src_backend: Backend, src: Tensor, dst: Tensor) -> bool:
        source = buffer_of(src)
        if src.nbytes == 0:
            return True
        if isinstance(source, HostBuffer) and not src_backend.is_async:
            self.set_tensor_async(dst, tensor_get(src))  # a copy: the next step may write it
            return True
        if not isinstance(src_backend, RemoteBackend) or not isinstance(source, RemoteBuffer):
            return False
        if src_backend is self:
            here, at = self._here(src, 0, src.nbytes)
            self._queue(Kind.COPY, here, at, src.nbytes, *self._here(dst, 0, src.nbytes))
            return True
        if src_backend.control is self.control:
            return False  # two streams of a worker: the host orders them
        return src_backend._send_to(self, src, dst)

    def _limit_writes(self, n_bytes: int) -> None:
        """Wait for early messages if the worker has many bytes that it has not used yet."""
        self._writes.append((self._sent, n_bytes))
        self._n_bytes += n_bytes
        while self._n_bytes > IN_FLIGHT_BYTES and len(self._writes) > 1:
            n_messages, size = self._writes.popleft()
            self._n_bytes -= size
            self.wait_for(n_messages)

    def _send_to(self, other: RemoteBackend, src: Tensor, dst: Tensor) -> bool:
        """Send a tensor to another worker, without a detour over the driver."""
        peer, tag = self.control.peer(other.control), next(TAGS)
        if peer is None:
            return False
        size = src.nbytes
        self._queue(Kind.SEND, *self._here(src, 0, size), size, tag, peer.number)
        other._feeders.add(self)
        other._queue(Kind.RECEIVE, *other._here(dst, 0, size), size, tag, peer.link)
        other._limit_writes(size)
        return True

    def _here(self, tensor: Tensor, offset: int, size: int) -> tuple[int, int]:
        """The buffer of a tensor of this worker, and the place of `size` bytes there."""
        buffer = buffer_of(tensor)
        if not buffer.size:
            return 0, 0
        assert isinstance(buffer, RemoteBuffer) and buffer.buft.control is self.control, (
            f"{tensor!r} is elsewhere"
        )
        return buffer.id, buffer._locate(tensor, offset, size)

    # --- events ---

    def event_record(self, event: Event) -> None:
        assert isinstance(event, RemoteEvent), f"{event} is no event of a remote device"
        event.backend, event.n_messages = self, self._sent

    def event_wait(self, event: Event) -> None:
        """What another worker computes only arrives here in messages, which come after the work.
        So a wait for that work is needed only for the same memory."""
        if isinstance(event, RemoteEvent):
            other = event.backend
            if other is None or other is self or other.control is not self.control:
                return
        event.synchronize()

    def wait_for(self, n_messages: int) -> None:
        """Wait on the host until the first messages are done."""
        if self._syncs:
            self.synchronize()
        while self._reached < n_messages and not self._freed:
            if max(self._asked, self._last_run) < n_messages:
                self._asked = n_messages
                self._channel.queue(Kind.ASK, n_messages)
            self._flush()
            self._take(self._receive())

    # --- messages ---

    def _queue(self, kind: Kind, *numbers: int, data: Any = b"") -> None:
        while self._dropped:
            self._sent += 1
            self._channel.queue(Kind.DROP, self._dropped.popleft())
        self._sent += 1
        self._is_idle = False
        self._channel.queue(kind, *numbers, data=data)

    def _flush(self) -> None:
        feeders, self._feeders = self._feeders, set()
        for feeder in feeders:
            feeder._flush()
        self.control.forget_results()
        try:
            self.control.check()
            self._channel.flush()
        except BaseException as e:
            raise self._lost(e) from None

    def _receive(self) -> Message:
        try:
            self.control.check()
            return self._channel.receive()
        except BaseException as e:
            raise self._lost(e) from None

    def _lost(self, e: BaseException) -> BaseException:
        """Lose the worker after an error of the connection, or an interrupt, which cuts messages;
        return the error to raise."""
        if isinstance(e, DeviceLostError):
            self._lose(e)
            return DeviceLostError(str(self.control.lost))
        self._lose(DeviceLostError(f"{self.name}: work of its process was interrupted"))
        return e

    def _lose(self, error: DeviceLostError) -> None:
        """The worker is gone, and all its work."""
        self.control.lose(error)
        self._reached = self._sent
        self._is_idle, self._syncs = True, False

    def _ask(self, kind: Kind, *numbers: int, data: Any = b"") -> Message:
        """Send a message and wait for its reply."""
        if self._syncs:
            self.synchronize()
        is_idle = self._is_idle
        self._queue(kind, *numbers, data=data)
        self._is_idle = is_idle and kind is not Kind.PROFILE
        self._flush()
        return self._reply()

    def _reply(self) -> Message:
        while not self._take(reply := self._receive()):
            pass
        if reply.kind == Kind.ERROR:
            raise remote_error(self.name, reply.json())
        return reply

    def _take(self, message: Message) -> bool:
        """Take note of REACHED and DONE; return True for other messages, which are replies."""
        if message.kind not in (Kind.REACHED, Kind.DONE):
            return True
        self._reached = max(self._reached, message.numbers[0])
        if message.kind == Kind.DONE:
            self._done = message
        return False


def _results(reply: Message) -> list[tuple[int, int, bytes]]:
    found, at = [], 0
    while at < len(reply.data):
        buffer, offset, size = RESULT.unpack_from(reply.data, at)
        at += RESULT.size
        found.append((buffer, offset, bytes(reply.data[at : at + size])))
        at += size
    return found
