"""A stream of a worker: executes the messages of a driver's backend in their order.

One thread reads them, so that the driver never waits for a computation to send the next step;
another one works. It counts messages, so that the driver can ask when the first n are done. After a
failure all work is dropped until the driver synchronizes. Tested by
tests/kernels/test_remote_backend.py.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ...alloc.buffer import Bytes, Usage, tensor_get, tensor_set
from ...alloc.host import HostBuffer
from ...base.errors import DeviceLostError
from ...graph.tensor import OUTPUT, Tensor
from .backend import RESULT
from .failures import error_json
from .wire import Channel, Kind, Message, to_json

if TYPE_CHECKING:
    from .worker import Worker

RESULT_BYTES: Final = 1 << 16  # largest output that the reply to SYNC carries
FAILURES: Final = Exception  # whatever a kernel raises is the driver's


class _Plan:
    """A plan of the device's backend; its graph and tensors, as the driver numbers them."""

    def __init__(self, plan: Any, nodes: list[Tensor], tensors: list[Tensor]) -> None:
        self.plan = plan
        self.index = {tensor: i for i, tensor in enumerate(tensors)}
        outputs = (t for t in nodes if t.flags & OUTPUT and 0 < t.nbytes <= RESULT_BYTES)
        self.outputs = list(outputs)


class Stream:
    """Executes the work of one connection."""

    def __init__(self, worker: Worker, channel: Channel) -> None:
        self.worker = worker
        self._channel = channel
        self._queue: SimpleQueue[Message | None] = SimpleQueue()
        self._n_done = 0  # messages
        self._asked: deque[int] = deque()  # numbers of messages, whose end the driver waits for
        self._sending: set[Channel] = set()  # to other workers, with tensors that are not sent yet
        self._backend = worker.device.init_backend()
        self._plans: dict[int, _Plan] = {}
        self._error: Exception | None = None
        self._used: list[object] = []  # data that asynchronous copies may still read
        self._ran: dict[int, _Plan] = {}  # since the last SYNC

    def run(self) -> None:
        """Execute messages until the connection ends, which raises DeviceLostError."""
        works = threading.Thread(target=self._work, name="lamella-stream", daemon=True)
        works.start()
        try:
            while True:
                message = self._channel.receive()
                if message.kind == Kind.ASK:
                    self._asked.append(message.numbers[0])  # it does not wait for its turn
                self._queue.put(message)
        finally:
            self._queue.put(None)
            works.join()
            self._backend.free()

    def _work(self) -> None:
        try:
            while (message := self._queue.get()) is not None:
                if message.kind != Kind.SEND:
                    self._flush()
                if message.kind != Kind.ASK:
                    self._execute(message)
                    self._n_done += 1
                if self._queue.empty():
                    self._flush()
                self._answer()
        except DeviceLostError:
            pass  # the driver is gone: the other thread notices, too

    def _answer(self) -> None:
        """Tell the driver that messages are done, if it has asked."""
        while self._asked and self._asked[0] <= self._n_done:
            self._finish()
            self._channel.send(Kind.REACHED, self._asked.popleft())

    def _flush(self) -> None:
        """Send tensors to other workers: before their memory changes, and before a wait."""
        while self._sending:
            try:
                self._sending.pop().flush()
            except FAILURES as e:
                self._error = self._error or e

    # --- messages ---

    def _execute(self, message: Message) -> None:
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
                    self._do(message)
                except FAILURES as e:
                    self._error = e

    def _do(self, message: Message) -> None:
        a, b, c, d, e = message.numbers
        match message.kind:
            case Kind.WRITE:
                self._write(a, b, np.frombuffer(message.data, np.uint8))
            case Kind.RUN:
                self._ran[a] = self._plans[a]
                self._backend.graph_plan_compute(self._plans[a].plan)
            case Kind.COPY:
                self._backend.synchronize()
                self._write(d, e, self._read(a, b, c).copy())
            case Kind.RECEIVE:
                self._write(a, b, np.frombuffer(self.worker.mailbox.take(d, e), np.uint8))
            case _:
                raise ValueError(f"unknown work {message.kind}")

    def _write(self, buffer: int, offset: int, data: Bytes) -> None:
        if data.size:
            tensor = self.worker.bytes_at(buffer, offset, data.size)
            if self._backend.is_async:
                self._used.append(data)
                self._backend.set_tensor_async(tensor, data)
            else:
                tensor_set(tensor, data)

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
        ran, self._ran = self._ran, {}
        error, self._error = self._error, None
        if error is not None:
            self._fail(error)
            return
        parts: list[Any] = []
        for plan in ran.values():
            for output in plan.outputs:
                id, data = self._id_of(output), tensor_get(output)
                parts += (RESULT.pack(id, output.offset, data.size), data.tobytes())
        self._channel.send(Kind.DATA, data=b"".join(parts))

    def _id_of(self, tensor: Tensor) -> int:
        return next(id for id, buffer in self.worker.buffers.items() if buffer is tensor.buffer)

    # --- plans ---

    def _make_plan(self, id: int, work: int, sent: Any) -> None:
        self._finish()  # a plan may compile for long: nothing shall wait unnoticed
        graph, tensors = self.worker.decode(sent)
        if work:
            buffer = self.worker.buffers[work]
            buffer.usage = Usage.WORK
            self._backend.work = buffer
        plan = self._backend.graph_plan_create(graph)
        self._plans[id] = _Plan(plan, graph.nodes, tensors)

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
