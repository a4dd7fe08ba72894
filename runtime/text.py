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

from ..base.errors import LamellaError, RequestError
from ..model.sampling import Logprobs, SamplingParams, TokenLogprob
from ..model.vocab import Vocab
from .engine.engine import Engine
from .engine.job import Job, Result, StopType
from .engine.ticket import Ticket


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
    probs: tuple[TokenProbs, ...] = ()  # one per token if the job asked for them


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
    ) -> None:
        self._vocab = vocab
        self._emit = emit
        self._end = end
        self._error = error
        self._progress = progress
        self._finder = StopFinder(stop)
        self._decoder = vocab.stream()
        self._text = ""  # held back
        # tokens not emitted yet: where in _text each begins
        self._tokens: list[tuple[int, int, TokenProbs | None]] = []
        self._stopping_word = ""

    def progress(self, n_processed: int, n_total: int, n_cached: int) -> None:
        """See `Sink.progress`."""
        if self._progress is not None:
            self._progress(n_processed, n_total, n_cached)

    def token(self, token: int, logprobs: Logprobs | None) -> bool:
        """See `Sink.token`."""
        probs = None if logprobs is None else self._token_probs(logprobs)
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

    def _token_probs(self, found: Logprobs) -> TokenProbs:
        return TokenProbs(self._token_prob(found.chosen), tuple(map(self._token_prob, found.top)))

    def _token_prob(self, found: TokenLogprob) -> TokenProb:
        raw = self._vocab.piece(found.id, special=True)
        return TokenProb(found.id, raw.decode("utf-8", "replace"), raw, found.logprob)


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
    sink = TextSink(vocab, emit=news.put, end=news.put, error=news.put, stop=stop)
    job = Job(
        prompt=tuple(prompt),
        sampling=sampling,
        sink=sink,
        n_predict=n_predict,
        cache_prompt=cache_prompt,
        ignore_eos=ignore_eos,
        n_probs=n_probs,
    )
    return Generation(engine, engine.submit(job), news)
