"""What each API key uses, and its limits: requests per minute, and at a time.

Requests per minute are a bucket of as many tokens, which fills evenly. Knows no request; the clock
is given. Tested by tests/server/test_key_limits.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from ..base.errors import ClientLimitError
from .keys import Key

SECONDS: Final = 60.0  # of the limit of requests


@dataclass(slots=True)
class KeyUse:
    """What one key has used since the start.

    Attributes:
        n_requests: requests, without those that were refused.
        n_refused: requests beyond its limits.
        n_running: requests that run.
        n_prompt, n_predicted: tokens of ended requests.
        n_left: requests that may come now.
        t_filled: when `n_left` was right.
    """

    n_left: float
    t_filled: float
    n_requests: int = 0
    n_refused: int = 0
    n_running: int = 0
    n_prompt: int = 0
    n_predicted: int = 0


class KeyLimits:
    """The use of all keys. Belongs to the event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.uses: dict[str, KeyUse] = {}  # by the keys' names
        self._clock = clock

    @contextmanager
    def request(self, key: Key) -> Iterator[KeyUse]:
        """Count a request of a key, which runs until the block ends.

        Raises:
            ClientLimitError: it is beyond a limit of the key; says when to try again.
        """
        use = self.uses.get(key.name)
        if use is None:
            use = KeyUse(float(key.requests_per_minute), self._clock())
            self.uses[key.name] = use
        try:
            self._take(key, use)
        except ClientLimitError:
            use.n_refused += 1
            raise
        use.n_requests += 1
        use.n_running += 1
        try:
            yield use
        finally:
            use.n_running -= 1

    def _take(self, key: Key, use: KeyUse) -> None:
        if 0 < key.max_running <= use.n_running:
            raise ClientLimitError(
                f"{use.n_running} requests of this API key are running: at most {key.max_running} "
                "may"
            )
        most = key.requests_per_minute
        if not most:
            return
        now = self._clock()
        use.n_left = min(use.n_left + (now - use.t_filled) * most / SECONDS, float(most))
        use.t_filled = now
        if use.n_left < 1.0:
            raise ClientLimitError(
                f"this API key may send {most} requests per minute",
                retry_seconds=(1.0 - use.n_left) * SECONDS / most,
            )
        use.n_left -= 1.0
