"""Limits how many lines each place in the code logs, so that no client can fill the log.

Each place has its own limit, so a flood of one kind of line hides no other. A line reports how many
were left out. Knows no room.
Tested by tests/base/test_log_limit.py.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

N_SECONDS: Final = 10.0  # of a window, in which lines are counted
N_LINES: Final = 2000  # of a place in a window
N_WARNINGS: Final = 20  # the same for warnings and errors, which may have tracebacks

Place = tuple[str, int, int]  # the file, the line, and the level


class LogLimit:
    """Counts the lines of each place."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._counts: dict[Place, int] = {}
        self._t_end = clock() + N_SECONDS

    @property
    def seconds_left(self) -> float:
        """Seconds to the end of the window."""
        return max(self._t_end - self._clock(), 0.0)

    def allows(self, record: logging.LogRecord) -> bool:
        """Count a record. Return False if its place has logged too much in this window."""
        place = (record.pathname, record.lineno, record.levelno)
        n = self._counts[place] = self._counts.get(place, 0) + 1
        return n <= _most(place)

    def reports(self, *, is_last: bool = False) -> Sequence[logging.LogRecord]:
        """At the end of a window, a line for each place that was limited. Begins a new window.

        `is_last`: the window ends now.
        """
        if self.seconds_left and not is_last:
            return ()
        counts, self._counts = self._counts, {}
        self._t_end = self._clock() + N_SECONDS
        return [_report(place, n) for place, n in counts.items() if n > _most(place)]


def _most(place: Place) -> int:
    return N_WARNINGS if place[2] >= logging.WARNING else N_LINES


def _report(place: Place, n: int) -> logging.LogRecord:
    file, line, level = place
    where = f"{file.rpartition('/')[2]}:{line}"
    text = f"lines left out: {n - _most(place)}, like the last ones of {where}"
    return logging.LogRecord("lamella.log", level, file, line, text, None, None)
