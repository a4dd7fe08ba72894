"""Streams that outlive their connections: their bytes are kept for clients that come back.

A client that sends `X-Conversation-Id` names its stream. If its connection breaks, the generation
goes on, and the client reads on from the byte that it knows. A stream that nothing reads for some
time is stopped and forgotten. Memory is bounded: of a long stream the last bytes are kept, and all
count in the budget of requests. Knows no request and no API. Belongs to one event loop.
Tested by tests/server/test_kept_streams.py.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from typing import Final

from ..base.errors import OverloadedError, RequestError
from .budget import RequestsBudget, Reservation

N_BYTES_MAX: Final = 4 * 1024**2  # kept of a stream, as in llama-server
N_STREAMS_MAX: Final = 1024
N_READ: Final = 64 * 1024  # bytes of one read
MODEL_MARK: Final = "::"  # llama-server's page adds it and a model's name to ids


def _nothing() -> None: ...


class KeptStream:
    """The bytes of a stream. All offsets count from its first byte.

    Attributes:
        id: the name that its client has given.
        client: who has asked for it.
        content_type: of its bytes.
        t_begin, t_end: seconds since 1970; `t_end` is 0 while more bytes may come.
        n_dropped: bytes at its begin that are not kept any more.
        error: why it ended before its first byte.
        stop: ends its generation.
    """

    def __init__(self, client: str, id: str, content_type: str, stop: Callable[[], object]) -> None:
        self.client, self.id, self.content_type, self.stop = client, id, content_type, stop
        self.t_begin, self.t_end = time.time(), 0.0
        self.n_dropped = 0
        self.error: Exception | None = None
        self.memory = ExitStack()
        self.reserved: Reservation | None = None  # until the stack is closed
        self.n_readers = 0
        self.timer: asyncio.TimerHandle | None = None  # until it is forgotten
        self._kept = bytearray()
        self._changed = asyncio.Event()

    @property
    def is_done(self) -> bool:
        """True if no more bytes come."""
        return self.t_end > 0

    @property
    def n_bytes(self) -> int:
        """All bytes so far."""
        return self.n_dropped + len(self._kept)

    @property
    def n_kept(self) -> int:
        """The bytes that are in memory."""
        return len(self._kept)

    def append(self, data: bytes) -> None:
        """Add bytes. The first ones leave if there are too many. Does nothing after the end."""
        if self.is_done:
            return
        self._kept += data
        n_over = len(self._kept) - N_BYTES_MAX
        if n_over > 0:
            del self._kept[:n_over]
            self.n_dropped += n_over
        self._wake()

    def end(self) -> None:
        """No more bytes come."""
        self.t_end = self.t_end or time.time()
        self._wake()

    def check(self, offset: int) -> None:
        """Raise RequestError if the stream cannot be read from an offset."""
        if offset < self.n_dropped:
            raise RequestError(
                f'"from" is {offset}: the first {self.n_dropped} bytes of this stream are gone, as '
                f"the last {N_BYTES_MAX} are kept: ask again"
            )
        if offset > self.n_bytes:
            raise RequestError(f'"from" is {offset}: this stream has {self.n_bytes} bytes so far')

    async def read(self, offset: int) -> bytes:
        """Wait for bytes at an offset. Return some of them; none at the end.

        Raises:
            RequestError: they are gone.
        """
        while offset == self.n_bytes and not self.is_done:
            await self._changed.wait()
        self.check(offset)
        begin = offset - self.n_dropped
        return bytes(self._kept[begin : begin + N_READ])

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class KeptStreams:
    """The streams of a server.

    With `is_private` a client finds only its own; otherwise all that it knows the ids of.
    """

    def __init__(
        self, memory: RequestsBudget, n_seconds: float, *, is_private: bool = False
    ) -> None:
        """`memory`: the budget of what they keep. `n_seconds`: how long they wait for a reader."""
        self.n_seconds = n_seconds
        self._memory = memory
        self._is_private = is_private
        self._streams: dict[tuple[str, str], KeptStream] = {}  # oldest first

    def __len__(self) -> int:
        return len(self._streams)

    def get(self, client: str, id: str) -> KeptStream | None:
        """The stream with an id; None if there is none, or it is not for this client."""
        return self._streams.get((self._owner(client), id))

    def matching(self, client: str, ids: Collection[str]) -> Iterator[KeptStream]:
        """The streams with these ids, or with one of them and a model's name."""
        owner = self._owner(client)
        for (of, id), stream in self._streams.items():
            if of == owner and (id in ids or id.partition(MODEL_MARK)[0] in ids):
                yield stream

    def keep(
        self, client: str, id: str, content_type: str, stop: Callable[[], object]
    ) -> KeptStream:
        """A new stream. An older one with its id is stopped.

        Raises:
            ClientLimitError: the client's requests hold too much memory.
            OverloadedError: all requests do, or there are too many streams.
        """
        stream = KeptStream(client, id, content_type, stop)
        with ExitStack() as memory:
            stream.reserved = memory.enter_context(self._memory.reservation(client))
            for older in self._make_room(stream):
                self.remove(older)
            stream.memory = memory.pop_all()
        self._streams[self._key(stream)] = stream
        return stream

    @contextmanager
    def reading(self, stream: KeptStream) -> Iterator[None]:
        """Within the block, something reads a stream. After it, the stream waits for others."""
        stream.n_readers += 1
        if stream.timer is not None:
            stream.timer.cancel()
        try:
            yield
        finally:
            stream.n_readers -= 1
            if not stream.n_readers and self._has(stream):
                loop = asyncio.get_running_loop()
                stream.timer = loop.call_later(self.n_seconds, self.remove, stream)

    def finish(self, stream: KeptStream) -> None:
        """End a stream, and free the memory that it does not need. One that has failed before its
        first byte is forgotten."""
        stream.end()
        stream.stop = _nothing  # else it would keep what its generation had
        if stream.error is not None:
            self.remove(stream)
        elif stream.reserved is not None:
            stream.reserved.shrink(stream.n_kept)

    def remove(self, stream: KeptStream) -> None:
        """Stop and forget a stream."""
        if self._has(stream):
            del self._streams[self._key(stream)]
        if stream.timer is not None:
            stream.timer.cancel()
        stream.end()
        stream.stop()
        stream.memory.close()

    def _owner(self, client: str) -> str:
        return client if self._is_private else ""

    def _key(self, stream: KeptStream) -> tuple[str, str]:
        return self._owner(stream.client), stream.id

    def _has(self, stream: KeptStream) -> bool:
        return self._streams.get(self._key(stream)) is stream

    def _make_room(self, stream: KeptStream) -> list[KeptStream]:
        """Reserve memory for a new stream. Return those that have to leave for it: an older one
        with its id, and the oldest ones of its client that have ended. Raises as `keep`; then none
        leaves."""
        older = self.get(stream.client, stream.id)
        leaving = [] if older is None else [older]
        if len(self._streams) - len(leaving) >= N_STREAMS_MAX:
            oldest = next(self._ended(self._largest_client(), leaving), None)
            if oldest is None:
                raise OverloadedError(f"{N_STREAMS_MAX} streams with X-Conversation-Id are running")
            leaving.append(oldest)
        assert stream.reserved is not None
        ended = self._ended(stream.client, leaving)
        while True:
            held = (one.reserved for one in leaving if one.reserved is not None)
            try:
                stream.reserved.take(N_BYTES_MAX, *held)
                return leaving
            except OverloadedError:
                more = list(islice(ended, 1 + len(leaving)))  # twice as many: few tries
                if not more:
                    raise
                leaving += more

    def _ended(self, client: str, besides: Iterable[KeptStream]) -> Iterator[KeptStream]:
        """The streams of a client that have ended, but for some; the oldest first."""
        left_out = set(besides)
        for stream in self._streams.values():
            if stream.client == client and stream.is_done and stream not in left_out:
                yield stream

    def _largest_client(self) -> str:
        """The client with the most streams that have ended; "" if none has."""
        done = Counter(one.client for one in self._streams.values() if one.is_done)
        return max(done, key=done.__getitem__, default="")
