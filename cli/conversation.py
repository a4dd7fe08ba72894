"""A conversation with a model: its messages, and new answers to them.

A conversation that no longer fits the context goes on without its oldest messages. Knows no
terminal.
Tested by tests/cli/test_chat.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ..base.errors import RequestError
from ..base.utf8 import check_utf8
from ..runtime.engine.job import Result
from ..runtime.instance import Instance
from ..runtime.params import RequestParams
from ..runtime.text import Generation, generate

Message = dict[str, str]

ROOM: Final = 4  # 1/ROOM of the context is reserved for the answer


def chat_tokens(instance: Instance, messages: list[Message]) -> list[int]:
    """The prompt for an answer to messages.

    Raises:
        RequestError: the chat template refuses the messages.
    """
    text = instance.chat.render(messages, add_generation_prompt=True)
    return instance.vocab.tokenize(instance.vocab.without_bos(text), parse_special=True)


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
    `incomplete`: see `incomplete_note`, about the last answer.
    """

    def __init__(
        self,
        instance: Instance,
        params: RequestParams,
        *,
        system: str = "",
    ) -> None:
        self.params = params
        self._instance = instance
        self._system = system
        self.incomplete = ""
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
        head = [{"role": "system", "content": text}] if text else []
        self.messages = head + self.messages[self._n_head() :]

    def ask(self, text: str) -> Iterator[str]:
        """Add a question and yield pieces of its answer. An interrupted answer stays.

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

    def regenerate(self) -> Iterator[str]:
        """Answer the last question again.

        Raises:
            RequestError: there is no question.
        """
        if not any(m["role"] == "user" for m in self.messages):
            raise RequestError("there is no question to answer again")
        while self.messages[-1]["role"] != "user":
            self.messages.pop()
        return self._answer()

    def _answer(self) -> Iterator[str]:
        instance = self._instance
        generation = generate(instance.engine, instance.vocab, self._prompt(), self.params)
        return self._pieces(generation)

    def _prompt(self) -> list[int]:
        """Return the prompt. It omits the `n_left_out` oldest messages.

        If it leaves no room for an answer, omit more, up to a question, until half of the context
        is free. The rest must then be evaluated again, so half is freed to make this rare.
        """
        head, rest = self.messages[: self._n_head()], self.messages[self._n_head() :]
        n_max = self._instance.n_ctx - self._instance.n_ctx // ROOM
        ids = chat_tokens(self._instance, head + rest[self.n_left_out :])
        if len(ids) <= n_max:
            return ids
        asked = [i for i, m in enumerate(rest) if m["role"] == "user" and i > self.n_left_out]
        for begin in asked:
            self.n_left_out = begin
            ids = chat_tokens(self._instance, head + rest[begin:])
            if len(ids) <= self._instance.n_ctx // 2:
                break
        return ids

    def _n_head(self) -> int:
        """The number of system prompts, 0 or 1."""
        return sum(message["role"] == "system" for message in self.messages[:1])

    def _pieces(self, generation: Generation) -> Iterator[str]:
        answer, self.incomplete = "", ""
        try:
            for piece in generation:
                answer += piece.text
                yield piece.text
            self.incomplete = incomplete_note(generation.result)
        finally:
            generation.cancel()
            self.messages.append({"role": "assistant", "content": answer})

    # --- files ---

    def save(self, path: Path) -> None:
        """Write the messages as JSON.

        Raises:
            RequestError: the file cannot be written.
        """
        text = json.dumps({"messages": self.messages}, ensure_ascii=False, indent=1)
        try:
            path.write_text(text + "\n", encoding="utf-8")
        except OSError as e:
            raise RequestError(f"{path} cannot be written: {e.strerror}") from e

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
        if not isinstance(messages, list) or not all(_is_message(m) for m in messages):
            raise RequestError(f'{path} is not a saved conversation: it has no list of "messages"')
        check_utf8(str(path), "".join(m["content"] for m in messages))
        self.messages = [{"role": m["role"], "content": m["content"]} for m in messages]
        self.n_left_out = 0


def _is_message(m: object) -> bool:
    return isinstance(m, dict) and all(isinstance(m.get(k), str) for k in ("role", "content"))
