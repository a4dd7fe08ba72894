"""Computes which tokens may follow in several texts.

A mask depends on earlier tokens only. So a thread computes the masks of the next tokens in native
code without the interpreter lock, while the model computes its step. Where the model's step uses
all cores, short masks are faster before it: a thread beside it delays all cores. After a slow step
masks are timed one by one, so that each pays for its own.
Tested by tests/model/test_guide_masks.py.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from queue import SimpleQueue

import numpy as np

from ..batch import LateMask, Mask
from .limits import SLOW_SECONDS
from .matcher import Matcher

Asked = tuple[Matcher, Sequence[int]]  # with guesses of the tokens that follow


class MaskComputer:
    """Computes masks for some texts at a time, `n_max` without taking more memory.

    Attributes:
        seconds: time for masks so far.
        waited: time that `take` waited for its thread.
    """

    def __init__(self, n_bits: int, n_max: int, *, inline: bool = False) -> None:
        """`n_bits` is from `n_mask_bits`. With `inline`, `begin` computes masks itself, unless the
        last ones were slow. The thread starts when it is needed."""
        self.seconds = 0.0
        self.waited = 0.0
        self._inline = inline
        self._n_words = -(-n_bits // 32)
        self._make_room(n_max)
        self._is_slow = False  # the last masks took long
        self._asked: SimpleQueue[Sequence[Asked] | None] = SimpleQueue()
        self._done: SimpleQueue[BaseException | None] = SimpleQueue()
        self._n = 0  # masks of the last `begin`
        self._is_computing = False
        self._thread: threading.Thread | None = None

    def begin(
        self, matchers: Sequence[Matcher], guesses: Sequence[Sequence[int]] | None = None
    ) -> None:
        """Start computing the masks of these matchers. They must not change before `take`.

        `guesses`: for each matcher, tokens that may follow. It gets a mask after each of them too.
        """
        assert not self._is_computing, "the last masks were not taken"
        later = [()] * len(matchers) if guesses is None else guesses
        asked = list(zip(matchers, later, strict=True))
        self._n = len(matchers) + sum(len(tokens) for _, tokens in asked)
        if not matchers:
            return
        if self._n > len(self._rows):
            self._make_room(self._n)
        if self._inline and not self._is_slow:
            self._compute(asked)
            return
        self._is_computing = True
        self._start()
        self._asked.put(asked)

    def take(self) -> list[Mask]:
        """Wait for the masks, and return them in the order of the matchers. Later calls return
        the same masks. The next `begin` overwrites them.

        A matcher that failed has a mask of no meaning: call `Matcher.check`.
        """
        if self._is_computing:
            begin = time.perf_counter()
            error = self._done.get()
            self._is_computing = False
            self.waited += time.perf_counter() - begin
            if error is not None:
                raise error
        return self._rows[: self._n]

    def late(self, i: int) -> LateMask:
        """Return a function that returns the `i`-th of the masks that the next `begin` computes."""
        return lambda: self.take()[i]

    def close(self) -> None:
        """End the thread. A second call does nothing."""
        self._asked.put(None)

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="lamella-masks", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while (asked := self._asked.get()) is not None:
            error: BaseException | None = None
            try:
                self._compute(asked)
            except BaseException as e:
                error = e
            self._done.put(error)

    def _make_room(self, n: int) -> None:
        self._masks = np.empty((n, self._n_words), np.uint32)
        self._rows = list(self._masks)

    def _compute(self, asked: Sequence[Asked]) -> None:
        begin, timed = time.perf_counter(), self._is_slow
        address, n_bytes = self._masks.ctypes.data, self._masks.strides[0]
        for matcher, guesses in asked:
            matcher.write_mask(address, n_bytes, timed=timed)
            if guesses:
                matcher.write_later_masks(address + n_bytes, n_bytes, guesses)
            address += n_bytes * (1 + len(guesses))
        seconds = time.perf_counter() - begin
        self.seconds += seconds
        self._is_slow = seconds > SLOW_SECONDS
