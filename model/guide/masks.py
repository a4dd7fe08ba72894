"""Computes which tokens may follow in several texts, while the model computes its step.

A mask depends on earlier tokens only. So a thread computes the masks of the next tokens in native
code without the interpreter lock, and the engine takes them when the logits are there. After a slow
step they are timed one by one, so that each pays for its own mask.
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


class MaskComputer:
    """Computes masks for at most `n_max` texts at a time.

    Attributes:
        seconds: time that its thread took so far.
        waited: time that `take` waited for it.
    """

    def __init__(self, n_bits: int, n_max: int) -> None:
        """`n_bits` is from `n_mask_bits`. The thread starts with the first masks."""
        self.seconds = 0.0
        self.waited = 0.0
        self._masks = np.empty((n_max, -(-n_bits // 32)), np.uint32)
        self._rows = list(self._masks)
        self._asked: SimpleQueue[Sequence[Matcher] | None] = SimpleQueue()
        self._done: SimpleQueue[BaseException | None] = SimpleQueue()
        self._n = 0  # matchers of the last `begin`
        self._is_computing = False
        self._thread: threading.Thread | None = None

    def begin(self, matchers: Sequence[Matcher]) -> None:
        """Start computing the masks of these matchers. They must not change before `take`."""
        assert not self._is_computing, "the last masks were not taken"
        self._n, self._is_computing = len(matchers), bool(matchers)
        if matchers:
            self._start()
            self._asked.put(matchers)

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
        n_bytes = self._masks.strides[0]
        addresses = [self._masks.ctypes.data + i * n_bytes for i in range(len(self._masks))]
        is_slow = False
        while (asked := self._asked.get()) is not None:
            begin = time.perf_counter()
            error: BaseException | None = None
            try:
                for matcher, address in zip(asked, addresses, strict=False):
                    matcher.write_mask(address, n_bytes, timed=is_slow)
            except BaseException as e:
                error = e
            seconds = time.perf_counter() - begin
            self.seconds += seconds
            is_slow = seconds > SLOW_SECONDS
            self._done.put(error)
