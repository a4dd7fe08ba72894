"""The text side of a generation: turns tokens into text and finds stop strings.

`TextSink` is the sink that HTTP, the command line and the Python API pass to the engine. `generate`
returns a `Generation`: a blocking iterator over the pieces of text.
Tests: tests/runtime/test_text.py, tests/runtime/test_generation.py.
"""

from __future__ import annotations

import queue
import weakref
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from ..base.errors import LamellaError, RequestError
from ..model.guide import GrammarSpec
from ..model.sampling import Logprobs
from ..model.vocab import Vocab
from .engine.engine import Engine
from .engine.job import Job, Result, StopType
from .engine.thinking import Thinking
from .engine.ticket import Ticket
from .params import GenerationParams, RequestParams

DEFAULTS: Final = GenerationParams()


class Piece(NamedTuple):
    """Final text, and the tokens that begin in it. There is one for each token, so it is a tuple:
    they are made fast."""

    text: str
    tokens: tuple[int, ...]
    probs: tuple[Logprobs, ...] = ()  # one per token if the job requests them


TextEvent = Piece | Result | LamellaError


class StopFinder:
    """Finds the stop string that is completed first in a text that arrives in parts.

    First completed, not first begun: the result depends neither on later text nor on how the text
    was cut into parts. If one character completes several stop strings, the longest counts.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        self.stop = tuple(s for s in stop if s)  # an empty one is ignored, as in llama-server
        self._first = {s[0] for s in self.stop}

    def may_begin(self, text: str) -> bool:
        """False if no stop string begins in `text`."""
        return not self._first.isdisjoint(text)

    def find(self, text: str) -> tuple[int, str] | None:
        """The position and the text of the stop string; None if there is none yet."""
        found = [(i + len(s), i, s) for s in self.stop if (i := text.find(s)) >= 0]
        if not found:
            return None
        _, begin, word = min(found)
        return begin, word

    def n_decided(self, text: str) -> int:
        """Number of characters at the front of `text` that cannot become part of a stop string."""
        for i in range(len(text) if self.stop else 0):
            tail = text[i:]
            if any(s.startswith(tail) for s in self.stop):
                return i
        return len(text)


class IndentFinder:
    """Finds the first line of a text, after its first one, that is indented by less than `n` spaces
    and tabs. The text arrives in parts."""

    def __init__(self, n: int) -> None:
        self._n = n
        self._n_found: int | None = None  # of the current line, before its first other character

    def find(self, part: str) -> int | None:
        """The place in the next part where such a line's text begins; None if there is none."""
        for i, character in enumerate(part):
            if self._n_found is not None:
                if character in " \t":
                    self._n_found += 1
                    continue
                if self._n_found < self._n:
                    return i
                self._n_found = None
            if character == "\n":
                self._n_found = 0
        return None


class TextSink:
    """A sink that emits text as soon as it cannot become part of a stop string.

    Calls `emit` with each piece, then `end` with the result or `error` with the error, all on the
    engine's thread. Never emits a stop string and the text after it. If the generation ends
    otherwise, emits the text held back so far.
    """

    def __init__(
        self,
        vocab: Vocab,
        *,
        emit: Callable[[Piece], object],
        end: Callable[[Result], object],
        error: Callable[[LamellaError], object],
        progress: Callable[[int, int, int], object] | None = None,
        params: GenerationParams = DEFAULTS,
        n_indent: int = 0,
        shown: Container[int] = (),
    ) -> None:
        """`n_indent`: a later line that is indented by less ends the text, as a limit does. `shown`
        are control tokens whose names are part of the text; with `special`, all are."""
        self._vocab = vocab
        self._emit = emit
        self._end = end
        self._error = error
        self._progress = progress
        self._finder = StopFinder(params.stop)
        self._indent = IndentFinder(n_indent) if n_indent else None
        self._is_cut = False  # by a line's indentation
        self._decoder = vocab.stream(vocab.control_ids if params.special else shown)
        self._text = ""  # held back
        # tokens not emitted yet: where in _text each begins
        self._tokens: list[tuple[int, int, Logprobs | None]] = []
        self._stopping_word = ""

    def progress(self, n_processed: int, n_total: int, n_cached: int) -> None:
        """See `Sink.progress`."""
        if self._progress is not None:
            self._progress(n_processed, n_total, n_cached)

    def token(self, token: int, logprobs: Logprobs | None) -> bool:
        """See `Sink.token`."""
        text = self._decoder.push(token)
        is_held_back = self._text or self._tokens or self._indent is not None
        if text and not is_held_back and logprobs is None and not self._finder.may_begin(text):
            self._emit(Piece(text, (token,)))  # most tokens
            return True
        self._tokens.append((len(self._text), token, logprobs))
        return self._push(text)

    def finished(self, result: Result) -> None:
        """See `Sink.finished`."""
        if not self._is_cut and self._push(self._decoder.flush()):  # False: it has ended earlier
            self._send(len(self._text), tuple(self._tokens))
        if self._stopping_word:
            result = replace(
                result,
                stop_type=StopType.WORD,
                stopping_word=self._stopping_word,
                complete=None if result.complete is None else False,
            )
        elif self._is_cut:
            result = replace(result, stop_type=StopType.LIMIT)
        self._end(result)

    def failed(self, error: LamellaError) -> None:
        """See `Sink.failed`."""
        self._error(error)

    def _push(self, text: str) -> bool:
        """Emit the text that is final now. Return False if it ends before its last character."""
        n_before = len(self._text)
        self._text += text
        end = self._find_end(n_before, text)
        n = self._finder.n_decided(self._text) if end is None else end
        if n > 0:
            self._send(n, tuple(t for t in self._tokens if t[0] < n))
        return end is None

    def _find_end(self, n_before: int, text: str) -> int | None:
        """The place of a stop string, or of a line with too little indentation, whichever is first;
        None if there is none. `text` is new, and comes after `n_before` characters."""
        found = self._finder.find(self._text)
        cut = None if self._indent is None else self._indent.find(text)
        if cut is not None and (found is None or n_before + cut <= found[0]):
            self._is_cut = True
            return n_before + cut
        if found is None:
            return None
        self._stopping_word = found[1]
        return found[0]

    def _send(self, n: int, tokens: tuple[tuple[int, int, Logprobs | None], ...]) -> None:
        if n == 0 and not tokens:
            return
        probs = tuple(p for _, _, p in tokens if p is not None)
        piece = Piece(self._text[:n], tuple(token for _, token, _ in tokens), probs)
        self._text = self._text[n:]
        self._tokens = [(begin - n, t, p) for begin, t, p in self._tokens[len(tokens) :]]
        self._emit(piece)


class Generation:
    """An iterator over the pieces of one generation.

    Iterating waits for the engine; Ctrl-C interrupts the wait. The generation is cancelled if the
    loop ends early or raises, or if the last reference to the generation is dropped.
    """

    def __init__(
        self, engine: Engine, ticket: Ticket, events: queue.SimpleQueue[TextEvent]
    ) -> None:
        self._engine = engine
        self._ticket = ticket
        self._events = events
        self._ended: Result | LamellaError | None = None
        # a generation that is no longer referenced is cancelled
        weakref.finalize(self, engine.cancel, ticket).atexit = False

    def __iter__(self) -> Iterator[Piece]:
        """Yield the pieces not yet yielded.

        Raises:
            LamellaError: the generation failed; CancelledError after `cancel`.
        """
        try:
            while self._ended is None:
                event = self._events.get()
                if isinstance(event, Piece):
                    yield event
                else:
                    self._ended = event
        finally:
            self.cancel()
        if isinstance(self._ended, LamellaError):
            raise self._ended

    @property
    def ended(self) -> Result | LamellaError | None:
        """How the generation ended; None before its last piece was read."""
        return self._ended

    @property
    def result(self) -> Result:
        """How the generation ended.

        Raises:
            RequestError: it failed, or not all of its pieces have been read.
        """
        if not isinstance(self._ended, Result):
            raise RequestError("a generation has a result only after its last piece was read")
        return self._ended

    def cancel(self) -> None:
        """End the generation early; from any thread. Does nothing after its end."""
        self._engine.cancel(self._ticket)


def generate(
    engine: Engine,
    vocab: Vocab,
    prompt: Sequence[int],
    params: RequestParams,
    *,
    n_probs: int = 0,
    grammar: GrammarSpec | None = None,
    thinking: Thinking | None = None,
    shown: Container[int] = (),
) -> Generation:
    """Submit a tokenized prompt. Return an iterator over the generated text. Raises as `submit`."""
    events: queue.SimpleQueue[TextEvent] = queue.SimpleQueue()
    ticket = submit(
        engine,
        vocab,
        prompt,
        params,
        events.put,
        n_probs=n_probs,
        grammar=grammar,
        thinking=thinking,
        shown=shown,
    )
    return Generation(engine, ticket, events)


def submit(
    engine: Engine,
    vocab: Vocab,
    prompt: Sequence[int],
    params: RequestParams,
    put: Callable[[TextEvent], object],
    *,
    n_probs: int = 0,
    grammar: GrammarSpec | None = None,
    thinking: Thinking | None = None,
    shown: Container[int] = (),
) -> Ticket:
    """Submit a tokenized prompt. The engine's thread passes each event to `put`.

    `grammar` and `thinking` are those of the `Job`. `shown` are control tokens whose names are part
    of the text.

    Raises:
        RequestError, ContextSizeError, OverloadedError, ClosedError: see `Engine.submit`.
    """
    sink = TextSink(vocab, emit=put, end=put, error=put, params=params.generation, shown=shown)
    job = Job(
        prompt=tuple(prompt),
        params=params,
        sink=sink,
        grammar=grammar,
        thinking=thinking,
        n_probs=n_probs,
    )
    return engine.submit(job)
