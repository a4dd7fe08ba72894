"""Chat templates: render messages to the text that a model was trained to continue.

A template is the user's, the one in the model's file, or a default (default.py). It is written
in Jinja, and rendered as Hugging Face transformers does. sandbox.py bounds its time and
memory. Knows no tokens and no requests. Tests: tests/model/test_chat_*.py.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from ...base.errors import RequestError
from ..gguf import Metadata
from .builtin import CHATML, TEMPLATES, template_source
from .capabilities import SECONDS_MAX, Capabilities
from .clock import date_variables
from .default import default_template
from .rewrite import rewritten
from .trial import LENGTH_TRUSTED, check_compiles

if TYPE_CHECKING:
    from jinja2 import Template

_KEY: Final = "tokenizer.chat_template"
NO_TEMPLATE: Final = (
    "this model has no chat template: it was probably trained to continue texts, not to chat. "
    "Chats use {}; --chat-template chooses another template"
)
_COMPILES: Final = frozenset(TEMPLATES.values())
# variables that templates expect, beside those of a request
_DEFAULTS: Final = {"enable_thinking": True}


class ChatTemplate:
    """A compiled chat template. Immutable and thread-safe.

    Attributes:
        source: its Jinja source.
        variables: default values of variables.
        warning: what a user should know before chats; "" for nothing.
        is_broken: True if every `render` fails.
    """

    source: str
    variables: Mapping[str, object]
    warning: str = ""
    is_broken: bool = False

    def __init__(
        self,
        source: str | None,
        *,
        bos: str = "",
        eos: str = "",
        variables: Mapping[str, object] | None = None,
    ) -> None:
        """
        Args:
            source: Jinja source or the name of a built-in template; None for ChatML.
            bos: value of the template's `bos_token`.
            eos: value of the template's `eos_token`.
            variables: default values of more variables, such as `enable_thinking`.

        Raises:
            RequestError: an unknown name, or the template does not compile; names the line.
        """
        self.source = CHATML if source is None else template_source(source)
        self.variables = {"bos_token": bos, "eos_token": eos, **_DEFAULTS, **(variables or {})}
        if self.source not in _COMPILES:
            _ = self._template  # raises the error of a broken one

    @cached_property
    def _template(self) -> Template:
        from .sandbox import SOURCE_MAX, compile_template  # noqa: PLC0415 - imports jinja2

        if LENGTH_TRUSTED < len(self.source) <= SOURCE_MAX:
            check_compiles(self.source)
        return compile_template(self.source)

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        /,
        *,
        add_generation_prompt: bool = True,
        **kwargs: object,
    ) -> str:
        """Return the text of a conversation.

        Args:
            messages: in OpenAI's shape, with any other keys that the template reads. rewrite.py
                changes what the template cannot take.
            add_generation_prompt: end with the start of the assistant's next message.
            kwargs: more variables of the template, such as `tools`. `messages` is ignored.

        Raises:
            RequestError: the template refuses the messages, fails, or exceeds its bounds.
        """
        can = self.capabilities
        variables = {
            **({} if "tools" in kwargs else {"tools": can.no_tools}),
            **kwargs,
            "messages": rewritten(messages, can),
            "add_generation_prompt": add_generation_prompt,
        }
        text = self._render(variables)
        # gpt-oss's template ends the last answer as if nothing followed it
        is_final = not add_generation_prompt and text.endswith("<|return|>")
        return text.removesuffix("<|return|>") + "<|end|>" if is_final else text

    @cached_property
    def capabilities(self) -> Capabilities:
        """What the template can do with a conversation."""

        def probe(variables: Mapping[str, object]) -> str:
            return self._render({"add_generation_prompt": True, **variables}, SECONDS_MAX)

        sorts = re.search(r"sort\(\s*attribute\s*=\s*['\"]type", self.source)
        # models of this prompt go on reasoning forever (llama.cpp's issue 24181)
        needs_trimmed = "the following functions in JSONSchema format" in self.source
        return Capabilities(probe, sorts is not None, needs_trimmed)

    def _render(self, variables: Mapping[str, object], seconds: float | None = None) -> str:
        from .sandbox import render  # noqa: PLC0415 - imports jinja2

        given = {**self.variables, **variables}
        known = {**date_variables(), **_other_names(given), **given}
        return render(self._template, known, seconds=seconds)


def _other_names(given: Mapping[str, object]) -> dict[str, object]:
    """What templates call `preserve_reasoning` and `reasoning_effort`, as in llama.cpp."""
    found: dict[str, object] = {}
    preserves = given.get("preserve_reasoning")
    if isinstance(preserves, bool):
        found["preserve_thinking"] = preserves
        names = ("clear_thinking", "truncate_history_thinking", "drop_thinking")
        found |= dict.fromkeys(names, not preserves)
    if "reasoning_effort" in given:
        found["reasoning_strength"] = given["reasoning_effort"]
    return found


class _BrokenTemplate(ChatTemplate):
    """A template that does not compile: its model can do all else."""

    is_broken = True

    def __init__(self, source: str, error: RequestError) -> None:
        self.source = source
        self.variables = {}
        self.warning = (
            f"this model cannot chat: {error}. --chat-template replaces the template of the file"
        )

    def _render(self, *_: object) -> str:
        raise RequestError(self.warning)


def model_template(
    metadata: Metadata, special_names: Collection[str] = (), **options: Any
) -> ChatTemplate:
    """The chat template in a model's file, or a default. A broken one raises when it is used.

    Args:
        metadata: the file's metadata.
        special_names: the texts of control and user-defined tokens, which choose the default.
        options: those of `ChatTemplate`.
    """
    source = metadata.str(_KEY, "") or metadata.str(f"{_KEY}.tool_use", "")
    if not source:
        name, reason = default_template(metadata, special_names)
        chat = ChatTemplate(name, **options)
        chat.warning = NO_TEMPLATE.format(f"{name}, {reason}" if reason else name)
        return chat
    try:
        return ChatTemplate(TEMPLATES.get(source, source), **options)
    except RequestError as e:
        return _BrokenTemplate(source, e)
