"""The deltas of an answer, translated to Anthropic's content blocks and the events of a stream.

Blocks come in order: one is closed before the next one begins. Pure.
Tested by tests/server/test_anthropic_blocks.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

from pydantic_core import from_json

from ...model.chat.message import (
    ArgumentsDelta,
    CallDelta,
    ContentDelta,
    Delta,
    ReasoningDelta,
)

Json = dict[str, Any]

# Anthropic signs thinking blocks, and clients send them back; any signature is accepted
SIGNATURE: Final = "bGFtZWxsYQ=="

# the blocks of deltas with texts
KINDS: Final[dict[type[Delta], str]] = {
    ReasoningDelta: "thinking",
    ContentDelta: "text",
    ArgumentsDelta: "tool_use",
}


class Blocks:
    """The content blocks of an answer so far."""

    def __init__(self, *, shows_thinking: bool = True) -> None:
        self._shows_thinking = shows_thinking
        self._n_blocks = 0
        self._kind = ""  # of the open block; "" if none is open

    def add(self, deltas: Iterable[Delta]) -> Iterator[Json]:
        """The events for more deltas."""
        for delta in deltas:
            match delta:
                case ReasoningDelta(text):
                    yield from self._open("thinking", {"thinking": "", "signature": ""})
                    if self._shows_thinking:
                        yield self._delta({"type": "thinking_delta", "thinking": text})
                case ContentDelta(text):
                    yield from self._open("text", {"text": ""})
                    yield self._delta({"type": "text_delta", "text": text})
                case CallDelta(_, id, name):
                    yield from self.close()
                    yield from self._open("tool_use", {"id": id, "name": name, "input": {}})
                case ArgumentsDelta(_, text):
                    yield self._delta({"type": "input_json_delta", "partial_json": text})

    def continues(self, delta: Delta) -> bool:
        """True if a delta is one event, which differs only in its text from others of its block."""
        is_shown = self._shows_thinking or self._kind != "thinking"
        return is_shown and KINDS.get(type(delta)) == self._kind

    def close(self) -> Iterator[Json]:
        """The events that end the open block, if there is one."""
        if not self._kind:
            return
        if self._kind == "thinking":
            yield self._delta({"type": "signature_delta", "signature": SIGNATURE})
        yield {"type": "content_block_stop", "index": self._n_blocks - 1}
        self._kind = ""

    def _open(self, kind: str, empty: Json) -> Iterator[Json]:
        """The events that begin a block, unless one of its kind is open."""
        if self._kind == kind:
            return
        yield from self.close()
        self._kind = kind
        self._n_blocks += 1
        block = {"type": kind, **empty}
        yield {"type": "content_block_start", "index": self._n_blocks - 1, "content_block": block}

    def _delta(self, delta: Json) -> Json:
        return {"type": "content_block_delta", "index": self._n_blocks - 1, "delta": delta}


class WholeBlocks:
    """The content blocks that the events of an answer add up to.

    Attributes:
        blocks: the blocks in order; the last one is whole once it is closed.
    """

    def __init__(self) -> None:
        self.blocks: list[Json] = []
        self._pieces: list[str] = []

    def add(self, events: Iterable[Json]) -> None:
        """Take more events."""
        for event in events:
            match event:
                case {"content_block": block}:
                    self.blocks.append(dict(block))
                case {"delta": {"signature": signature}}:
                    self.blocks[-1]["signature"] = signature
                case {"delta": {"text": text} | {"thinking": text} | {"partial_json": text}}:
                    self._pieces.append(text)
                case _:
                    self._end(self.blocks[-1])

    def _end(self, block: Json) -> None:
        text, self._pieces = "".join(self._pieces), []
        if block["type"] == "tool_use":
            block["input"] = _arguments(text)
        else:
            block[block["type"]] = text


def _arguments(text: str) -> Any:
    """The arguments of a call. Those of a call that a limit cut off are as far as they came; those
    with numbers that JSON cannot write are left out."""
    try:
        found = from_json(text, allow_partial=True)
        json.dumps(found, allow_nan=False)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
