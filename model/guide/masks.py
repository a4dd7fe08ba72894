"""Computes which tokens may follow in several texts, while the model computes its step.

A mask depends on earlier tokens only. So a thread computes the masks of the next tokens in native
code without the interpreter lock, and the engine takes them when the logits are there. After a slow
step they are timed one by one, so that each pays for its own mask.
Tested by tests/model/test_guide_masks.py.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from queue import SimpleQueue
from typing import TypeAlias

import numpy as np

from ..batch import LateMask, Mask
from .limits import SLOW_SECONDS
from .matcher import Matcher

_Todo: TypeAlias = deque[tuple[Matcher, int]]  # matchers, and the addresses of their masks


class MaskComputer:
    """Computes masks for at most `n_max` texts at a time.

    Attributes:
        waited: time that `take` waited for its thread.
    """

    def __init__(self, n_bits: int, n_max: int, *, helps: bool = False) -> None:
        """`n_bits` is from `n_mask_bits`. The thread starts with the first masks.

        If the caller `helps`, it computes short masks too, before the step. That is faster where
        the model's step uses all cores: a thread that takes one of them delays all others.
        """
        self.waited = 0.0
        self._helps = helps
        self._masks = np.empty((n_max, -(-n_bits // 32)), np.uint32)
        self._rows = list(self._masks)
        first, self._n_bytes = self._masks.ctypes.data, self._masks.strides[0]
        self._addresses = [first + i * self._n_bytes for i in range(n_max)]
        self._seconds = [0.0, 0.0]  # of the caller, of the thread
        self._is_slow = False  # the last masks took long
        self._asked: SimpleQueue[_Todo | None] = SimpleQueue()
        self._done: SimpleQueue[BaseException | None] = SimpleQueue()
        self._n = 0  # matchers of the last `begin`
        self._is_computing = False
        self._thread: threading.Thread | None = None

    @property
    def seconds(self) -> float:
        """Time for masks so far."""
        return sum(self._seconds)

    def begin(self, matchers: Sequence[Matcher]) -> None:
        """Start computing the masks of these matchers. They must not change before `take`."""
        assert not self._is_computing, "the last masks were not taken"
        self._n, self._is_computing = len(matchers), bool(matchers)
        if not matchers:
            return
        todo = _Todo(zip(matchers, self._addresses, strict=False))
        self._start()
        self._asked.put(todo)
        if self._helps and not self._is_slow:
            self._compute(todo, 0)

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
        while (todo := self._asked.get()) is not None:
            error: BaseException | None = None
            begin = self.seconds
            try:
                self._compute(todo, 1)
            except BaseException as e:
                error = e
            self._is_slow = self.seconds - begin > SLOW_SECONDS
            self._done.put(error)

    def _compute(self, todo: _Todo, who: int) -> None:
        """Compute masks until none is left. The caller and the thread do so at the same time."""
        begin, timed = time.perf_counter(), self._is_slow
        while todo:
            try:
                matcher, address = todo.popleft()
            except IndexError:  # the other one has just taken it
                break
            matcher.write_mask(address, self._n_bytes, timed=timed)
        self._seconds[who] += time.perf_counter() - begin
