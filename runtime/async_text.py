"""Generations for coroutines: an async iterator over the pieces of text.

The engine's thread passes events to the event loop, so no task ever blocks the loop. Knows no HTTP.
Tested by tests/api/test_async.py.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Container, Sequence
from contextlib import suppress

from ..base.errors import LamellaError
from ..model.guide import GrammarSpec
from ..model.vocab import Vocab
from .engine.engine import Engine
from .engine.job import Result
from .engine.thinking import Thinking
from .engine.ticket import Ticket
from .params import RequestParams
from .text import Piece, TextEvent, submit


class AsyncGeneration:
    """An async iterator over the pieces of one generation, for one event loop.

    The generation is cancelled if the task that waits for a piece is cancelled, or if the last
    reference to the generation is dropped.
    """

    def __init__(self, engine: Engine, ticket: Ticket, events: asyncio.Queue[TextEvent]) -> None:
        self._engine = engine
        self._ticket = ticket
        self._events = events
        self._ended: Result | LamellaError | None = None
        weakref.finalize(self, engine.cancel, ticket).atexit = False

    def __aiter__(self) -> AsyncGeneration:
        return self

    async def __anext__(self) -> Piece:
        """The next piece.

        Raises:
            LamellaError: the generation failed; CancelledError after `cancel`.
        """
        if self._ended is None:
            event = await self._next_event()
            if isinstance(event, Piece):
                return event
            self._ended = event
        if isinstance(self._ended, LamellaError):
            raise self._ended
        raise StopAsyncIteration

    @property
    def ended(self) -> Result | LamellaError | None:
        """How the generation ended; None before its last piece was read."""
        return self._ended

    def cancel(self) -> None:
        """End the generation early; from any thread. Does nothing after its end."""
        self._engine.cancel(self._ticket)

    async def _next_event(self) -> TextEvent:
        try:
            return await self._events.get()
        except BaseException:  # the task was cancelled
            self.cancel()
            raise


def generate_async(
    engine: Engine,
    vocab: Vocab,
    prompt: Sequence[int],
    params: RequestParams,
    *,
    loop: asyncio.AbstractEventLoop,
    grammar: GrammarSpec | None = None,
    thinking: Thinking | None = None,
    shown: Container[int] = (),
) -> AsyncGeneration:
    """Submit a tokenized prompt. Return an iterator for the tasks of `loop`.

    May run in any thread: a sampler reads the whole prompt here, which takes long for a long one.
    The arguments are those of `submit`.

    Raises:
        RequestError, ContextSizeError, OverloadedError, ClosedError: see `Engine.submit`.
    """
    events: asyncio.Queue[TextEvent] = asyncio.Queue()

    def put(event: TextEvent) -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(events.put_nowait, event)

    ticket = submit(
        engine,
        vocab,
        prompt,
        params,
        put,
        grammar=grammar,
        thinking=thinking,
        shown=shown,
    )
    return AsyncGeneration(engine, ticket, events)
