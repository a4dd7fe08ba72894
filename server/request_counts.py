"""Counts of ended requests, for metrics: by path, status and end, and histograms of their sizes.

Used in the event loop only. Knows no request and no names of metrics.
Tested by tests/server/test_request_metrics.py.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from ..runtime.engine.histogram import TOKENS, Histogram, of_seconds


class Ended(NamedTuple):
    """How requests ended.

    Attributes:
        path: of their route: few, whatever clients ask for.
        end: "ok", the type of an error, "disconnected", "timeout" (the client did not read) or
            "stopping".
    """

    path: str
    status: int
    end: str


class RequestCounts:
    """The counts of one server. The histograms are of requests that the model works for."""

    def __init__(self) -> None:
        self.ended: Counter[Ended] = Counter()
        self.seconds, self.ttft = of_seconds(), of_seconds()
        self.n_prompt, self.n_predicted = Histogram(TOKENS), Histogram(TOKENS)

    def add_work(self, seconds: float, n_prompt: int) -> None:
        """Count a request with `n_prompt` tokens of prompts or texts, which took `seconds`."""
        self.seconds.add(seconds)
        self.n_prompt.add(n_prompt)

    def add_generation(self, ttft: float | None, n_predicted: int) -> None:
        """Count the texts of a request: seconds to the first token, if there is one, and tokens."""
        self.n_predicted.add(n_predicted)
        if ttft is not None:
            self.ttft.add(ttft)
