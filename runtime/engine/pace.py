"""How many prompt tokens a step may take beside decoding sequences, by the times of earlier steps.

Graphs are padded to few sizes, so a table of times by size is the whole model. A step fills its
size: a smaller part of a prompt would take as long. After a size that is fast enough the next one
is tried, unless it was slow lately: one step of N_STEPS_VALID may take too long. So the table
follows the machine's load and the depth of texts. Results do not depend on the choice.

Knows no clock: the runner gives it times. Tested by tests/runtime/test_pace.py.
"""

from __future__ import annotations

import statistics
from collections import deque
from typing import Final, NamedTuple

from ...model.graphs import bucket

SLOWER: Final = 2.0  # a step with prompt tokens takes at most so many times as long as one without
N_LEAST: Final = 4  # prompt tokens of any step, so that prompts go on
LITTLE: Final = 1.1  # a size is as good as the least one if it takes at most so many times as long
N_TIMES: Final = 8  # the last times of each size that count
N_STEPS_VALID: Final = 256  # steps for which a time counts
N_STEPS_OLD: Final = 1024  # for guesses
N_SURE: Final = 3  # times that one slow step does not spoil


class Size(NamedTuple):
    """The size of a step's graph: tokens and outputs, rounded up."""

    n_tokens: int
    n_outputs: int


class Times:
    """The last times of a size in milliseconds, and the number of the step that took the last."""

    __slots__ = ("_ms", "last", "median")

    def __init__(self) -> None:
        self._ms: deque[float] = deque(maxlen=N_TIMES)
        self.median = 0.0
        self.last = 0

    @property
    def n(self) -> int:
        """How many times count."""
        return len(self._ms)

    def add(self, ms: float, *, is_late: bool) -> None:
        """Add a time. If it is late, forget the others."""
        if is_late:
            self._ms.clear()
        self._ms.append(ms)
        self.median = statistics.median(self._ms)


class Pace:
    """Measured times of steps of at most `n_ubatch` tokens, and the choice of the next one's size.

    `max_itl`: the most milliseconds of a step with prompt tokens beside decoding sequences; 0:
    SLOWER times a step without; -1: no limit.
    """

    def __init__(self, n_ubatch: int, max_itl: int = 0) -> None:
        self._n_ubatch = n_ubatch
        self._max_itl = max_itl
        self._times: dict[Size, Times] = {}
        self._n_steps = 0
        self._measures = False  # the next step has no prompt tokens, for its time

    def measured(self, n_tokens: int, n_outputs: int, ms: float) -> None:
        """Add the time of a step."""
        self._n_steps += 1
        size = self._size(n_tokens, n_outputs)
        times = self._times.get(size)
        if times is None:
            times = self._times[size] = Times()
        times.add(ms, is_late=self._n_steps - times.last > N_STEPS_VALID)
        times.last = self._n_steps

    def ms_of(self, n_tokens: int) -> float | None:
        """The milliseconds of a step of so many tokens, all with outputs; None: too few are known.
        An old time is better than another slow step to measure it."""
        n = bucket(n_tokens, self._n_ubatch)
        times = self._times.get(Size(n, n))
        if times is None or self._n_steps - times.last >= N_STEPS_OLD:
            return None
        return times.median if times.n >= N_SURE else None

    def n_prompt_tokens(self, n_decoding: int) -> int:
        """The most prompt tokens of the next step, beside `n_decoding` decoding sequences.

        0 if it must be measured first how long these take alone; never twice in a row.
        """
        room = max(self._n_ubatch - n_decoding, 1)
        if self._max_itl < 0 or n_decoding == 0:
            return room
        alone = self._size(n_decoding, n_decoding)
        limit = float(self._max_itl)
        if not limit:
            ms = self._known(alone)
            self._measures = ms is None and not self._measures
            if self._measures:
                return 0
            limit = 0.0 if ms is None else SLOWER * ms
        best = bucket(n_decoding + max(n_decoding, N_LEAST), self._n_ubatch)
        least = self._known(Size(best, alone.n_outputs))
        if least is not None:
            best = self._best(best, alone.n_outputs, max(limit, LITTLE * least))
        return min(max(best - n_decoding, 1), room)

    def _best(self, n_tokens: int, n_outputs: int, limit: float) -> int:
        """The largest size from `n_tokens` on, all up to which take at most `limit` milliseconds,
        or the next one if its time is not known."""
        while n_tokens < self._n_ubatch:
            larger = bucket(n_tokens + 1, self._n_ubatch)
            ms = self._known(Size(larger, n_outputs))
            if ms is None:
                return larger
            if ms > limit:
                break
            n_tokens = larger
        return n_tokens

    def _known(self, size: Size) -> float | None:
        times = self._times.get(size)
        if times is None or self._n_steps - times.last >= N_STEPS_VALID:
            return None
        return times.median

    def _size(self, n_tokens: int, n_outputs: int) -> Size:
        n = bucket(n_tokens, self._n_ubatch)
        return Size(n, bucket(max(n_outputs, 1), n))
