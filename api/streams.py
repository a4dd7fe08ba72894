"""Streams of generated text, for `for` and for `async for`.

Tested by tests/api/test_complete.py and tests/api/test_async.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

from .base.errors import CancelledError, LamellaError, RequestError
from .completion import Completion, completion
from .runtime.async_text import AsyncGeneration
from .runtime.engine.job import Result
from .runtime.text import Generation, Piece

# submits the request to the engine; takes long for a long prompt
Start = Callable[[asyncio.AbstractEventLoop], AsyncGeneration]


class _Received:
    """The text and the tokens that a stream has received."""

    def __init__(self, json_schema: object) -> None:
        self._json_schema = json_schema
        self._texts: list[str] = []
        self._tokens: list[int] = []
        self._closed = False

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._texts)

    def _add(self, piece: Piece) -> str:
        self._texts.append(piece.text)
        self._tokens += piece.tokens
        return piece.text

    def _completion(self, ended: Result | LamellaError | None) -> Completion:
        if isinstance(ended, Result):
            return completion(self.text, self._tokens, ended, self._json_schema)
        if self._closed or ended is None:
            raise CancelledError("the stream was closed before its end")
        raise ended


class TextStream(_Received):
    """Generated text in pieces, returned by `Model.chat_stream` and `Model.complete_stream`.

    The generation is cancelled when the stream is closed, at the end of a `with` block, and when
    nothing refers to the stream any more. Other threads may call `close`.
    """

    def __init__(self, model: object, generation: Generation, json_schema: object = None) -> None:
        super().__init__(json_schema)
        self._model = model  # stays open until the stream ends
        self._generation = generation
        self._pieces = iter(generation)

    def __iter__(self) -> TextStream:
        return self

    def __next__(self) -> str:
        """The next piece. Ctrl-C interrupts the wait, and cancels the generation.

        Raises:
            LamellaError: the generation failed, or the model was closed.
        """
        try:
            while not self._closed:
                text = self._add(next(self._pieces))
                if text:
                    return text
        except CancelledError:
            if not self._closed:
                raise
        raise StopIteration

    def result(self) -> Completion:
        """Wait for the end. Return the whole text, and how it ended.

        Raises:
            CancelledError: the stream was closed before its end.
            LamellaError: the generation failed.
        """
        for _ in self:
            pass
        return self._completion(self._generation.ended)

    def close(self) -> None:
        """Cancel the generation. Does nothing after its end."""
        self._closed = True
        self._generation.cancel()

    def __enter__(self) -> TextStream:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class AsyncTextStream(_Received):
    """Generated text in pieces, for one task at a time: the twin of `TextStream`.

    The generation starts with the first wait for a piece, and raises its errors there. It is
    cancelled when the task is cancelled, when the stream is closed, at the end of an `async with`
    block, and when nothing refers to the stream any more.
    """

    def __init__(self, model: object, start: Start, json_schema: object = None) -> None:
        super().__init__(json_schema)
        self._model = model  # stays open until the stream ends
        self._start = start
        self._generation: AsyncGeneration | None = None
        self._is_read = False  # a task waits for a piece

    def __aiter__(self) -> AsyncTextStream:
        return self

    async def __anext__(self) -> str:
        """The next piece. Raises as the method that made the stream, and as `TextStream`; also
        RequestError while another task waits for a piece."""
        if self._is_read:
            raise RequestError("another task reads this stream: each task needs its own stream")
        self._is_read = True
        try:
            while not self._closed:
                text = self._add(await anext(await self._started()))
                if text:
                    return text
        except CancelledError:
            if not self._closed:
                raise
        finally:
            self._is_read = False
        raise StopAsyncIteration

    async def result(self) -> Completion:
        """Wait for the end. Return the whole text, and how it ended.

        Raises as `TextStream.result`.
        """
        async for _ in self:
            pass
        return self._completion(None if self._generation is None else self._generation.ended)

    async def aclose(self) -> None:
        """Cancel the generation. Does nothing after its end."""
        self._closed = True
        if self._generation is not None:
            self._generation.cancel()

    async def _started(self) -> AsyncGeneration:
        if self._generation is None:
            loop = asyncio.get_running_loop()
            try:
                # if the task is cancelled here, nothing refers to the generation: it is cancelled
                self._generation = await asyncio.to_thread(self._start, loop)
            except BaseException:
                self._closed = True
                raise
            if self._closed:  # meanwhile, by another task
                self._generation.cancel()
        return self._generation

    async def __aenter__(self) -> AsyncTextStream:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()
