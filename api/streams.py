"""Streams of generated text, for `for` and for `async for`.

Tested by tests/api/test_complete.py and tests/api/test_async.py.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType

from .base.errors import CancelledError, LamellaError, RequestError
from .completion import Completion, completion
from .model.chat.message import ArgumentsDelta, CallDelta, ChatMessage, Delta
from .runtime.async_text import AsyncGeneration
from .runtime.chat import Parser, PlainParser
from .runtime.engine.job import Result
from .runtime.functions import FunctionTool
from .runtime.text import Generation, Piece

# submits the request to the engine; takes long for a long prompt
Start = Callable[[asyncio.AbstractEventLoop], tuple[Parser, AsyncGeneration]]


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A piece of a call of a tool, with OpenAI's names.

    Attributes:
        index: the number of the call in the answer, from 0.
        id: a name for the call, in its first piece; else "".
        name: the tool's name, in the first piece of the call; else "".
        arguments: the next piece of the JSON text of the arguments.
    """

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


class TextPiece(str):
    """A piece of a stream: a `str` with the text. In chats it may have other parts too.

    Attributes:
        text: the text; it is also what `str`, `print` and `"".join` see.
        reasoning: the next piece of the reasoning.
        tool_calls: the next pieces of calls of tools.
    """

    text: str
    reasoning: str
    tool_calls: tuple[CallPiece, ...]

    def __new__(
        cls, text: str, reasoning: str = "", tool_calls: tuple[CallPiece, ...] = ()
    ) -> TextPiece:
        piece = super().__new__(cls, text)
        piece.text, piece.reasoning, piece.tool_calls = text, reasoning, tool_calls
        return piece

    @property
    def is_empty(self) -> bool:
        """True if the piece has no part."""
        return not (self.text or self.reasoning or self.tool_calls)


class _Received:
    """What a stream has received: the answer and its tokens."""

    def __init__(
        self, parser: Parser, json_schema: object, functions: Mapping[str, FunctionTool]
    ) -> None:
        self._parser = parser
        self._json_schema = json_schema
        self._functions = functions
        self._tokens: list[int] = []
        self._has_all = False  # True after the last piece
        self._closed = False

    @property
    def text(self) -> str:
        """The text so far."""
        return self._parser.message.content

    def _add(self, piece: Piece | None) -> TextPiece:
        """What a piece of the generation adds; None: the generation has ended."""
        if piece is not None:
            self._tokens += piece.tokens
            return text_piece(self._parser.push(piece.text))
        self._has_all = True
        return text_piece(self._parser.finish())

    def _completion(self, ended: Result | LamellaError | None) -> Completion:
        if isinstance(ended, Result):
            return completion(
                self._parser.message, self._tokens, ended, self._json_schema, self._functions
            )
        if self._closed or ended is None:
            raise CancelledError("the stream was closed before its end")
        raise ended


def text_piece(deltas: Sequence[Delta]) -> TextPiece:
    """The piece of a stream with these deltas."""
    added, calls = ChatMessage(), []
    for delta in deltas:
        match delta:
            case CallDelta(index, id, name):
                calls.append(CallPiece(index, id, name))
            case ArgumentsDelta(index, text):
                calls.append(CallPiece(index, arguments=text))
            case _:
                added.add([delta])
    return TextPiece(added.content, added.reasoning, tuple(calls))


class TextStream(_Received):
    """Generated text in pieces, returned by `Model.chat_stream` and `Model.complete_stream`.

    The generation is cancelled when the stream is closed, at the end of a `with` block, and when
    nothing refers to the stream any more. One thread at a time may read it. Others may call
    `close`.
    """

    def __init__(
        self,
        model: object,
        generation: Generation,
        parser: Parser,
        json_schema: object,
        functions: Mapping[str, FunctionTool],
    ) -> None:
        super().__init__(parser, json_schema, functions)
        self._model = model  # stays open until the stream ends
        self._generation = generation
        self._pieces = iter(generation)
        self._reading = threading.Lock()

    def __iter__(self) -> TextStream:
        return self

    def __next__(self) -> TextPiece:
        """The next piece. Ctrl-C interrupts the wait, and cancels the generation.

        Raises:
            RequestError: another thread waits for a piece.
            LamellaError: the generation failed, or the model was closed.
        """
        if not self._reading.acquire(blocking=False):
            raise RequestError("another thread reads this stream: each thread needs its own stream")
        piece = TextPiece("")
        try:
            while piece.is_empty and not (self._closed or self._has_all):
                piece = self._add(next(self._pieces, None))
        except CancelledError:
            if not self._closed:
                raise
        finally:
            self._reading.release()
        if piece.is_empty:
            raise StopIteration
        return piece

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
    """Generated text in pieces, for one task at a time of one event loop: the twin of `TextStream`.

    The generation starts with the first wait for a piece, and raises its errors there. It is
    cancelled when the task is cancelled, when the stream is closed, at the end of an `async with`
    block, and when nothing refers to the stream any more.
    """

    def __init__(
        self,
        model: object,
        start: Start,
        json_schema: object,
        functions: Mapping[str, FunctionTool],
    ) -> None:
        super().__init__(PlainParser(), json_schema, functions)
        self._model = model  # stays open until the stream ends
        self._start = start
        self._generation: AsyncGeneration | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # that began it
        self._is_read = False  # a task waits for a piece

    def __aiter__(self) -> AsyncTextStream:
        return self

    async def __anext__(self) -> TextPiece:
        """The next piece. Raises as the method that made the stream, and as `TextStream`; also
        RequestError while another task waits for a piece, and in another event loop."""
        if self._is_read:
            raise RequestError("another task reads this stream: each task needs its own stream")
        self._is_read = True
        piece = TextPiece("")
        try:
            while piece.is_empty and not (self._closed or self._has_all):
                piece = self._add(await anext(await self._started(), None))
        except CancelledError:
            if not self._closed:
                raise
        finally:
            self._is_read = False
        if piece.is_empty:
            raise StopAsyncIteration
        return piece

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
        loop = asyncio.get_running_loop()
        self._loop = self._loop or loop
        if loop is not self._loop:
            raise RequestError(
                "another event loop began this stream: each loop needs its own stream"
            )
        if self._generation is None:
            try:
                # if the task is cancelled here, nothing refers to the generation: it is cancelled
                parser, generation = await asyncio.to_thread(self._start, loop)
            except BaseException:
                self._closed = True
                raise
            self._parser, self._generation = parser, generation
            if self._closed:  # meanwhile, by another task
                generation.cancel()
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
