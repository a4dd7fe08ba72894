"""Conversations in OpenAI's shape become what a template can take.

Most rules are llama.cpp's (common/chat.cpp). Nothing is left out: what a template has no place for
becomes text of a message that it prints. Knows no tokens. Tests: tests/model/test_chat_rewrite.py
and test_chat_given.py.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from itertools import chain, groupby, pairwise
from typing import Any, Final

from .capabilities import REASONING_KEYS, Capabilities

Message = Mapping[str, Any]

SHORT_ID: Final = re.compile("[a-zA-Z0-9]{9}")


def rewritten(messages: Sequence[Message], can: Capabilities) -> list[Message]:
    """Return the messages as the template takes them."""
    if not all(isinstance(message, Mapping) for message in messages):
        return list(messages)  # the template may refuse them
    found = [_message(message, can) for message in _with_ids(messages, can)]
    if any(message.get("role") == "system" for message in found[1:]) and not can.takes_late_system:
        found = _with_one_system(found)
    if found and found[0].get("role") == "system" and not can.takes_system:
        found = _without_systems(found)
    if _has_pair(found, "user", "user") and not can.takes_repeated_users:
        found = _with_joined_users(found)
    if _has_pair(found, "tool", "user") and not can.takes_user_after_results:
        found = _with_texts_in_results(found)
    if any(m.get("role") == "tool" for m in found) and can.takes_results_of_caller:
        found = _with_results_in_callers(found)
    return [_with_content(_with_known_parts(message, can), can) for message in found]


def _message(message: Message, can: Capabilities) -> Message:
    found = dict(message)
    if found.get("role") == "developer":
        found["role"] = "system"
    if found.get("tool_calls"):
        found["tool_calls"] = [_call(call, can) for call in found["tool_calls"]]
    if isinstance(found.get("tool_call_id"), str):
        found["tool_call_id"] = _id(found["tool_call_id"], can)
    if can.needs_trimmed:
        found["content"] = _trimmed(found.get("content"))
    if found.get("content") is None:
        found["content"] = ""
    return _with_reasoning(_with_known_parts(found, can), can)


def _with_known_parts(message: Message, can: Capabilities) -> dict[str, Any]:
    """A message whose parts, if the template does not take them of its role, are one text."""
    content = message.get("content")
    is_known = not isinstance(content, list) or can.takes_parts_of(message.get("role"))
    return {**message, "content": content if is_known else joined(content)}


def joined(content: Any) -> Any:
    """The texts of parts, joined by newlines as in llama.cpp. Content of other parts unchanged."""
    if not isinstance(content, list):
        return content
    texts = [part.get("text") for part in content if isinstance(part, Mapping)]
    strings = [text for text in texts if isinstance(text, str)]
    return "\n".join(strings) if len(strings) == len(content) else content


def _trimmed(content: Any) -> Any:
    """Content whose texts have no space at their ends."""
    match content:
        case str():
            return content.strip()
        case {"text": str(text), **rest}:
            return {**rest, "text": text.strip()}
        case list():
            return [_trimmed(part) for part in content]
    return content


def _with_content(message: Message, can: Capabilities) -> Message:
    content = message.get("content")
    if not isinstance(content, str) or can.takes_text or not can.takes_parts:
        return message
    return {**message, "content": [{"type": "text", "text": content}]}


# --- calls ---


def _with_ids(messages: Sequence[Message], can: Capabilities) -> list[Message]:
    """Calls have ids. Results without an id get those of the calls before them, in order."""
    found: list[Message] = []
    # names by the ids of calls without results; the first of a plain dict is found slowly
    waiting: OrderedDict[str, str] = OrderedDict()
    n_calls = 0
    for message in messages:
        calls = message.get("tool_calls") or ()
        if calls:
            calls = [_with_id(call, n_calls + i) for i, call in enumerate(calls)]
            n_calls += len(calls)
            waiting = OrderedDict((call.get("id", ""), _name(call)) for call in calls)
            found.append({**message, "tool_calls": calls})
        elif message.get("role") == "tool":
            found.append(_with_call(message, waiting, can))
        else:
            found.append(message)
    return found


def _with_call(result: Message, waiting: dict[str, str], can: Capabilities) -> Message:
    """A result with the id of its call, and with the name if the template needs it."""
    id = result.get("tool_call_id") or next(iter(waiting), "")
    name = waiting.pop(id, "")
    more = {"tool_call_id": id} if id else {}
    if name and "name" not in result and not can.takes_nameless_results:
        more["name"] = name
    return {**result, **more}


def _with_id(call: Any, index: int) -> Any:
    is_nameless = isinstance(call, Mapping) and not call.get("id")
    return {**call, "id": f"call{index:05d}"} if is_nameless else call


def _name(call: Any) -> str:
    function = call.get("function") if isinstance(call, Mapping) else None
    return str(function.get("name", "")) if isinstance(function, Mapping) else ""


def _call(call: Any, can: Capabilities) -> Any:
    match call:
        case {"function": {"name": str(), **function}}:
            call = {**call, "function": dict(call["function"])}
            if "arguments" in function:
                call["function"]["arguments"] = _arguments(function["arguments"], can)
            if isinstance(call.get("id"), str):
                call["id"] = _id(call["id"], can)
    return call


def _arguments(arguments: Any, can: Capabilities) -> Any:
    """An object if the template takes objects, else a JSON text."""
    if isinstance(arguments, str) and can.takes_object_arguments:
        try:
            found = json.loads(arguments) if arguments.strip() else {}
        except (ValueError, RecursionError):
            found = None
        if isinstance(found, dict):
            return found
        # a call that was cut off, or is wrong in another way
        return arguments if can.takes_text_arguments else {"arguments": arguments}
    if isinstance(arguments, dict) and not can.takes_object_arguments:
        return json.dumps(arguments, ensure_ascii=False)
    return arguments


def _id(id: str, can: Capabilities) -> str:
    if SHORT_ID.fullmatch(id) or can.takes_long_ids:
        return id
    return hashlib.sha256(id.encode("utf-8", "replace")).hexdigest()[:9]


# --- reasoning ---


def reasoning_of(message: Message) -> str:
    """The reasoning of an earlier turn, under any of the keys that clients use."""
    texts = (message.get(key) for key in REASONING_KEYS)
    return next((text for text in texts if isinstance(text, str) and text), "")


def _with_reasoning(message: dict[str, Any], can: Capabilities) -> Message:
    text = reasoning_of(message)
    if not text:
        return message
    text = text.strip() if can.needs_trimmed else text
    message["reasoning_content"] = text
    key, content = can.reasoning_key, message["content"]
    if key is None and can.takes_thinking_parts:
        parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
        parts = [part for part in parts if part != {"type": "text", "text": ""}]
        return {**message, "content": [{"type": "thinking", "thinking": text}, *parts]}
    if key is None or key == "reasoning_content":
        return message
    if message.get("tool_calls") and content and not can.takes_reasoning_with_content:
        return {**message, key: f"{text}\n\n{joined(content)}", "content": ""}
    return {**message, key: text}


# --- system messages ---


def _with_one_system(messages: Sequence[Message]) -> list[Message]:
    """System messages at the begin become one, later ones messages of the user."""
    first = next((i for i, m in enumerate(messages) if m.get("role") != "system"), len(messages))
    later = _without_systems(messages[first:])
    if not first:
        return later
    content = [joined(message["content"]) for message in messages[:first]]
    return [{**messages[0], "content": _sum(content, "\n\n")}, *later]


def _without_systems(messages: Sequence[Message]) -> list[Message]:
    """A system message becomes the begin of the next message if that is the user's."""
    found: list[Message] = []
    waiting: list[Any] = []
    for message in messages:
        if message.get("role") == "system":
            waiting.append(message["content"])
            continue
        if waiting and message.get("role") == "user":
            contents = [*waiting, message["content"]]
            found.append({**message, "content": _sum(contents, "\n")})
        else:
            found += [_user(waiting)] if waiting else []
            found.append(message)
        waiting = []
    return [*found, _user(waiting)] if waiting else found


# --- results of calls ---


def _has_pair(messages: Sequence[Message], first: str, second: str) -> bool:
    """True if a message of the second role follows one of the first."""
    roles = [message.get("role") for message in messages]
    return (first, second) in pairwise(roles)


def _with_joined_users(messages: Sequence[Message]) -> list[Message]:
    found: list[Message] = []
    for is_user, run in groupby(messages, _is_user):
        same = list(run)
        is_joined = is_user and len(same) > 1
        found += [{**same[-1], "content": _joined_in_turn(same)}] if is_joined else same
    return found


def _with_texts_in_results(messages: Sequence[Message]) -> list[Message]:
    """A message of the user after the result of a call becomes the end of the result."""
    found: list[Message] = []
    for is_user, run in groupby(messages, _is_user):
        same = list(run)
        if is_user and found and found[-1].get("role") == "tool":
            found[-1] = {**found[-1], "content": _joined_in_turn([found[-1], *same])}
        else:
            found += same
    return found


def _is_user(message: Message) -> bool:
    return message.get("role") == "user"


def _joined_in_turn(messages: Sequence[Message]) -> Any:
    """The content of messages that are joined one after the other: the first texts are one."""
    contents = [message["content"] for message in messages]
    n = next((i for i, c in enumerate(contents) if not isinstance(c, str)), len(contents))
    return _sum([*["\n\n".join(contents[:n])] * (n > 0), *contents[n:]], "\n\n")


def _with_results_in_callers(messages: Sequence[Message]) -> list[Message]:
    """The message with calls has their results, and the answer that follows them.

    Gemma 4's first templates have one turn of the model for all of it. As in llama.cpp, text
    before the calls is left out: the template would print it after the results.
    """
    found: list[Message] = []
    results: list[Any] = []  # of the last message, if it is a caller
    names: dict[Any, str] = {}  # of its calls
    for message in messages:
        last = found[-1] if found else {}
        if message.get("role") == "tool" and last.get("tool_calls"):
            if last.get("tool_responses") is not results:
                results = [*last.get("tool_responses", ())]
                names = {call.get("id"): _name(call) for call in last["tool_calls"]}
            results.append(_response(message, names))
            found[-1] = {**last, "tool_responses": results, "content": ""}
        elif _is_answer(message) and last.get("tool_responses") and not last["content"]:
            found[-1] = {**last, "content": message["content"]}
        else:
            found.append(message)
    return found


def _is_answer(message: Message) -> bool:
    return message.get("role") == "assistant" and not message.get("tool_calls")


def _response(result: Message, names: Mapping[Any, str]) -> Message:
    """A result, with the name of its tool."""
    content, id = result["content"], result.get("tool_call_id", "")
    try:
        response = json.loads(content) if isinstance(content, str) else content
    except (ValueError, RecursionError):
        response = content
    return {"name": names.get(id) or result.get("name") or id, "response": response}


# --- contents ---


def _user(contents: Sequence[Any]) -> Message:
    return {"role": "user", "content": _sum(contents, "\n")}


def _sum(contents: Sequence[Any], between: str) -> Any:
    """One content: a text if all are texts, else parts."""
    if all(isinstance(content, str) for content in contents):
        return between.join(contents)
    lists = (c if isinstance(c, list) else [{"type": "text", "text": c}] for c in contents)
    return list(chain.from_iterable(lists))
