"""Simulated devices that record the order in which their work begins and ends.

    watch = Watch()
    devices = [watch.device("SIM0"), watch.device("SIM1")]
    watch.on_begin = hold              # called on the device's thread; may wait or raise
    ...
    watch.order                        # [("SIM0", "begin", 1), ("SIM0", "end", 1), ...]

Numbers count the splits of a device. With all layers on devices, a ubatch is one split on each.
Knows no model.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from lamella.kernels.reference.compute import ReferenceCompute
from lamella.kernels.sim import SimDevice

WAIT_S = 100.0  # for events within milliseconds, on a busy machine

Step = tuple[str, str, int]  # device, "begin" or "end", number


class Watch:
    """The order of work on some devices, with a hook that can delay it."""

    def __init__(self) -> None:
        self.order: list[Step] = []
        self.on_begin: Callable[[str, int], None] = lambda name, n: None
        self._counts: Counter[str] = Counter()
        self._changed = threading.Condition()

    def device(self, name: str, **options: Any) -> SimDevice:
        """A device that records its work. `options` are those of a SimDevice."""
        return SimDevice(name, compute=lambda: _Watched(self, name), **options)

    def wait_for(self, *step: Any) -> bool:
        """Wait for a step. Return False after a timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: step in self.order, WAIT_S)

    def is_before(self, first: Step, second: Step) -> bool:
        return self.order.index(first) < self.order.index(second)

    def clear(self) -> None:
        """Drop all records. Numbers begin at 1 again."""
        self.order.clear()
        self._counts.clear()

    def run(self, name: str, program: Callable[[], None]) -> None:
        """Compute a split and record it."""
        with self._changed:
            self._counts[name] += 1
            n = self._counts[name]
        self._record((name, "begin", n))
        self.on_begin(name, n)
        program()
        self._record((name, "end", n))

    def _record(self, step: Step) -> None:
        with self._changed:
            self.order.append(step)
            self._changed.notify_all()


class _Watched(ReferenceCompute):
    def __init__(self, watch: Watch, name: str) -> None:
        self._watch = watch
        self._name = name

    def compile(self, *args: Any) -> Any:
        program = super().compile(*args)
        return lambda: self._watch.run(self._name, program)
