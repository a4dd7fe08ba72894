"""What is known about a request when it ends: its record, which the log writes as a line.

Knows no route, and not who reads a record.
Tested by tests/server/test_request_log.py.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..base.log import one_line
from .bridge import Choice


@dataclass(slots=True)
class RequestRecord:
    """What the log reports about a request.

    Attributes:
        method, path: of the request; the path without the query.
        choices: the texts that it generates.
        n_each: number of choices per prompt.
        n_texts, n_text_tokens: texts that get a vector or a score, and their tokens.
        body: of the request, once it is read, if bodies are logged.
        end: how it ended, if the choices do not say it.
        kind: how it ended, in a word: see `request_counts.Ended`.
        id: the request's id.
        key: the name of its API key; "" if the server has no keys.
        model: the name of the model, in a process of a router; else "".
        is_hidden: no line of the log: a model's process writes it, or the router itself has asked.
    """

    method: str
    path: str
    status: int = 0
    choices: Sequence[Choice] = ()
    n_each: int = 1
    n_texts: int = 0
    n_text_tokens: int = 0
    body: bytes = b""
    end: str = ""
    kind: str = "ok"
    id: str = ""
    key: str = ""
    model: str = ""
    is_hidden: bool = False
    t_start: float = field(default_factory=time.perf_counter)
    seconds: float = 0.0

    @property
    def n_prompt(self) -> int:
        """Tokens of all prompts. A prompt that several choices share counts once."""
        return sum(choice.n_prompt for choice in self.choices[:: self.n_each])

    @property
    def n_cached(self) -> int:
        return sum(choice.timings().cache_n for choice in self.choices[:: self.n_each])

    @property
    def n_predicted(self) -> int:
        return sum(choice.timings().predicted_n for choice in self.choices)

    @property
    def ttft(self) -> float | None:
        """Seconds to the first token, or None if there is none."""
        firsts = [choice.t_first for choice in self.choices if choice.t_first]
        return min(firsts) - self.t_start if firsts else None

    @property
    def rate(self) -> float | None:
        """Tokens per second after the first token; None for fewer than two tokens."""
        ttft = self.ttft
        if ttft is None or self.n_predicted < 2:
            return None
        seconds = max(choice.t_last for choice in self.choices) - self.t_start - ttft
        return (self.n_predicted - 1) / seconds if seconds > 0 else None

    @property
    def reason(self) -> str:
        """How the request ended; "" for a success without a generation."""
        ended = [choice for choice in self.choices if choice.result is not None]
        return self.end or ", ".join(sorted({choice.finish_reason for choice in ended}))

    @property
    def complete(self) -> bool | None:
        """True if all texts match their grammar as a whole; None if they have none."""
        found = {choice.result.complete for choice in self.choices if choice.result is not None}
        return None if None in found or not found else False not in found

    def as_dict(self) -> dict[str, Any]:
        """The fields of the JSON line."""
        found: dict[str, Any] = {
            "message": "request",
            "method": self.method,
            "path": self.path,
            "status": self.status,
            "ms": round(1e3 * self.seconds, 1),
        }
        if self.choices:
            found |= {
                "prompt_tokens": self.n_prompt,
                "cached_tokens": self.n_cached,
                "completion_tokens": self.n_predicted,
                "ttft_ms": None if self.ttft is None else round(1e3 * self.ttft, 1),
                "tokens_per_second": None if self.rate is None else round(self.rate, 1),
            }
        if self.n_texts:
            found |= {"prompt_tokens": self.n_text_tokens, "texts": self.n_texts}
        if self.complete is not None:
            found["complete"] = self.complete
        for name in ("key", "model"):
            if getattr(self, name):
                found[name] = getattr(self, name)
        return found | {"end": self.reason, "id": self.id}

    def __str__(self) -> str:
        parts = [f"{self.method:<4} {self.path:<20} {self.status}"]
        if self.choices:
            cached = f"({self.n_cached} cached)"
            parts.append(f"in {self.n_prompt:>5} {cached:<13}")
            parts.append(f"out {self.n_predicted:>4}")
            parts.append("" if self.ttft is None else f"ttft {_duration(self.ttft)}")
            parts.append("" if self.rate is None else f"{self.rate:>5.{self.rate < 10:d}f} tok/s")
        elif self.n_texts:
            texts = "1 text" if self.n_texts == 1 else f"{self.n_texts} texts"
            parts.append(f"in {self.n_text_tokens:>5} in {texts:<10}")
            parts.append(_duration(self.seconds))
            if not self.end and self.seconds > 0:
                parts.append(f"{self.n_text_tokens / self.seconds:>5.0f} tok/s")
        else:
            parts.append(_duration(self.seconds))
        parts += [self.key, self.model]
        parts.append(self.reason)
        if self.complete is not None:
            parts[-1] += ", complete" if self.complete else ", incomplete"
        parts.append(self.id)
        # paths and errors have texts of the client
        return one_line("  ".join(part for part in parts if part))


def _duration(seconds: float) -> str:
    return f"{1e3 * seconds:>4.0f} ms" if seconds < 10 else f"{seconds:>5.1f} s"
