"""Anthropic's system prompt and messages, translated to OpenAI's shape.

A user's turn with results of tools becomes one message of the role `tool` for each result, and one
of the user for the texts. Consecutive messages of one role are one turn. Pure functions.
Tested by tests/server/test_anthropic_request.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from ...base.json_depth import check_depth
from ...runtime.messages import N_MESSAGES_MAX, Message
from ..given import Given

N_BLOCKS_MAX: Final = 16384  # of one message
# Claude Code's first line of the system prompt. It changes with every request, so with it no prefix
# of the prompt could be reused.
BILLING: Final = "x-anthropic-billing-header:"
# Claude Code's tag for texts in the user's turn that the user did not write
REMINDER: Final = "<system-reminder>\n{}\n</system-reminder>"
MEDIA: Final = ("image", "document", "container_upload")


class Turn(NamedTuple):
    """The content blocks of consecutive messages of one role."""

    role: str
    blocks: list[Given]


def chat_messages(system: Given, messages: Given) -> list[Message]:
    """Return the messages of a conversation. `system` may be absent.

    A system message within the conversation becomes a reminder in the user's turn, because most
    templates allow a system message at the start only.

    Raises:
        RequestError: an invalid part; names its path.
    """
    texts = [] if system.is_absent else _without_billing(_texts(_blocks(system)))
    turns: list[Turn] = []
    for message in messages.each(N_MESSAGES_MAX):
        role = message.get("role").choice(("user", "assistant", "system"))
        blocks = _blocks(message.get("content"))
        if role == "system" and not turns:
            texts += _texts(blocks)
            continue
        if role == "system":
            role, blocks = "user", [_reminder(block) for block in blocks]
        if not turns or turns[-1].role != role:
            turns.append(Turn(role, []))
        turns[-1].blocks.extend(blocks)
    if not turns:
        raise messages.refused("must have at least one message of the user")
    found: list[Message] = []
    if any(texts):
        found.append({"role": "system", "content": _joined(texts)})
    for turn in turns:
        found += _user(turn.blocks) if turn.role == "user" else [_assistant(turn.blocks)]
    return found


def _blocks(content: Given) -> list[Given]:
    """The blocks of a content. A string is one block of text."""
    if isinstance(content.value, str):
        return [Given(content.path, {"type": "text", "text": content.value})]
    if not isinstance(content.value, list):
        raise content.wrong("a string or a list of blocks")
    blocks = list(content.each(N_BLOCKS_MAX))
    for block in blocks:
        kind = block.get("type")
        if kind.text() in MEDIA:
            raise kind.refused(
                f'is "{kind.value}": images and documents are not supported yet, send texts only'
            )
    return blocks


def _text(block: Given) -> str:
    block.get("type").choice(("text",))
    return block.get("text").text()


def _texts(blocks: Sequence[Given]) -> list[str]:
    return [_text(block) for block in blocks]


def _joined(texts: Sequence[str]) -> str:
    """The texts as one, as llama.cpp joins the parts of a message."""
    return "\n".join(texts)


def _without_billing(texts: list[str]) -> list[str]:
    """The texts of the system prompt without the line at their start that changes."""
    if not texts or not texts[0].startswith(BILLING):
        return texts
    rest = texts[0].partition("\n")[2]
    return [rest, *texts[1:]] if rest else texts[1:]


def _reminder(block: Given) -> Given:
    return Given(block.path, {"type": "text", "text": REMINDER.format(_text(block))})


def _user(blocks: Sequence[Given]) -> Iterator[Message]:
    """The results of tools, then the texts. Templates need the results right after the calls."""
    results: list[Message] = []
    texts: list[str] = []
    for block in blocks:
        if block.get("type").choice(("text", "tool_result")) == "text":
            texts.append(_text(block))
        else:
            results.append(_result(block))
    yield from results
    if texts or not results:
        yield {"role": "user", "content": _joined(texts)}


def _result(block: Given) -> Message:
    content = block.get("content")
    text = "" if content.is_absent else _joined([_part(part) for part in _blocks(content)])
    if block.get("is_error").flag_or(False):
        text = f"Error: {text}"
    return {"role": "tool", "tool_call_id": block.get("tool_use_id").text(), "content": text}


def _part(block: Given) -> str:
    """The text of a part of a result."""
    if block.get("type").choice(("text", "tool_reference")) == "text":
        return _text(block)
    return f"The tool {block.get('tool_name').text()} is available now."


def _assistant(blocks: Sequence[Given]) -> Message:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for block in blocks:
        match block.get("type").choice(("text", "thinking", "redacted_thinking", "tool_use")):
            case "text":
                texts.append(_text(block))
            case "thinking":
                thoughts.append(block.get("thinking").text())
            case "tool_use":
                calls.append(_call(block))
            case "redacted_thinking":
                pass  # only the server that wrote it can read it
    message: Message = {"role": "assistant", "content": _joined(texts)}
    if any(thoughts):
        message["reasoning_content"] = _joined(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _call(block: Given) -> dict[str, Any]:
    given = block.get("input")
    check_depth(given.path, given.object())
    arguments = json.dumps(given.value, ensure_ascii=False)
    function = {"name": block.get("name").text(), "arguments": arguments}
    return {"id": block.get("id").text(), "type": "function", "function": function}
