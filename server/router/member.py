"""One model of a router: its state, and what clients see of it.

Knows no other model and decides nothing. Tested by tests/server/test_router_fleet.py.
"""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from .child import Child
from .preset import Preset

Json = dict[str, Any]

N_BACK_OFF_SECONDS_MAX: Final = 60.0
N_STEADY_SECONDS: Final = 60.0  # a process that ran so long does not count as failing again


class State(Enum):
    """llama-server's names of states. `FAILED` is ours: there it is `unloaded` with `failed`."""

    UNLOADED = "unloaded"
    LOADING = "loading"
    LOADED = "loaded"
    SLEEPING = "sleeping"
    FAILED = "failed"


@dataclass(slots=True, kw_only=True, eq=False)
class Member:
    """A model that a router knows.

    Attributes:
        preset: its name and flags.
        child: its process, while there is one.
        loading: the task that loads it.
        stopping: the task that ends its last process.
        falling_asleep: the task that last took it out of memory as it was idle.
        n_running: requests that use it or wait for it.
        t_used: when the last one ended, by the monotonic clock.
        t_loaded: when it was loaded.
        is_released: it leaves the memory when no request uses it.
        keep: seconds that it stays after the last request, which has said so; None: as its preset.
        error: why it failed.
        exit_code: the status of a process that failed.
        n_failures: how often it failed in a row.
        t_retry: when it may be loaded again.
        progress: the loaded part of the weights.
        info: its entry in its own GET /v1/models; empty until it was loaded once.
        props: its reply to GET /props before it slept.
    """

    preset: Preset
    state: State = State.UNLOADED
    child: Child | None = None
    loading: asyncio.Task[None] | None = None
    stopping: asyncio.Task[None] | None = None
    falling_asleep: asyncio.Task[None] | None = None
    n_running: int = 0
    t_used: float = 0.0
    t_loaded: float = 0.0
    is_released: bool = False
    keep: float | None = None
    error: str = ""
    exit_code: int | None = None
    n_failures: int = 0
    t_retry: float = 0.0
    progress: float = 0.0
    info: Json = field(default_factory=dict)
    props: Json = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.preset.name

    @property
    def is_idle(self) -> bool:
        """True if it is loaded and no request uses it."""
        return self.state is State.LOADED and self.n_running == 0

    @property
    def is_stopping(self) -> bool:
        """True if its last process still runs."""
        return self.stopping is not None and not self.stopping.done()

    @property
    def t_leaves(self) -> float | None:
        """When it leaves the memory if nothing uses it, by the monotonic clock; None: never."""
        seconds = float(self.preset.sleep_idle_seconds) if self.keep is None else self.keep
        return self.t_used + seconds if 0 <= seconds < math.inf else None

    @property
    def has_process(self) -> bool:
        """True if it takes memory, or is about to."""
        return self.state in (State.LOADING, State.LOADED)

    def failed(self, error: str, exit_code: int | None) -> None:
        """Record a failure. It may be loaded again after a while, which doubles each time."""
        now = time.monotonic()
        was_steady = self.state is State.LOADED and now - self.t_loaded >= N_STEADY_SECONDS
        self.n_failures = 1 if was_steady else self.n_failures + 1
        self.t_retry = now + min(2.0 ** (self.n_failures - 1), N_BACK_OFF_SECONDS_MAX)
        self.error, self.exit_code = error, exit_code

    def status(self, *, with_flags: bool) -> Json:
        """llama-server's status. `with_flags`: clients may see the flags of the process."""
        found: Json = {"value": self.state.value}
        if with_flags:
            found["args"] = ["lamella", "serve", *self.preset.flags]
        if self.state is State.LOADING:
            found["progress"] = {"current": "text_model", "value": round(self.progress, 3)}
        if self.state is State.FAILED:
            found |= {"failed": True, "exit_code": self.exit_code, "error": self.error}
        return found

    def entry(self, *, with_flags: bool) -> Json:
        """The model in GET /v1/models."""
        base: Json = {
            "id": self.name,
            "aliases": [self.name, *self.preset.aliases],
            "tags": [],
            "object": "model",
            "created": int(time.time()),
            "owned_by": "lamella",
        }
        own = {key: self.info[key] for key in ("tags", "meta") if key in self.info}
        path = {"path": self.preset.source} if with_flags else {}
        modalities = {"input_modalities": ["text"], "output_modalities": ["text"]}
        status = self.status(with_flags=with_flags)
        return base | own | path | {"architecture": modalities, "status": status}
