"""Random requests to real models, run with guesses and without.

Used by tests/runtime/test_speculation_models.py and tests/cuda/test_cuda_speculation.py.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from threading import Event
from typing import Any, Final

import pytest
from fake_context import WAIT_S

from lamella.base.errors import LamellaError
from lamella.model.chat.formats import Marks
from lamella.model.guide import Trigger, TriggerKind, Triggers
from lamella.model.sampling import Logprobs
from lamella.runtime.engine.drafts import speculation
from lamella.runtime.engine.drafts.guesser import Guesser
from lamella.runtime.engine.drafts.source import Draft
from lamella.runtime.engine.drafts.widths import Wish
from lamella.runtime.engine.job import Job, Result
from lamella.runtime.engine.thinking import Thinking
from lamella.runtime.engine.ticket import Ticket
from lamella.runtime.instance import Instance
from lamella.runtime.params import RequestParams
from lamella.runtime.text import TextSink

N_KEY: Final = 6  # tokens by which a place in a text is found again
REGEXES: Final = ("[a-e ]{10,30}", "(ab|ba )*!", "(.|\n){4,20}")
SCHEMA: Final = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
KINDS: Final = ("oracle", "random", "mixed")  # of guesses that replace those of all sources
MARKS: Final = Marks("<a>", "</a>")
TRIGGERS: Final = Triggers([Trigger(TriggerKind.TOKEN, "", t) for t in range(260, 2100, 3)])


class Text:
    """A sink that keeps all that a request returns. It cancels the request at its `n_cancel`-th
    token."""

    def __init__(self, instance: Instance, params: RequestParams, n_cancel: int) -> None:
        self.tokens: list[int] = []
        self.logprobs: list[Logprobs | None] = []
        self.text = ""
        self.end: Result | LamellaError | None = None
        self.ticket: Ticket | None = None
        self._engine = instance.engine
        self._n_cancel = n_cancel
        self._ended = Event()
        self._inner = TextSink(
            instance.vocab,
            emit=self._emit,
            end=self._finish,
            error=self._finish,
            params=params.generation,
        )

    def begin(self, ticket: Ticket) -> None:
        self.ticket = ticket

    def _emit(self, piece: Any) -> None:
        self.text += piece.text

    def _finish(self, end: Result | LamellaError) -> None:
        self.end = end
        self._ended.set()

    def progress(self, n_processed: int, n_total: int, n_cached: int) -> None:
        pass

    def token(self, token: int, logprobs: Logprobs | None) -> bool:
        self.tokens.append(token)
        self.logprobs.append(logprobs)
        goes_on = self._inner.token(token, logprobs)
        if len(self.tokens) == self._n_cancel and self.ticket is not None:
            self._engine.cancel(self.ticket)
        return goes_on

    def finished(self, result: Result) -> None:
        self._inner.finished(result)

    def failed(self, error: LamellaError) -> None:
        self._inner.failed(error)

    def wait(self) -> Text:
        assert self._ended.wait(WAIT_S), "the request did not end"
        return self

    def summary(self) -> tuple[object, ...]:
        """What must not depend on guesses: bits of log-probabilities too."""
        end: object = (type(self.end), str(self.end))
        if isinstance(self.end, Result):
            r = self.end
            end = (r.stop_type, r.stopping_word, r.n_predicted, r.truncated, r.complete)
            end = (*end, r.n_reasoning, r.seed)
        return self.tokens, repr(self.logprobs), self.text, end


@dataclass(frozen=True)
class Request:
    """A request: `given` are its options."""

    prompt: tuple[int, ...]
    given: dict[str, Any]
    n_probs: int = 0
    post_sampling_probs: bool = False
    n_cancel: int = -1
    triggers: Triggers | None = None
    thinking: Thinking | None = None

    def start(self, instance: Instance, **changes: Any) -> Text:
        params = instance.request_params({**self.given, **changes})
        text = Text(instance, params, self.n_cancel)
        job = Job(
            prompt=self.prompt,
            params=params,
            sink=text,
            triggers=self.triggers,
            thinking=self.thinking,
            n_probs=self.n_probs,
            post_sampling_probs=self.post_sampling_probs,
        )
        # on the engine's thread: no token comes before the text has its ticket
        instance.engine.call(lambda _: text.begin(instance.engine.submit(job)))
        return text


def random_request(rng: random.Random, i: int, n_vocab: int, *, lora: bool) -> Request:
    """A request with random options. Its prompt differs from those of other `i`."""
    given: dict[str, Any] = {
        "seed": rng.randint(0, 9999),
        "temperature": rng.choice([0, 0, 0.3, 0.8, 1.5]),
        "top_k": rng.choice([0, 1, 5, 40, 300]),
        "repeat_penalty": rng.choice([1.0, 1.0, 1.0, 1.3]),
        "dry_multiplier": rng.choice([0.0, 0.0, 0.8]),
        "mirostat": rng.choice([0, 0, 0, 0, 1, 2]),
        "xtc_probability": rng.choice([0.0, 0.0, 0.5]),
        "n_predict": rng.choice([1, 2, 20, 40, 60]),
        "ignore_eos": rng.random() < 0.3,
        "stop": rng.choice([(), (), (" ",), ("ab", "c", "b ")]),
        "context_shift": rng.random() < 0.5,
        "cache_prompt": rng.random() < 0.8,
    }
    triggers = thinking = None
    kind = rng.random()
    if kind < 0.3:
        given["regex"] = rng.choice(REGEXES)
        triggers = TRIGGERS if rng.random() < 0.3 else None
    elif kind < 0.4:
        given |= {"json_schema": SCHEMA, "n_predict": 40}
    elif kind < 0.5:
        thinking = Thinking(marks=(MARKS,), opened=MARKS)
        given["reasoning_budget"] = rng.choice([0, 3, 11])
    if lora and rng.random() < 0.5:
        given["lora"] = [{"id": 0, "scale": rng.choice([0.5, 1.0, -1.0])}]
    n_probs = rng.choice([0, 0, 0, 5])
    shared, own = rng.choice([0, 3, 40]), rng.choice([0, 2, 12])
    prompt = (1, *(3 + j * 7 % 250 for j in range(shared)), 3 + i % (n_vocab - 3))
    return Request(
        prompt=prompt + tuple(rng.randrange(3, n_vocab) for _ in range(own)),
        given=given,
        n_probs=n_probs,
        post_sampling_probs=n_probs > 0 and rng.random() < 0.5,
        n_cancel=rng.choice([-1] * 9 + [1, 6]),
        triggers=triggers,
        thinking=thinking,
    )


@dataclass
class Guessing:
    """Guesses that replace those of all sources.

    Attributes:
        kind: "oracle": the tokens that will come; "random": any; "mixed": some of both. Other
            kinds are types of --spec-type, which replace nothing.
    """

    kind: str
    rng: random.Random
    n_vocab: int
    next: dict[tuple[int, ...], Sequence[int]] = field(default_factory=dict)

    def learn(self, requests: Iterable[Request], texts: Iterable[Text]) -> None:
        """Note what follows at each place of the texts."""
        for request, text in zip(requests, texts, strict=True):
            all_tokens = [*request.prompt, *text.tokens]
            for at in range(len(request.prompt), len(all_tokens)):
                self.next[tuple(all_tokens[max(at - N_KEY, 0) : at])] = all_tokens[at:]

    def draft(self, tokens: Sequence[int], n_max: int) -> Draft:
        right = self.next.get(tuple(tokens[-N_KEY:]), ())[:n_max]
        if self.kind == "random":
            return Draft([self._any() for _ in range(n_max)])
        if self.kind == "mixed":
            right = [t if self.rng.random() < 0.8 else self._any() for t in right]
        return Draft(right)

    def _any(self) -> int:
        return self.rng.randrange(self.n_vocab)


def replace_controller(rng: random.Random, patch: pytest.MonkeyPatch) -> None:
    """Let all be guessed for which there is room, at times less. Times do not count."""

    def widths(wishes: Sequence[Wish], n_texts: int, n_max: int, ms_of: object) -> list[int]:
        found, room = [], n_max - n_texts
        for wish in wishes:
            most = min(wish.n, room)
            found.append(most if rng.random() < 0.7 else rng.randint(0, most))
            room -= found[-1]
        return found

    patch.setattr(speculation, "best_widths", widths)
    patch.setattr(speculation, "best_depth", lambda _, n, n_max, *__: rng.randint(0, n_max))


def compare(
    instance: Instance,
    requests: Sequence[Request],
    guessing: Guessing,
    patch: pytest.MonkeyPatch,
) -> None:
    """Run requests one after the other without guesses, then all at once with them."""
    expected = [request.start(instance, spec_type="none").wait() for request in requests]
    given: dict[str, Any] = {"spec_n_max": guessing.rng.choice([3, 7, 12])}
    if guessing.kind in KINDS:
        guessing.learn(requests, expected)
        patch.setattr(Guesser, "draft", guessing.draft)
    else:
        given |= {"spec_type": guessing.kind, "spec_ngram_size": 1, "spec_ngram_match": 1}
    before = replace(instance.engine.counters)
    started = [request.start(instance, **given) for request in requests]
    for request, text, plain in zip(requests, started, expected, strict=True):
        assert text.wait().summary() == plain.summary(), request
    now = instance.engine.counters
    n_right, n_guessed = now.n_accepted - before.n_accepted, now.n_drafted - before.n_drafted
    assert n_guessed > 0 or guessing.kind == "auto"
    assert guessing.kind != "oracle" or n_right > 0.25 * n_guessed
