"""A conversation with a model: its messages, and new answers to them.

An answer may have calls of tools; it is continued after their results. A conversation that no
longer fits the context goes on without its oldest messages. Knows no terminal.
Tested by tests/cli/test_chat.py and tests/cli/test_chat_tools.py.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Final

from ..base.errors import RequestError
from ..base.replacing import write_file
from ..base.utf8 import check_utf8
from ..model.chat.message import ChatMessage, Delta, ReasoningFormat, Tool, ToolCall
from ..runtime.answers import answer_message, form_of, prepared_tokens, result_message
from ..runtime.chat import ChatRequest, PreparedChat
from ..runtime.engine.job import Result
from ..runtime.instance import Instance
from ..runtime.messages import Message, check_messages
from ..runtime.params import RequestParams
from ..runtime.text import Generation, generate

ROOM: Final = 4  # 1/ROOM of the context is reserved for the answer


def incomplete_note(result: Result) -> str:
    """A line about a text that does not match its whole grammar; "" if it does or has none."""
    if result.complete is not False:
        return ""
    word = result.stopping_word
    end = f"the stop text {word!r}" if word else "a limit (-n, or the size of the context)"
    return f"the text is incomplete: {end} ended it before it matched the whole grammar"


class Conversation:
    """Messages in order. `params` may be changed between answers.

    `n_left_out`: the number of messages after the system prompt that the last prompt left out.
    `incomplete`: a line about the last answer if a limit cut it, see `incomplete_note`.
    `calls`: the calls of the last answer that have no results yet.
    """

    def __init__(
        self,
        instance: Instance,
        params: RequestParams,
        *,
        system: str = "",
        tools: Sequence[Tool] = (),
    ) -> None:
        self.params = params
        self._instance = instance
        self._system = system
        self._tools = tools
        self.incomplete = ""
        self.calls: list[ToolCall] = []
        self.messages: list[Message] = []
        self.reset()

    def reset(self) -> None:
        """Drop all messages but the system prompt."""
        self.messages = []
        self.n_left_out = 0
        self.set_system(self._system)

    def set_system(self, text: str) -> None:
        """Replace the system prompt. An empty one is left out.

        Raises:
            RequestError: the text is not valid UTF-8.
        """
        check_utf8("the system prompt", text)
        self._system = text
        head: list[Message] = [{"role": "system", "content": text}] if text else []
        self.messages = head + self.messages[self._n_head() :]

    def ask(self, text: str) -> Generator[Delta]:
        """Add a question and yield the deltas of its answer. An interrupted answer stays, without
        its calls.

        Raises:
            RequestError: it is not valid UTF-8, or the template refuses it; it is not added.
            ContextSizeError: the question alone is too long; it is not added.
        """
        check_utf8("the message", text)
        n_left_out = self.n_left_out
        self.messages.append({"role": "user", "content": text})
        try:
            return self._answer()
        except BaseException:
            self.messages.pop()
            self.n_left_out = n_left_out
            raise

    def add_result(self, call: ToolCall, text: str) -> None:
        """Add the result of a call. A text that would fill the context is cut in its middle."""
        text = text.encode(errors="replace").decode()  # a tool may return any text
        self.messages.append(result_message(call, self._shortened(text)))
        self.calls.remove(call)

    def _shortened(self, text: str) -> str:
        """The text, without its middle if it needs more than 1/ROOM of the context."""
        n_max = self._instance.n_ctx // ROOM
        ids = self._instance.vocab.tokenize(text, add_special=False)
        if len(ids) <= n_max:
            return text
        half = len(text) * n_max // len(ids) // 2
        n_cut = len(text) - 2 * half
        return f"{text[:half]}\n[{n_cut} characters are left out]\n{text[-half:]}"

    def resume(self) -> Generator[Delta]:
        """Yield the deltas of the answer that follows the results of all calls.

        Raises:
            RequestError: the template refuses the messages.
            ContextSizeError: the results are too long.
        """
        assert not self.calls, "calls without results"
        return self._answer()

    def regenerate(self) -> Generator[Delta]:
        """Answer the last question again.

        Raises:
            RequestError: there is no question.
        """
        if not any(m["role"] == "user" for m in self.messages):
            raise RequestError("there is no question to answer again")
        while self.messages[-1]["role"] != "user":
            self.messages.pop()
        return self._answer()

    def _answer(self) -> Generator[Delta]:
        prepared, ids = self._prompt()
        engine, vocab = self._instance.engine, self._instance.vocab
        generation = generate(engine, vocab, ids, self.params, **form_of(prepared))
        return self._deltas(prepared, generation)

    def _prompt(self) -> tuple[PreparedChat, list[int]]:
        """Return the prompt and its tokens. It omits the `n_left_out` oldest messages.

        If it leaves no room for an answer, omit more, up to a question, until half of the context
        is free. The rest must then be evaluated again, so half is freed to make this rare.
        """
        head, rest = self.messages[: self._n_head()], self.messages[self._n_head() :]
        n_max = self._instance.n_ctx - self._instance.n_ctx // ROOM
        prepared, ids = self._prompt_of(head + rest[self.n_left_out :])
        if len(ids) <= n_max:
            return prepared, ids
        asked = [i for i, m in enumerate(rest) if m["role"] == "user" and i > self.n_left_out]
        for begin in asked:
            self.n_left_out = begin
            prepared, ids = self._prompt_of(head + rest[begin:])
            if len(ids) <= self._instance.n_ctx // 2:
                break
        return prepared, ids

    def _prompt_of(self, messages: Sequence[Message]) -> tuple[PreparedChat, list[int]]:
        request = ChatRequest(
            messages=messages,
            tools=self._tools,
            reasoning_format=ReasoningFormat(self.params.generation.reasoning_format),
            response=self.params.grammar.spec,
        )
        return prepared_tokens(self._instance, request)

    def _n_head(self) -> int:
        """The number of system prompts, 0 or 1."""
        return sum(message["role"] == "system" for message in self.messages[:1])

    def _deltas(self, prepared: PreparedChat, generation: Generation) -> Generator[Delta]:
        parser, self.incomplete, self.calls = prepared.parser(), "", []
        is_whole = False
        try:
            for piece in generation:
                yield from parser.push(piece.text)
            yield from parser.finish()
            is_whole = True
        finally:
            generation.cancel()
            if not is_whole:
                parser.finish()
            self._end_answer(parser.message, generation.result if is_whole else None)

    def _end_answer(self, message: ChatMessage, result: Result | None) -> None:
        """Add an answer to the messages. One that was interrupted has no result, and no calls."""
        calls = [call for call in message.calls if call.is_complete] if result else []
        self.calls = list(calls)
        self.messages.append(answer_message(message, calls))
        if result is not None:
            self.incomplete = incomplete_note(result)
            cut = [call.name for call in message.calls if not call.is_complete]
            if cut:
                self.incomplete = f"the call of {cut[0]} is not whole: it is left out"

    # --- files ---

    def save(self, path: Path) -> None:
        """Write the messages as JSON, or replace an older file by them.

        Raises:
            RequestError: the file cannot be written; an older one is as it was.
        """
        text = json.dumps({"messages": self.messages}, ensure_ascii=False, indent=1)
        write_file(path, text.encode() + b"\n")

    def load(self, path: Path) -> None:
        """Replace the messages by those of a file.

        Raises:
            RequestError: the file cannot be read or is not a conversation; nothing is changed.
        """
        try:
            loaded = json.loads(path.read_text(encoding="utf-8-sig"))
        except OSError as e:
            raise RequestError(f"{path} cannot be read: {e.strerror}") from e
        except (ValueError, RecursionError) as e:
            raise RequestError(f"{path} is not a saved conversation: {e}") from e
        messages = loaded.get("messages") if isinstance(loaded, dict) else None
        if not isinstance(messages, list):
            raise RequestError(f'{path} is not a saved conversation: it has no list of "messages"')
        try:
            self.messages = check_messages(messages) if messages else []
        except RequestError as e:
            raise RequestError(f"{path} is not a saved conversation: {e}") from None
        self.n_left_out = 0
        self.calls = []
