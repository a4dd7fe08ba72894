"""Hazards: the complete ordering of asynchronous work by the buffers that it uses.

Each piece of work of an asynchronous backend gets a tick. Each buffer has the last tick of every
backend that read or wrote it. Before new work uses a buffer, it waits for these ticks, unless it
has waited for them before. ggml orders copies and shared buffers only in part. Tested by
tests/sched/test_waits.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..alloc.buffer import Buffer
from .backend import Backend, Event


class Hazards:
    """The ticks of a scheduler's backends. Synchronous backends work on the host's thread."""

    def __init__(self, backends: Sequence[Backend]) -> None:
        self.backends = [b for b in backends if b.is_async]
        self._tick = dict.fromkeys(self.backends, 0)
        self._last_use: dict[Buffer, dict[Backend, int]] = {}
        # (waiter, backend): the tick up to which the waiter has waited. The waiter None is the
        # host; all backends have waited for a tick that the host has waited for
        self._seen: dict[tuple[Backend | None, Backend], int] = {}
        self._tail: dict[Backend, Event | None] = {b: b.device.event_new() for b in self.backends}

    def used(self, backend: Backend, buffers: Iterable[Buffer]) -> None:
        """Record that `backend` got work that uses `buffers`."""
        if not backend.is_async:
            return
        self._tick[backend] += 1
        for buffer in buffers:
            self._last_use.setdefault(buffer, {})[backend] = self._tick[backend]

    def copied(self, src_backend: Backend, dst_backend: Backend, buffers: Iterable[Buffer]) -> None:
        """Record a copy that runs after all earlier work of both backends."""
        self.used(src_backend if src_backend.is_async else dst_backend, buffers)
        if src_backend.is_async and dst_backend.is_async:
            self._seen[dst_backend, src_backend] = self._tick[src_backend]
            self._seen[src_backend, dst_backend] = self._tick[dst_backend]

    def wait(self, waiter: Backend | None, buffers: Iterable[Buffer]) -> None:
        """Let later work of `waiter` (None: the host) run after all other work on `buffers`."""
        for buffer in buffers:
            for backend, tick in self._last_use.get(buffer, {}).items():
                self.wait_for(waiter, backend, tick)

    def wait_for(self, waiter: Backend | None, backend: Backend, tick: int | None = None) -> None:
        """Let later work of `waiter` run after `backend`'s work up to `tick` (None: all of it)."""
        if waiter is backend or not backend.is_async:
            return
        if waiter is not None and not waiter.is_async:
            waiter = None  # it works on the host's thread
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
        """Record that all work of all backends is done."""
        self._last_use.clear()
        for backend, tick in self._tick.items():
            self._seen[None, backend] = tick
