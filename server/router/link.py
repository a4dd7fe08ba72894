"""The link of a model's process to its router: lines of JSON on stdin and stdout.

                                      ->  {"ready": true}, after a download, or "error"
    {"do": "plan", "others": BYTES, "caches": 4}
                                      ->  {"plan": {"fits": true, "lacking": ""}}, or "error"
    {"do": "load"}                    ->  {"progress": 0.5} ..., {"loaded": true}, or "error"
    {"do": "memory"}                  ->  {"memory": BYTES}

The process plans when it is told to, and loads when its plan is accepted. So the router decides,
and knows no plan. `others` are bytes that other models have allocated and not yet written: the
system reports them as free. `caches` models share the memory of `-cram`. The process ends when its
stdin ends, as when the router is killed.
Tested by tests/cli/test_serve_models.py.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, BinaryIO, Final

from ...alloc.host import untouched_bytes
from ...base.errors import DoesNotFitError, LamellaError
from ...kernels.host import reserved_for_others
from ...runtime.check import check
from ...runtime.chosen import with_cache_ram
from ...runtime.plan import ModelPlan
from ..watchdog import exit_after

Message = dict[str, Any]

N_END_SECONDS: Final = 5.0  # after the router's end; then this process ends by force
ORPHAN_STATUS: Final = 6  # of a process that was ended so
N_PROGRESS_SECONDS: Final = 0.1  # between two reports

READY: Final = "ready"
PLAN: Final = "plan"
LOAD: Final = "load"
MEMORY: Final = "memory"
LOADED: Final = "loaded"
ERROR: Final = "error"
PROGRESS: Final = "progress"


def to_line(message: Message) -> bytes:
    """The line of a message."""
    return json.dumps(message).encode() + b"\n"


class RouterLink:
    """The process's end of the link.

    Attributes:
        is_orphan: the router is gone.
    """

    def __init__(self, reading: BinaryIO, writing: BinaryIO, end: Callable[[], None]) -> None:
        """`end`: called when the router is gone."""
        self.is_orphan = False
        self._reading, self._writing, self._end = reading, writing, end
        self._orders: SimpleQueue[Message] = SimpleQueue()
        self._lock = threading.Lock()
        self._t_progress = 0.0
        self._n_caches = 1

    def start(self) -> None:
        """Begin to obey the router."""
        threading.Thread(target=self._listen, name="lamella-link", daemon=True).start()

    def send(self, **message: Any) -> None:
        """Tell the router. If it is gone, this process ends anyway."""
        try:
            with self._lock:
                self._writing.write(to_line(message))
                self._writing.flush()
        except OSError:
            self._end()

    def admitted(self, plan_now: Callable[[], ModelPlan]) -> ModelPlan:
        """The plan that the router accepts. Makes a new one with `plan_now` for each order."""
        plan: ModelPlan | None = None
        self.send(ready=True)
        while True:
            order = self._orders.get()
            if order["do"] == LOAD:
                assert plan is not None, "the router accepts a plan that it has not seen"
                return plan
            self._n_caches = order["caches"]
            with reserved_for_others(order["others"]):
                plan = self.again(plan_now)
            self.send(plan=_verdict(plan))

    def again(self, plan_now: Callable[[], ModelPlan]) -> ModelPlan:
        """A plan of a model that the router has admitted: with its part of the memory for prompts
        that leave the context."""
        plan = plan_now()
        n_mib = plan.params.cache.cache_ram or 0
        if n_mib <= 0 or self._n_caches == 1:
            return plan
        return with_cache_ram(plan, max(n_mib // self._n_caches, 1))

    def on_load(self, done: int, total: int) -> None:
        """Report that `done` of `total` bytes of weights are loaded."""
        self._report(progress=done / max(total, 1))

    def on_compile(self, done: int, total: int, name: str, seconds: float) -> None:
        """Report that kernels are being compiled, so that the router goes on waiting."""
        self._report(compiled=done)

    def _report(self, **message: Any) -> None:
        """Tell the router, unless it was told a short time ago."""
        now = time.monotonic()
        if now - self._t_progress >= N_PROGRESS_SECONDS:
            self._t_progress = now
            self.send(**message)

    def _listen(self) -> None:
        for line in self._reading:
            order = json.loads(line)
            if order["do"] == MEMORY:
                self.send(memory=untouched_bytes())
            else:
                self._orders.put(order)
        self.is_orphan = True
        self._end()


def _verdict(plan: ModelPlan) -> Message:
    """What the router's `Verdict` has of a plan."""
    try:
        check(plan)
    except DoesNotFitError as error:
        n_bytes = sum(memory.weights for device in plan.devices for memory in device.memory)
        is_hopeless = n_bytes > sum(device.capacity for device in plan.devices)
        return {"fits": False, "lacking": str(error), "is_hopeless": is_hopeless}
    except LamellaError:
        pass  # loading raises it
    return {"fits": True, "lacking": "", "is_hopeless": False}


def link_to_router() -> RouterLink:
    """The link of this process, over its stdin and stdout. Whatever else is printed goes to stderr
    from now on."""
    reading, writing = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    link = RouterLink(os.fdopen(reading, "rb"), os.fdopen(writing, "wb"), _end_process)
    link.start()
    return link


def _end_process() -> None:
    """End this process as SIGTERM does, and by force if that takes long."""
    exit_after(N_END_SECONDS, ORPHAN_STATUS)
    os.kill(os.getpid(), signal.SIGTERM)
