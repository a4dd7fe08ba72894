"""What Claude Code sends becomes a prompt with each template of real models."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
from golden_data import SHARED
from vocab_makers import vocab

from lamella.model.chat.template import ChatTemplate
from lamella.runtime.chat import prepare_chat
from lamella.server.anthropic.request import translate

FILES: Final = sorted((SHARED / "chat" / "templates" / "given").glob("*.jinja"))
READ: Final = {
    "name": "Read",
    "description": "Reads a file.",
    "input_schema": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {"file_path": {"type": "string"}, "limit": {"type": "integer"}},
        "required": ["file_path"],
        "additionalProperties": False,
    },
}
USE: Final = {"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {"file_path": "a.txt"}}
RESULT: Final = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "1\thello world"}
TURNS: Final[list[dict[str, Any]]] = [
    {"role": "user", "content": [{"type": "text", "text": "Read a.txt"}]},
    {"role": "system", "content": "These agents are available: Explore"},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "I should read it.", "signature": "x"},
            {"type": "text", "text": "I read it."},
            USE,
        ],
    },
    {"role": "user", "content": [RESULT, {"type": "text", "text": "Go on."}]},
    {"role": "assistant", "content": [USE | {"id": "toolu_2"}]},
    {"role": "user", "content": [RESULT | {"tool_use_id": "toolu_2", "is_error": True}]},
]

pytestmark = pytest.mark.skipif(not FILES, reason="no shared test data")


@cache
def template(file: Path) -> ChatTemplate:
    return ChatTemplate(file.read_text(encoding="utf-8"), bos="<s>", eos="</s>")


@pytest.mark.parametrize("n_turns", [2, 4, 6])
def test_every_template_takes_it(n_turns: int) -> None:
    system = [{"type": "text", "text": "You are an agent."}]
    body = {"system": system, "messages": TURNS[:n_turns], "tools": [READ]}
    request = translate(body | {"thinking": {"type": "adaptive"}}).chat
    for file in FILES:
        chat = template(file)
        prompt = prepare_chat(chat, vocab(), request).prompt
        texts = ["These agents are available: Explore"]
        # Mistral Nemo's template prints it only before a last message of the user
        texts += ["You are an agent."] * (n_turns == 2)
        texts += ["hello world"] * (n_turns > 2) + ["Error: 1"] * (n_turns > 4)
        assert [text for text in texts if text not in prompt] == [], file.name
