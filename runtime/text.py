"""The text side of a generation: tokens become text, stop strings end it, pieces are handed on.

`TextSink` is what HTTP, the command line and the Python API give the engine. `Generation` and
`generate` are a blocking iterator over it, for whoever has a thread to wait in.
Tests: tests/runtime/test_text.py, tests/runtime/test_generation.py.
"""

from __future__ import annotations

import queue
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..base.errors import LamellaError, RequestError
from ..model.outputs import F32Array, Row
from ..model.sampling import Sampler, SamplingParams, log_softmax
from ..model.vocab import Vocab
from .engine.engine import Engine
from .engine.job import Job, Result, StopType
from .engine.ticket import Ticket

LOWEST = float(np.finfo(np.float32).min)  # instead of -inf, which JSON cannot say


@dataclass(frozen=True, slots=True)
class TokenProb:
    """A token and the natural logarithm of its probability."""

    id: int
    token: str  # U+FFFD for what is no whole UTF-8
    raw: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenProbs:
    """The token that was chosen, and the likeliest ones at its place, best first."""

    chosen: TokenProb
    top: tuple[TokenProb, ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that is decided, and the tokens that began in it."""

    text: str
    tokens: tuple[int, ...]
    probs: tuple[TokenProbs, ...] = ()  # one per token if `n_probs` > 0


News = Piece | Result | LamellaError


class StopFinder:
    """Finds the first stop string that is completed in a text that comes in parts.

    First completed, not first begun: what is found never depends on what comes after it, nor on how
    the text was cut into parts. If several are completed by the same character, the longest counts.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        self.stop = tuple(s for s in stop if s)  # an empty one, as in llama-server, means none

    def find(self, text: str) -> tuple[int, str] | None:
        """Where the stop string begins, and which one it is."""
        found = [(i + len(s), i, s) for s in self.stop if (i := text.find(s)) >= 0]
        if not found:
            return None
        _, begin, word = min(found)
        return begin, word

    def n_decided(self, text: str) -> int:
        """Characters at the front of `text` that no stop string can begin in any more."""
        for i in range(len(text) if self.stop else 0):
            tail = text[i:]
            if any(s.startswith(tail) for s in self.stop):
                return i
        return len(text)


class TextSink:
    """A sink that emits text as soon as no stop string can take it back.

    `emit` gets the pieces, then either `end` the result or `error` what went wrong; all are called
    on the engine's thread. A stop string and everything after it is never emitted; text that is
    held back when the generation ends otherwise is.
    """

    def __init__(
        self,
        vocab: Vocab,
        *,
        emit: Callable[[Piece], object],
        end: Callable[[Result], object],
        error: Callable[[LamellaError], object],
        progress: Callable[[int, int, int], object] | None = None,
        stop: Sequence[str] = (),
        n_probs: int = 0,
        post_sampling_probs: bool = False,
    ) -> None:
        """`n_probs` > 0: the probabilities of so many tokens at each place, from the model's logits
        or, with `post_sampling_probs`, of what the samplers left (the impossible left out).
        """
        self._vocab = vocab
        self._emit = emit
        self._end = end
        self._error = error
        self._progress = progress
        self._finder = StopFinder(stop)
        self._n_probs = n_probs
        self._post_sampling_probs = post_sampling_probs
        self._decoder = vocab.stream()
        self._text = ""  # held back
        # tokens not emitted yet: where in _text each begins
        self._tokens: list[tuple[int, int, TokenProbs | None]] = []
        self._stopping_word = ""

    def progress(self, n_processed: int, n_total: int, n_cached: int) -> None:
        """See `Sink.progress`."""
        if self._progress is not None:
            self._progress(n_processed, n_total, n_cached)

    @property
    def needs_logits(self) -> bool:
        """See `Sink.needs_logits`."""
        return self._n_probs > 0 and not self._post_sampling_probs

    def token(self, token: int, logits: Row, sampler: Sampler) -> bool:
        """See `Sink.token`."""
        probs = self._token_probs(token, logits, sampler) if self._n_probs > 0 else None
        self._tokens.append((len(self._text), token, probs))
        return self._push(self._decoder.push(token))

    def finished(self, result: Result) -> None:
        """See `Sink.finished`."""
        if self._push(self._decoder.flush()):  # a stop string that was found is found again
            self._send(len(self._text), tuple(self._tokens))
        if self._stopping_word:
            result = replace(result, stop_type=StopType.WORD, stopping_word=self._stopping_word)
        self._end(result)

    def failed(self, error: LamellaError) -> None:
        """See `Sink.failed`."""
        self._error(error)

    def _push(self, text: str) -> bool:
        """Emit what is decided now; False: a stop string was found."""
        self._text += text
        found = self._finder.find(self._text)
        if found is not None:
            n, self._stopping_word = found
        else:
            n = self._finder.n_decided(self._text)
        if n > 0:
            self._send(n, tuple(t for t in self._tokens if t[0] < n))
        return found is None

    def _send(self, n: int, tokens: tuple[tuple[int, int, TokenProbs | None], ...]) -> None:
        if n == 0 and not tokens:
            return
        probs = tuple(p for _, _, p in tokens if p is not None)
        piece = Piece(self._text[:n], tuple(token for _, token, _ in tokens), probs)
        self._text = self._text[n:]
        self._tokens = [(begin - n, t, p) for begin, t, p in self._tokens[len(tokens) :]]
        self._emit(piece)

    def _token_probs(self, token: int, logits: Row, sampler: Sampler) -> TokenProbs:
        if self._post_sampling_probs:
            ids, probs = sampler.candidates()  # the likeliest first
            best = [int(i) for i in ids[: self._n_probs]]
            shown = [*range(len(best)), *np.flatnonzero(ids == token)]
            known = {int(ids[i]): float(np.log(probs[i])) for i in shown}
        else:
            assert isinstance(logits, np.ndarray), "all logits are needed"
            logprobs = log_softmax(logits)
            best = _best(logprobs, self._n_probs)
            known = {i: float(logprobs[i]) for i in (token, *best)}
        chosen, *top = (self._token_prob(i, known.get(i, LOWEST)) for i in (token, *best))
        return TokenProbs(chosen, tuple(top))

    def _token_prob(self, token: int, logprob: float) -> TokenProb:
        raw = self._vocab.piece(token, special=True)
        return TokenProb(token, raw.decode("utf-8", "replace"), raw, max(logprob, LOWEST))


def _best(values: F32Array, n: int) -> list[int]:
    """Indices of the `n` largest values, largest first; of equal ones the first first."""
    candidates = np.arange(len(values))
    if n < len(values):
        nth = np.partition(values, len(values) - n)[len(values) - n]
        candidates = np.flatnonzero(values >= nth)  # ties included: no partition's order decides
    order = np.argsort(-values[candidates], kind="stable")[:n]
    return [int(i) for i in candidates[order]]


class Generation:
    """The pieces of one generation, to be iterated over.

    Iterating waits for the engine; Ctrl-C interrupts the wait. Leaving the loop early, an exception
    in it, or dropping the generation cancels it.
    """

    def __init__(self, engine: Engine, ticket: Ticket, news: queue.SimpleQueue[News]) -> None:
        self._engine = engine
        self._ticket = ticket
        self._news = news
        self._ended: Result | LamellaError | None = None
        # one that nobody can ask for its pieces any more ends too
        weakref.finalize(self, engine.cancel, ticket).atexit = False

    def __iter__(self) -> Iterator[Piece]:
        """The pieces that were not taken yet.

        Raises:
            LamellaError: what the generation failed with; CancelledError after `cancel`.
        """
        try:
            while self._ended is None:
                news = self._news.get()
                if isinstance(news, Piece):
                    yield news
                else:
                    self._ended = news
        finally:
            self.cancel()
        if isinstance(self._ended, LamellaError):
            raise self._ended

    @property
    def result(self) -> Result:
        """How it ended.

        Raises:
            RequestError: it has not ended well, or its pieces have not all been taken.
        """
        if not isinstance(self._ended, Result):
            raise RequestError("a generation has a result only after its last piece was taken")
        return self._ended

    def cancel(self) -> None:
        """End it early, from any thread. After its end: does nothing."""
        self._engine.cancel(self._ticket)


def generate(
    engine: Engine,
    vocab: Vocab,
    prompt: Sequence[int],
    sampling: SamplingParams,
    *,
    n_predict: int = -1,
    stop: Sequence[str] = (),
    n_probs: int = 0,
    cache_prompt: bool = True,
    ignore_eos: bool = False,
) -> Generation:
    """Submit a tokenised prompt and iterate over what the model makes of it.

    Raises:
        RequestError, ContextSizeError, OverloadedError, ClosedError: see `Engine.submit`.
    """
    news: queue.SimpleQueue[News] = queue.SimpleQueue()
    sink = TextSink(vocab, emit=news.put, end=news.put, error=news.put, stop=stop, n_probs=n_probs)
    job = Job(
        prompt=tuple(prompt),
        sampling=sampling,
        sink=sink,
        n_predict=n_predict,
        cache_prompt=cache_prompt,
        ignore_eos=ignore_eos,
    )
    return Generation(engine, engine.submit(job), news)
