"""Who must wait for whom: complete ordering of asynchronous work by the buffers it touches.

Every piece of work of an asynchronous backend gets a tick, and every buffer remembers the last
tick of each backend that read or wrote it. Whoever is about to touch the buffer waits for those it
has not waited for yet. ggml orders copies and shared buffers only partly; here no order is left to
luck.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..alloc.buffer import Buffer
from .backend import Backend, Event


class Hazards:
    """Ticks of all backends of one scheduler. Work of synchronous backends is the host's own."""

    def __init__(self, backends: Sequence[Backend]) -> None:
        self.backends = [b for b in backends if b.is_async]
        self._tick = dict.fromkeys(self.backends, 0)
        self._last_use: dict[Buffer, dict[Backend, int]] = {}
        # (waiter, backend): the tick up to which it has waited; None: the host, and so everybody
        self._seen: dict[tuple[Backend | None, Backend], int] = {}
        self._tail: dict[Backend, Event | None] = {b: b.device.event_new() for b in self.backends}

    def used(self, backend: Backend, buffers: Iterable[Buffer]) -> None:
        """`backend` was given work that touches `buffers`."""
        if not backend.is_async:
            return
        self._tick[backend] += 1
        for buffer in buffers:
            self._last_use.setdefault(buffer, {})[backend] = self._tick[backend]

    def copied(self, src_backend: Backend, dst_backend: Backend, buffers: Iterable[Buffer]) -> None:
        """Both backends were given a copy that runs after all earlier work of both."""
        self.used(src_backend if src_backend.is_async else dst_backend, buffers)
        if src_backend.is_async and dst_backend.is_async:
            self._seen[dst_backend, src_backend] = self._tick[src_backend]
            self._seen[src_backend, dst_backend] = self._tick[dst_backend]

    def wait(self, waiter: Backend | None, buffers: Iterable[Buffer]) -> None:
        """Let `waiter` (None: the host) run only after all others' work on `buffers`."""
        for buffer in buffers:
            for backend, tick in self._last_use.get(buffer, {}).items():
                self.wait_for(waiter, backend, tick)

    def wait_for(self, waiter: Backend | None, backend: Backend, tick: int | None = None) -> None:
        """Let `waiter` run only after `backend`'s work up to `tick` (None: all of it)."""
        if waiter is backend or not backend.is_async:
            return
        if waiter is not None and not waiter.is_async:
            waiter = None  # it works on the host's own thread
        tick = self._tick[backend] if tick is None else tick
        seen = max(self._seen.get((waiter, backend), 0), self._seen.get((None, backend), 0))
        if seen >= tick:
            return
        event = self._tail[backend]
        if event is None:
            backend.synchronize()
            waiter = None
        else:
            backend.event_record(event)
            if waiter is None:
                event.synchronize()
            else:
                waiter.event_wait(event)
        self._seen[waiter, backend] = self._tick[backend]

    def synchronized(self) -> None:
        """All work of all backends is done."""
        self._last_use.clear()
        for backend, tick in self._tick.items():
            self._seen[None, backend] = tick
