"""Chat templates: messages to the text that a model was trained to continue.

A template is the GGUF's (`tokenizer.chat_template`) or ChatML, in Jinja, as Hugging Face's
transformers render it. Knows no tokens and no requests; how a template is kept within bounds is
model/chat_sandbox.py's business. Tests: tests/model/test_chat_*.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Final

from ..base.errors import RequestError
from .chat_sandbox import compile_template, render

CHATML: Final = """\
{%- for message in messages -%}
{{ '<|im_start|>' + message.role + '\\n' + (message.content or '') + '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|im_start|>assistant\\n' }}
{%- endif -%}
"""
"""The template of models that bring none, as in llama.cpp."""


class ChatTemplate:
    """One template. Immutable, for any number of threads."""

    def __init__(self, source: str | None, *, bos: str = "", eos: str = "") -> None:
        """
        Args:
            source: in Jinja; None for ChatML.
            bos: what the template sees as `bos_token`.
            eos: and as `eos_token`.

        Raises:
            RequestError: it does not compile; names the line.
        """
        self.source = CHATML if source is None else source
        self._special = {"bos_token": bos, "eos_token": eos}
        self._template = compile_template(self.source)

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        /,
        *,
        add_generation_prompt: bool = True,
        **kwargs: object,
    ) -> str:
        """The text of a conversation.

        Args:
            messages: JSON-like, with `role`, `content` and what else the template knows. Content in
                parts is given to a template that only knows text as their texts, one a line.
            add_generation_prompt: end with the start of the assistant's next message.
            kwargs: more variables of the template, as `tools`. A `messages` among them is ignored.

        Raises:
            RequestError: the template refuses the messages, fails, or exceeds its bounds.
        """
        in_parts = any(isinstance(_content(message), list) for message in messages)
        if in_parts and not self._takes_parts:
            messages = [_with_text_content(message) for message in messages]
        return self._render(messages, add_generation_prompt, kwargs)

    def _render(
        self, messages: object, add_generation_prompt: bool, more: Mapping[str, object]
    ) -> str:
        return render(
            self._template,
            {
                **self._special,
                "tools": None,
                **more,
                "messages": messages,
                "add_generation_prompt": add_generation_prompt,
            },
        )

    @cached_property
    def _takes_parts(self) -> bool:
        # No template says so, but one that knows only text fails or prints the list as it is.
        mark = "the text of a part"
        message = {"role": "user", "content": [{"type": "text", "text": mark}]}
        try:
            before, found, _ = self._render([message], True, {}).partition(mark)
        except RequestError:
            return False
        return bool(found) and not before.endswith(("'text': '", '"text": "', '"text":"'))


def _content(message: object) -> object:
    return message.get("content") if isinstance(message, Mapping) else None


def _with_text_content(message: Mapping[str, object]) -> Mapping[str, object]:
    """The message with its text parts joined, if they are all it has: as llama.cpp, by lines."""
    content = _content(message)
    if not isinstance(content, list):
        return message
    texts = [part.get("text") for part in content if isinstance(part, Mapping)]
    strings = [text for text in texts if isinstance(text, str)]
    if len(strings) < len(content):
        return message
    return {**message, "content": "\n".join(strings)}
