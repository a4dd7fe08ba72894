"""A stream of a worker: executes the messages of a driver's backend in their order.

The reactor's thread executes short work at once, as each thread that has to wake up delays a step.
Long work goes to a thread of the stream, so that the driver never waits for a computation to send
the next step. How long work takes is known from the last time. A stream counts messages, so that
the driver can ask when the first n are done. After a failure all work is dropped until the driver
synchronizes. Tested by tests/kernels/test_remote_backend.py.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ...alloc.buffer import Bytes, Usage, tensor_get, tensor_set
from ...alloc.host import HostBuffer
from ...base.errors import DeviceLostError
from ...base.log import get_logger
from ...graph.tensor import Tensor
from .backend import RESULT, is_result
from .failures import error_json
from .wire import Channel, Kind, Message, to_json

if TYPE_CHECKING:
    from .worker import Worker

log = get_logger("remote")

SHORT_SECONDS: Final = 0.002  # work that takes no longer is short
FAILURES: Final = Exception  # whatever a kernel raises is the driver's

_Output = tuple[bytes, Tensor]

_COMPUTING: Final = (Kind.RUN, Kind.PLAN, Kind.PROFILE)
_WAITING: Final = (Kind.SYNC, Kind.SEND, Kind.COPY)  # for an asynchronous device


class _Plan:
    """A plan of the device's backend. `tensors` are in the order of the driver's numbers.

    `outputs`: small results, each with its place as bytes. `seconds`: how long messages took the
    last time, by their kinds, after this plan was run.
    """

    def __init__(self, plan: Any, tensors: Sequence[Tensor], outputs: list[_Output]) -> None:
        self.plan = plan
        self.index = {tensor: i for i, tensor in enumerate(tensors)}
        self.outputs = outputs
        self.seconds: dict[int, float] = {}


class Stream:
    """Executes the work of one connection; a handler of the reactor."""

    def __init__(self, worker: Worker, channel: Channel) -> None:
        self.worker = worker
        self.ended = threading.Event()
        self._channel = channel
        self._queue: deque[Message] = deque()
        self._n_done = 0  # messages
        self._asked: deque[int] = deque()  # numbers of messages, whose end the driver waits for
        self._sending: set[Channel] = set()  # to other workers, with tensors that are not sent yet
        self._backend = worker.device.init_backend()
        self._plans: dict[int, _Plan] = {}
        self._last: _Plan | None = None  # the plan of the last RUN
        self._error: Exception | None = None
        self._used: list[object] = []  # data that asynchronous copies may still read
        self._ran: dict[int, _Plan] = {}  # since the last SYNC
        # one thread at a time works: that of the reactor, or the stream's own
        self._turn = threading.Lock()  # protects the next two
        self._works = False
        self._again = False  # something arrived that the thread at work may not have seen
        self._closed = False
        self._long: SimpleQueue[bool] = SimpleQueue()  # True: long work waits; False: end
        threading.Thread(target=self._work_long, name="lamella-stream", daemon=True).start()

    # --- for the reactor ---

    @property
    def is_busy(self) -> bool:
        return self._works

    def take(self, message: Message) -> None:
        if message.kind == Kind.ASK:
            self._asked.append(message.numbers[0])  # it does not wait for its turn
        else:
            self._queue.append(message)

    def go_on(self) -> None:
        """Work until all is done, or a tensor of another worker is missing, or long work comes."""
        with self._turn:
            self._again = True
            if self._works:
                return
            self._works = True
        self._work(here=True)

    def end(self) -> None:
        self._closed = True
        self.go_on()

    # --- whose turn it is ---

    def _work(self, *, here: bool) -> None:
        """Work, as the only thread, until nothing is left. `here`: the reactor's thread."""
        while True:
            with self._turn:
                if not self._again:
                    self._works = False
                    return
                self._again = False
            try:
                if not self._closed and not self._execute_all(here):
                    self._again = True
                    self._long.put(True)  # its thread has the turn from now on
                    return
            except DeviceLostError:
                self._closed = True  # the driver is gone
            except Exception as e:  # work that makes no sense: the thread must live for others
                log.warning(f"{self._channel.name}: {type(e).__name__}: {e}: its work ends")
                self._closed = True
                self._channel.cut()
            if self._closed:
                self._queue.clear()
                if not self.ended.is_set():
                    self._free_backend()
                    self._long.put(False)
                    self.ended.set()

    def _free_backend(self) -> None:
        self._backend.work = None  # the driver's: it may still write there
        try:
            self._backend.free()
        except FAILURES as e:  # the thread must live for other connections
            log.warning(f"{self._channel.name}: {type(e).__name__}: {e}")

    def _work_long(self) -> None:
        while self._long.get():
            self._work(here=False)

    def _execute_all(self, here: bool) -> bool:
        """Execute what can be; return False if the next work is long, and `here`."""
        queue = self._queue
        while queue and not self._closed:
            message = queue[0]
            if here and self._is_long(message):
                self._flush(here)
                return False
            if self._sending and message.kind != Kind.SEND and not self._flush(here):
                return False
            begin = time.perf_counter()
            if not self._execute(message):
                break  # it waits for a tensor
            queue.popleft()
            self._n_done += 1
            if self._last is not None:
                self._last.seconds[message.kind] = time.perf_counter() - begin
            if self._asked:
                self._answer()
        if self._asked:
            self._answer()
        return self._flush(here)

    def _is_long(self, message: Message) -> bool:
        kind = message.kind
        plan = self._plans.get(message.numbers[0]) if kind == Kind.RUN else self._last
        is_unknown = kind in _COMPUTING or (kind in _WAITING and self._backend.is_async)
        known = None if plan is None else plan.seconds.get(kind)
        return is_unknown if known is None else known > SHORT_SECONDS

    def _answer(self) -> None:
        """Tell the driver that messages are done, if it has asked."""
        while self._asked and self._asked[0] <= self._n_done:
            self._finish()
            self._channel.send(Kind.REACHED, self._asked.popleft())

    def _flush(self, here: bool) -> bool:
        """Send tensors to other workers: before their memory changes, and before a wait. Return
        False if that takes long, and `here`."""
        while self._sending:
            channel = self._sending.pop()
            try:
                if here and not channel.flush_ready():
                    self._sending.add(channel)
                    return False
                channel.flush()
            except FAILURES as e:
                self._error = self._error or e
        return True

    # --- messages ---

    def _execute(self, message: Message) -> bool:
        """Execute a message, and keep its error. Return False if a tensor has not arrived."""
        n = message.numbers
        match message.kind:
            case Kind.SYNC:
                self._synchronize()
            case Kind.PLAN:
                self._reply(lambda: self._make_plan(n[0], n[1], message.json()))
            case Kind.PROFILE:
                self._reply(lambda: self._profile(self._plans[n[0]]))
            case Kind.DROP:
                self._plans.pop(n[0], None)
            case Kind.SEND:
                self._send(*n)
            case Kind.RECEIVE if self._error is not None:
                self.worker.mailbox.drop(n[3])
            case _ if self._error is None:
                try:
                    if not self._do(message):
                        return False
                except FAILURES as e:
                    self._error = e
        if message.kind == Kind.RUN and n[1]:
            self._tell_end()
        return True

    def _do(self, message: Message) -> bool:
        a, b, c, d, e = message.numbers
        match message.kind:
            case Kind.WRITE:
                self._write(a, b, np.frombuffer(message.data, np.uint8))
            case Kind.RUN:
                self._last = self._ran[a] = self._plans[a]
                self._backend.graph_plan_compute(self._last.plan)
            case Kind.COPY:
                self._backend.synchronize()
                self._write(d, e, self._read(a, b, c).copy())
            case Kind.RECEIVE:
                data = self.worker.mailbox.take(d, e, self.go_on)
                if data is None:
                    return False
                self._write(a, b, np.frombuffer(data, np.uint8))
            case _:
                raise ValueError(f"unknown work {message.kind}")
        return True

    def _write(self, buffer: int, offset: int, data: Bytes) -> None:
        if not data.size:
            return
        if self._backend.is_async:
            self._used.append(data)
            self._backend.set_tensor_async(self.worker.bytes_at(buffer, offset, data.size), data)
            return
        found = self.worker.buffers[buffer]
        if isinstance(found, HostBuffer):
            found.memory[offset : offset + data.size] = data
        else:
            tensor_set(self.worker.bytes_at(buffer, offset, data.size), data)

    def _read(self, buffer: int, offset: int, size: int) -> Bytes:
        if not size:
            return np.empty(0, np.uint8)
        found = self.worker.buffers[buffer]
        if isinstance(found, HostBuffer):
            return found.memory[offset : offset + size]  # without a copy
        return tensor_get(self.worker.bytes_at(buffer, offset, size))

    def _send(self, buffer: int, offset: int, size: int, tag: int, peer: int) -> None:
        """Send a tensor to another worker, or the news that there is none."""
        self._finish()
        channel = self.worker.peers[peer]
        self._sending.add(channel)
        if self._error is None:
            channel.queue(Kind.TENSOR, tag, data=self._read(buffer, offset, size))
        else:
            channel.queue(Kind.FAILED, tag)

    def _finish(self) -> None:
        """Wait for the device; keep its error for the driver."""
        try:
            self._backend.synchronize()
        except FAILURES as e:
            self._error = self._error or e
        self._used.clear()

    def _synchronize(self) -> None:
        self._finish()
        error, self._error = self._error, None
        if error is not None:
            self._ran.clear()
            self._fail(error)
            return
        self._channel.send(Kind.DATA, data=self._results())

    def _tell_end(self) -> None:
        """Tell the driver the end of this work. SYNC has the reason of a failure."""
        self._finish()
        number = self._n_done + 1
        if self._error is None:
            self._channel.send(Kind.DONE, number, data=self._results())
        else:
            self._channel.send(Kind.DONE, number, 1)

    def _results(self) -> bytes:
        """The outputs since the last results. Reading them needs no further request."""
        parts: list[Any] = []
        for plan in self._ran.values():
            for place, output in plan.outputs:
                parts += (place, tensor_get(output))
        self._ran.clear()
        return b"".join(parts)

    # --- plans ---

    def _make_plan(self, number: int, work: int, sent: Any) -> None:
        self._finish()  # a plan may compile for long: nothing shall wait unnoticed
        graph, tensors = self.worker.decode(sent)
        if work:
            buffer = self.worker.buffers[work]
            buffer.usage = Usage.WORK
            self._backend.work = buffer
        plan = self._backend.graph_plan_create(graph)
        ids = {id(buffer): number for number, buffer in self.worker.buffers.items()}
        outputs = [
            (RESULT.pack(ids[id(t.buffer)], t.offset, t.nbytes), t)
            for t in graph.nodes
            if is_result(t)
        ]
        self._plans[number] = _Plan(plan, tensors, outputs)

    def _profile(self, plan: _Plan) -> Any:
        calls = self._backend.graph_plan_profile(plan.plan)
        found = [
            (c.kind, c.kernel, [plan.index[n] for n in c.nodes], list(c.cost), c.begin, c.end)
            for c in calls
        ]
        return found, time.perf_counter_ns()

    def _reply(self, make: Any) -> None:
        try:
            result = make()
        except FAILURES as e:
            self._fail(e)
            return
        self._channel.send(Kind.RESULT, data=to_json(result))

    def _fail(self, error: Exception) -> None:
        self._channel.send(Kind.ERROR, data=error_json(error))
