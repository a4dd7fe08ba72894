"""What a request gives the engine to do: its prompts, and how to continue them.

Knows no connection and no reply. Tested by tests/server/test_http_prompts.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ..model.guide import GrammarSpec
from ..runtime.chat import PreparedChat
from ..runtime.params import RequestParams
from .schema import GenerationBody

Prompt = tuple[int, ...]

# the paths in errors of grammars and in the field `constraint`
_TOOL: Final = re.compile(r"tools\[(\d+)\]\.parameters")
_SCHEMA: Final = re.compile(r"^json_schema\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationTask:
    """The work of one request.

    Attributes:
        body: the request's fields.
        params: how to continue the prompts.
        prompts: their tokens; each is continued `body.n_choices` times.
        chat: the prepared chat, if the task is one.
        tool_paths: where the request has the schemas of the chat's tools, in their order.
        schema_path: where it has the schema of the text.
    """

    body: GenerationBody
    params: RequestParams
    prompts: Sequence[Prompt]
    chat: PreparedChat | None = None
    tool_paths: Sequence[str] = ()
    schema_path: str = "json_schema"

    @property
    def grammar(self) -> GrammarSpec | None:
        """The grammar of the texts; None if they are free."""
        if self.chat is None or self.body.grammar_lazy:
            return self.params.grammar.spec
        return self.chat.grammar

    def own_paths(self, text: str) -> str:
        """Return a text with the path of a schema, now with the path that the request has."""
        text = _TOOL.sub(self._tool_path, text, count=1)
        return _SCHEMA.sub(lambda _: self.schema_path, text)

    def _tool_path(self, inner: re.Match[str]) -> str:
        number = int(inner[1])
        return self.tool_paths[number] if number < len(self.tool_paths) else inner[0]
