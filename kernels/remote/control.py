"""The driver's requests to a worker: one connection, a reply to each request.

All users of a device share its control connection. The last replies to questions that only depend
on shapes are cached. Tested by tests/kernels/test_remote_device.py.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from itertools import count
from statistics import median
from typing import Any, Final, NamedTuple

import numpy as np

from ...alloc.buffer import Buffer, BufferType, Bytes, FilePart
from ...alloc.memory import NullBuffer
from ...base.background import begin
from ...base.errors import BackendError, DeviceLostError, OutOfMemoryError
from ...base.log import get_logger
from ...graph.tensor import Tensor
from ...graph.types import GGMLType
from ...sched.backend import Link
from .failures import remote_error
from .files import Identities
from .graphs import BufferReference, Encoded
from .memory import RemoteBuffer, RemoteBufferType
from .pulse import Pulse
from .spin import Spin
from .wire import Address, Channel, Kind, Message, Role, connect, to_json

log = get_logger("remote")

LINKS: Final = count(1)  # between workers, unique in a run
N_PINGS: Final = 15
PING_BYTES: Final = 8192  # an activation of one token
BULK_BYTES: Final = 1 << 20
N_ANSWERS: Final = 128  # about graphs, which may be some 100 KB of JSON each
LOST: Final = "the connection to its process was lost: it was closed"


@dataclass(frozen=True, slots=True)
class BufferTypeInfo:
    """A buffer type of the worker's device, without its name."""

    suffix: str
    alignment: int
    max_size: int
    is_packed: bool
    has_plain_sizes: bool  # tensors take as many bytes as they have


class Peer(NamedTuple):
    """A connection between two workers: its number at the sender, and its unique number."""

    number: int
    link: int


class Control:
    """The control connection of a remote device. `name` is the device's.

    Thread-safe. Every method raises DeviceLostError if the worker is gone.
    """

    def __init__(self, name: str, address: Address, secret: bytes) -> None:
        self.name = name
        self.address = address
        self._secret = secret
        self._lock = threading.Lock()
        self._to_free: deque[int] = deque()  # collected garbage: sent before the next request
        self._peers: dict[Control, Peer | None] = {}
        self._identities = Identities()
        self._results: list[tuple[int, int, bytes]] = []  # see `keep_results`
        self.n_writes = 0  # to memory that results may be in
        self._ask_graph = lru_cache(N_ANSWERS)(self._call)
        self.lost: DeviceLostError | None = None
        self._streams: list[Channel] = []
        self._pulse: Pulse | None = None
        self._channel = connect(address, secret, Role.CONTROL, name)
        try:
            self.info: dict[str, Any] = self._call("info")
            self._check_version(self.info["version"])
            self.link = self._measure_link()
            self._pulse = Pulse(connect(address, secret, Role.PULSE, name), self.lose)
        except BaseException:
            self.close()
            raise

    def _check_version(self, theirs: str) -> None:
        mine = version("lamella")
        if theirs != mine:
            raise DeviceLostError(
                f"{self.name}: its machine has Lamella {theirs}, this one {mine}: install the same"
            )

    def open_stream(self) -> Channel:
        """A new connection for the work of a backend."""
        self.check()
        channel = connect(self.address, self._secret, Role.STREAM, self.name)
        channel.spin = Spin()
        self._streams.append(channel)
        return channel

    def close_stream(self, channel: Channel) -> None:
        channel.close()
        self._streams.remove(channel)

    def find_loss(self) -> str:
        """Why the worker is gone; "" if nothing is known of that."""
        if self.lost is None and self._channel.is_closed:
            self.lose(DeviceLostError(f"{self.name}: {LOST}"))
        return "" if self.lost is None else str(self.lost)

    def is_alive(self) -> bool:
        """Ask the worker if it is still there."""
        with suppress(DeviceLostError):
            self._ask(Kind.ECHO)
        return self.lost is None

    def close(self) -> None:
        """End the connection, and with it the worker's session. May be called again."""
        self.lose(DeviceLostError(f"{self.name}: {LOST}"))

    def check(self) -> None:
        """Raise DeviceLostError if the worker is known to be gone."""
        if self.lost is not None:
            raise DeviceLostError(str(self.lost))

    def lose(self, error: DeviceLostError) -> None:
        """The worker is gone: all later requests fail, and waiting threads get an error."""
        if self.lost is None:
            self.lost = error
            begin(self._cut_links, "lamella-cut")
        if self._pulse is not None:
            self._pulse.stop()
        for channel in (self._channel, *self._streams):
            channel.close()
        self._ask_graph.cache_clear()

    def _cut_links(self) -> None:
        """Tell other workers that nothing more will come from this one. If its process only hangs,
        they do not notice."""
        for other, peer in list(self._peers.items()):
            if peer is not None and other.lost is None:
                with suppress(BackendError):
                    other._call_with("cut", link=peer.link, name=self.name)

    # --- requests ---

    def _ask(self, kind: Kind, *numbers: int, data: Any = b"") -> Message:
        with self._lock:
            self.check()
            try:
                while self._to_free:
                    self._channel.queue(Kind.FREE, self._to_free.popleft())
                self._channel.send(kind, *numbers, data=data)
                reply = self._channel.receive()
            except DeviceLostError as e:
                self.lose(e)
                raise DeviceLostError(str(self.lost)) from None
            except BaseException:  # an interrupt: the next reply would be that of this request
                self.lose(DeviceLostError(f"{self.name}: a request to its process was interrupted"))
                raise
        if reply.kind == Kind.ERROR:
            raise remote_error(self.name, reply.json())
        return reply

    def _call(self, method: str, arguments: str = "{}") -> Any:
        """Call a method of the worker. `arguments` are JSON."""
        data = f'{{"method": "{method}", "arguments": {arguments}}}'.encode()
        return self._ask(Kind.CALL, data=data).json()

    def _call_with(self, method: str, **arguments: object) -> Any:
        return self._call(method, to_json(arguments).decode())

    def memory(self) -> tuple[int, int]:
        free, total = self._call("memory")
        return free, total

    def bandwidth(self) -> float | None:
        found: float | None = self._call("bandwidth")
        return found

    def report(self) -> tuple[dict[str, Any], list[str]]:
        facts, lines = self._call("report")
        return facts, lines

    # --- memory ---

    def alloc(self, buft: RemoteBufferType, size: int) -> int:
        """Allocate a buffer; return its number."""
        try:
            id: int = self._call_with("alloc", buft=buft.index, size=size)
        except OutOfMemoryError as e:
            raise OutOfMemoryError(buft.name, e.wanted, e.free) from None
        return id

    def free(self, id: int) -> None:
        """Free a buffer before the next request. The garbage collector may call this anywhere."""
        self._to_free.append(id)

    def alloc_size(self, buft: int, type: GGMLType, ne: Sequence[int]) -> int:
        size: int = self._call_with("alloc_size", buft=buft, type=type.name, ne=list(ne))
        return size

    def write(self, id: int, offset: int, data: Bytes) -> None:
        self.forget_results()
        self.n_writes += 1
        self._ask(Kind.WRITE, id, offset, data=data)

    def read(self, id: int, offset: int, size: int) -> Bytes:
        for known, first, data in self._results:
            if known == id and first <= offset and offset + size <= first + len(data):
                return np.frombuffer(data, np.uint8)[offset - first :][:size].copy()
        return np.frombuffer(self._ask(Kind.READ, id, offset, size).data, np.uint8)

    def fill(self, id: int, offset: int, size: int, value: int) -> None:
        self.forget_results()
        self.n_writes += 1
        self._ask(Kind.FILL, id, offset, size, value)

    def set_packed(self, id: int, offset: int, tensor: Tensor, raw: Bytes) -> None:
        head = to_json(_place(id, offset, tensor))
        self._ask(Kind.SET, len(head), data=head + raw.tobytes())

    def get_packed(self, id: int, offset: int, tensor: Tensor) -> Bytes:
        data = b'{"method": "get", "arguments": ' + to_json(_place(id, offset, tensor)) + b"}"
        return np.frombuffer(self._ask(Kind.CALL, data=data).data, np.uint8)

    def load(
        self, id: int, offset: int, tensor: Tensor, parts: Sequence[FilePart], type: GGMLType
    ) -> None:
        """Let the worker read a tensor from its own copy of the file, which has it as `type`."""
        self._call_with(
            "load",
            **_place(id, offset, tensor),
            file_type=type.name,
            parts=[[*self._identities.of(p.path), p.offset, p.n_bytes] for p in parts],
        )

    def keep_results(self, results: list[tuple[int, int, bytes]]) -> None:
        """Keep outputs, as (buffer, offset, bytes), that came with a reply: until the device's
        memory changes, `read` need not ask for them."""
        self._results = results

    def forget_results(self) -> None:
        self._results = []

    # --- graphs ---

    def reference_of(self, buffer: Buffer) -> BufferReference | None:
        """What the worker is told of a buffer; None if the buffer is elsewhere."""
        buft: BufferType = buffer.buft
        if not isinstance(buft, RemoteBufferType) or buft.control is not self:
            return None
        if isinstance(buffer, RemoteBuffer):
            return BufferReference(buffer.id, buft.index, buffer.size)
        size = buffer.size if isinstance(buffer, NullBuffer) else 0
        return BufferReference(-1, buft.index, size)

    def supports(self, graph: Encoded) -> bool:
        found: bool = self._call("supports", to_json(graph.json).decode())
        return found

    def optimize(self, graph: Encoded) -> tuple[list[int], list[tuple[int, int]]]:
        """The order of nodes, and the (tensor, until) to keep alive, as indices of tensors."""
        order, keep = self._ask_graph("optimize", to_json(graph.json).decode())
        return order, keep

    def work_size(self, graph: Encoded) -> int:
        size: int = self._ask_graph("work_size", to_json(graph.json).decode())
        return size

    # --- links ---

    def peer(self, other: Control) -> Peer | None:
        """The connection of the worker to another one; None if they cannot connect."""
        if other not in self._peers:
            (host, port), link = other.address, next(LINKS)
            try:
                number = self._call_with("connect", to=[host, port], link=link, name=self.name)
            except BackendError as e:
                if self.lost is not None:
                    raise
                log.warning(f"{e}: tensors go over this process")
                self._peers[other] = None
            else:
                self._peers[other] = Peer(number, link)
        return self._peers[other]

    def _measure_link(self) -> Link:
        """The time of a message of the driver, from round trips with a short reply."""
        small, bulk = bytes(PING_BYTES), bytes(BULK_BYTES)
        seconds = median(self._echo(small) for _ in range(N_PINGS))
        longer = median(self._echo(bulk) for _ in range(3)) - seconds
        return Link(seconds / 2, (BULK_BYTES - PING_BYTES) / max(longer, 1e-6))

    def _echo(self, data: bytes) -> float:
        start = time.perf_counter()
        self._ask(Kind.ECHO, data=data)
        return time.perf_counter() - start


def _place(id: int, offset: int, tensor: Tensor) -> dict[str, object]:
    """A tensor in a buffer, as JSON."""
    return {
        "buffer": id,
        "offset": offset,
        "type": tensor.type.name,
        "ne": list(tensor.ne),
        "name": tensor.name,
    }
