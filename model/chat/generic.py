"""Conversations with tools for templates that ignore tools, calls or results.

A system message describes the tools and how to call them. Calls of earlier turns become texts in
the same form, and results become messages of the user. Templates that take one call in a message
get a message for each call. Knows no tokens and no requests.
Tests: tests/model/test_chat_generic.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from .formats import GENERIC, ChatFormat
from .formats.writer import WrittenCall, write_calls
from .rewrite import joined
from .turn import Conversation

Message = Mapping[str, Any]

_DESCRIPTION: Final = """\
You can call tools. These are the tools, one JSON object each:
{tools}

To call a tool, write this, with the name of the tool and its arguments:
{example}
You then get the result. If you need no tool, answer as usual."""

_EXAMPLE: Final = WrittenCall("NAME", {"ARGUMENT": "VALUE"}, "call00001")


def with_described_tools(conversation: Conversation, format: ChatFormat) -> Conversation | None:
    """Return the conversation in a form that the template prints; None if it prints it anyway.

    `format` is the form of the model's answers.
    """
    can, messages = conversation.chat.capabilities, conversation.messages
    variables = dict(conversation.variables)
    tools: Any = variables.get("tools") or []
    if tools and not can.takes_tools:
        if can.takes_functions:
            variables["functions"] = json.dumps([_function(tool) for tool in tools])
        else:
            messages = _with_description(messages, describe(tools, format))
    if max(map(_n_calls, messages)) > 1 and not can.takes_several_calls and can.takes_calls:
        messages = _with_single_calls(messages)
    # a template without tools and calls may print the role, but its model has never seen it
    knows_results = can.takes_results and (can.takes_calls or can.takes_tools)
    if any(message["role"] == "tool" for message in messages) and not knows_results:
        messages = _with_result_texts(messages)
    if any(message.get("tool_calls") for message in messages) and not can.takes_calls:
        messages = [_with_written_calls(message, format) for message in messages]
    if messages is conversation.messages and variables == conversation.variables:
        return None
    return replace(conversation, messages=messages, variables=variables)


def describe(tools: Sequence[Message], format: ChatFormat) -> str:
    """Return a text for the model about tools, and how it calls them."""
    lines = [json.dumps(_function(tool), ensure_ascii=False) for tool in tools]
    example = write_calls(_syntax(format), [_EXAMPLE])
    return _DESCRIPTION.format(tools="\n".join(lines), example=example)


def _syntax(format: ChatFormat) -> Any:
    return (format.calls or GENERIC.calls)[0]


def _function(tool: Message) -> Any:
    return tool.get("function", tool)


def _with_description(messages: Sequence[Message], text: str) -> list[Message]:
    first, *rest = messages
    if first["role"] not in ("system", "developer"):
        return [{"role": "system", "content": text}, *messages]
    return [{**first, "content": f"{joined(first['content'])}\n\n{text}"}, *rest]


def _n_calls(message: Message) -> int:
    return len(message.get("tool_calls") or ())


def _with_single_calls(messages: Sequence[Message]) -> list[Message]:
    """Each message has one call at most, and the result of a call follows it."""
    found: list[Message] = []
    results: list[Message] = []  # the last one first, as all here
    for message in reversed(messages):
        if message["role"] == "tool":
            results.append(message)
            continue
        found += reversed(_single_calls(message, results[::-1]))
        results = []
    return [*reversed(results), *reversed(found)]


def _single_calls(message: Message, results: Sequence[Message]) -> list[Message]:
    if _n_calls(message) < 2:
        return [message, *results]
    by_call: dict[Any, list[Message]] = {}
    for result in results:
        by_call.setdefault(result.get("tool_call_id"), []).append(result)
    found: list[Message] = []
    called = {call.get("id") for call in message["tool_calls"]}
    for call in message["tool_calls"]:
        found += [{**message, "tool_calls": [call]}, *by_call.pop(call.get("id"), ())]
        message = {"role": "assistant", "content": ""}
    return [*found, *(r for r in results if r.get("tool_call_id") not in called)]


def _with_written_calls(message: Message, format: ChatFormat) -> Message:
    calls = message.get("tool_calls")
    if not calls:
        return message
    written = write_calls(_syntax(format), [_written(call) for call in calls])
    texts = [text for text in (joined(message.get("content")), written) if text]
    return {k: v for k, v in message.items() if k != "tool_calls"} | {"content": "\n".join(texts)}


def _written(call: Message) -> WrittenCall:
    function = call["function"]
    arguments = function.get("arguments", "")
    try:
        found = json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        found = arguments
    return WrittenCall(
        function["name"], found if isinstance(found, dict) else str(arguments), call.get("id", "")
    )


def _with_result_texts(messages: Sequence[Message]) -> list[Message]:
    """Results become messages of the user, together with what the user says next."""
    names = {
        call.get("id"): call["function"]["name"]
        for message in messages
        for call in message.get("tool_calls") or ()
    }
    found: list[Message] = []
    results: list[Message] = []  # of the user, one after the other: joined once
    for message in messages:
        if message["role"] == "tool":
            results.append(_as_user(message, names))
            continue
        if results and message["role"] != "user":
            found.append(_one_message(results))
            results = []
        found.append(_one_message([*results, message]) if results else message)
        results = []
    return [*found, _one_message(results)] if results else found


def _one_message(messages: Sequence[Message]) -> Message:
    """The last of some messages, with the texts of all."""
    return {**messages[-1], "content": "\n\n".join(joined(m["content"]) for m in messages)}


def _as_user(message: Message, names: Mapping[Any, str]) -> Message:
    name = message.get("name") or names.get(message.get("tool_call_id"))
    title = f"The result of {name}:" if name else "The result:"
    return {"role": "user", "content": f"{title}\n{joined(message['content'])}"}
