"""Hazards: the complete ordering of asynchronous work by the buffers that it uses.

Each piece of work of an asynchronous backend gets a tick. Each buffer has the last tick of every
backend that read or wrote it. Before new work uses a buffer, it waits for these ticks, unless it
has waited for them before. ggml orders copies and shared buffers only in part. `Recorder` keeps the
calls of a graph that started alone, which are then the same each time. Tested by
tests/sched/test_waits.py and test_recorded.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, ParamSpec, TypeVar

from ..alloc.buffer import Buffer
from .backend import Backend, Event

P = ParamSpec("P")
R = TypeVar("R")


class Recorder:
    """Makes calls, and keeps them between `begin` and `end`."""

    def __init__(self) -> None:
        self._calls: list[Callable[[], Any]] | None = None

    def begin(self) -> None:
        self._calls = []

    def end(self) -> list[Callable[[], Any]] | None:
        """Return the calls; None if they will not be the same another time."""
        calls, self._calls = self._calls, None
        return calls

    def differs(self) -> None:
        """The calls depend on data: keep none of them."""
        self._calls = None

    def call(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        if self._calls is not None:
            self._calls.append(partial(function, *args, **kwargs))
        return function(*args, **kwargs)


class State(NamedTuple):
    """What `Hazards` knows of work in flight; the names are those of its fields."""

    tick: dict[Backend, int]
    last_use: dict[Buffer, dict[Backend, int]]
    seen: dict[tuple[Backend | None, Backend], int]


class Hazards:
    """The ticks of a scheduler's backends. Synchronous backends work on the host's thread.

    `recorder` makes the calls to backends. `is_idle`: no work was recorded since `synchronized`.
    """

    def __init__(self, backends: Sequence[Backend], recorder: Recorder | None = None) -> None:
        self._recorder = recorder or Recorder()
        self.is_idle = True
        self._adopted: State | None = None  # to be copied before it is used
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
        self._copy_adopted()
        self.is_idle = False
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
        self._copy_adopted()
        for buffer in buffers:
            for backend, tick in self._last_use.get(buffer, {}).items():
                self.wait_for(waiter, backend, tick)

    def wait_for(self, waiter: Backend | None, backend: Backend, tick: int | None = None) -> None:
        """Let later work of `waiter` run after `backend`'s work up to `tick` (None: all of it)."""
        if waiter is backend or not backend.is_async:
            return
        if waiter is not None and not waiter.is_async:
            waiter = None  # it works on the host's thread
        self._copy_adopted()
        tick = self._tick[backend] if tick is None else tick
        seen = max(self._seen.get((waiter, backend), 0), self._seen.get((None, backend), 0))
        if seen >= tick:
            return
        event, call = self._tail[backend], self._recorder.call
        if event is None:
            call(backend.synchronize)
            waiter = None
        else:
            call(backend.event_record, event)
            if waiter is None:
                call(event.synchronize)
            else:
                call(waiter.event_wait, event)
        self._seen[waiter, backend] = self._tick[backend]

    def is_used(self, buffers: Iterable[Buffer]) -> bool:
        """True if work in flight uses one of these buffers."""
        last_use = self._last_use if self._adopted is None else self._adopted.last_use
        return any(buffer in last_use for buffer in buffers)

    def synchronized(self) -> None:
        """Record that all work of all backends is done."""
        self.is_idle = True
        if self._adopted is not None:  # nothing else was recorded since the last time
            self._adopted = None
            return
        self._last_use.clear()
        self._seen.clear()
        self._tick = dict.fromkeys(self._tick, 0)

    # --- runs that start alone ---

    def state(self) -> State:
        """A copy of what is known."""
        last_use = {buffer: dict(ticks) for buffer, ticks in self._last_use.items()}
        return State(dict(self._tick), last_use, dict(self._seen))

    def adopt(self, state: State) -> None:
        """Know what was known after the same calls. Nothing may be in flight before them."""
        self.is_idle = False
        self._adopted = state

    def _copy_adopted(self) -> None:
        if self._adopted is not None:
            state, self._adopted = self._adopted, None
            self._tick, self._seen = dict(state.tick), dict(state.seen)
            self._last_use = {buffer: dict(ticks) for buffer, ticks in state.last_use.items()}
