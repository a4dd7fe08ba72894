"""The tools of a chat, in OpenAI's shape: checks of tools, of the choice of one, and of calls.

HTTP and the Python API pass what a caller gave. Knows no connection and no template.
Tests: tests/runtime/test_tools.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from reprlib import repr as shortened
from typing import Any, Final, NamedTuple

from ..base.errors import RequestError
from ..base.json_depth import check_depth, check_text_depth
from ..base.utf8 import check_utf8
from ..model.chat.message import NO_PARAMETERS, Tool, ToolMode

N_TOOLS_MAX: Final = 512
N_CALLS_MAX: Final = 512  # of one message
NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}", re.ASCII)
NAME_RULE: Final = "must be 1 to 128 letters, digits and characters of _.-"


class ToolChoice(NamedTuple):
    """The tools that an answer may call, and whether it must call one.

    `name` is the only tool that it may call; "" for any.
    """

    tools: Sequence[Tool]
    mode: ToolMode = ToolMode.AUTO
    name: str = ""


def check_tools(tools: object, where: str = "tools") -> tuple[Tool, ...]:
    """The tools of a list in OpenAI's shape. `where` is the list's name for errors.

    Raises:
        RequestError: an invalid tool, or two tools of one name; names the place.
    """
    found = [_tool(f"{where}[{i}]", tool) for i, tool in enumerate(_list(where, tools))]
    return distinct(found, f"{where}[{{}}].function")


def distinct(tools: Sequence[Tool], where: str) -> tuple[Tool, ...]:
    """The tools. `where` has {} for the index of a tool. Raises RequestError: a name is twice."""
    first: dict[str, int] = {}
    for i, tool in enumerate(tools):
        if tool.name in first:
            place, other = where.format(i), where.format(first[tool.name])
            raise RequestError(f'"{place}.name" is "{tool.name}", the name of "{other}" too')
        first[tool.name] = i
    return tuple(tools)


def check_function(where: str, function: object) -> Tool:
    """The tool of a function: an object with a name, and a description, parameters and `strict`.

    Raises:
        RequestError: names the place, which begins with `where`.
    """
    given = _object(where, function, 'an object like {"name": "search", "parameters": {}}')
    if "name" not in given:
        raise RequestError(f'"{where}.name" is missing')
    name = given["name"]
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise _refused(f"{where}.name", name, NAME_RULE)
    description = given.get("description", "")
    if not isinstance(description, str):
        raise _refused(f"{where}.description", description, "must be a string")
    check_utf8(f'"{where}.description"', description)
    parameters = given.get("parameters", NO_PARAMETERS)
    if not isinstance(parameters, Mapping):
        raise _refused(
            f"{where}.parameters", parameters, 'must be a JSON schema like {"type": "object"}'
        )
    strict = given.get("strict", False)
    if not isinstance(strict, bool):
        raise _refused(f"{where}.strict", strict, "must be true or false")
    return Tool(name=name, description=description, parameters=parameters, strict=strict)


def check_tool_choice(choice: object, tools: Sequence[Tool]) -> ToolChoice:
    """What OpenAI's `tool_choice` makes of the tools.

    It is "none", "auto", "required", or an object that names one function or a set of functions.

    Raises:
        RequestError: it is invalid, or there is no tool that it names.
    """
    match choice:
        case None:
            return ToolChoice(tools)
        case "none" | "auto" | "required":
            return _must_have_tools(ToolChoice(tools, ToolMode(choice)))
        case {"type": "function", "function": {"name": name}}:
            return named_choice("tool_choice.function.name", name, tools)
        case {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": allowed}}:
            return _allowed(mode, allowed, tools)
    raise _refused(
        "tool_choice",
        choice,
        'must be "none", "auto", "required" or {"type": "function", "function": {"name": "..."}}',
    )


def named_choice(where: str, name: object, tools: Sequence[Tool]) -> ToolChoice:
    """The choice of one tool, which the answer must call. Raises RequestError: it is unknown."""
    names = [tool.name for tool in tools]
    if not isinstance(name, str) or name not in names:
        known = f"must be one of {', '.join(names)}" if names else "names a tool, but there is none"
        raise _refused(where, name, known)
    return ToolChoice(tools, ToolMode.REQUIRED, name)


def check_calls(where: str, calls: object) -> list[dict[str, Any]]:
    """The calls of an assistant's message. Their arguments need not be valid JSON: a model wrote
    them.

    Raises:
        RequestError: names the place, which begins with `where`.
    """
    checked = []
    for i, call in enumerate(_list(where, calls, N_CALLS_MAX)):
        at = f"{where}[{i}]"
        given = _object(at, call, 'an object like {"id": "...", "function": {...}}')
        id, kind = given.get("id", ""), given.get("type", "function")
        if not isinstance(id, str):
            raise _refused(f"{at}.id", id, "must be a string")
        if kind != "function":
            raise _refused(f"{at}.type", kind, 'must be "function"')
        function = check_called(f"{at}.function", given.get("function"))
        checked.append({"id": id, "type": "function", "function": function})
    return checked


def check_called(where: str, function: object) -> dict[str, Any]:
    """The name and the arguments of a call. Arguments are a JSON text or an object.

    Raises:
        RequestError: names the place, which begins with `where`.
    """
    given = _object(where, function, 'an object like {"name": "search", "arguments": "{}"}')
    name, arguments = given.get("name"), given.get("arguments", "{}")
    if not isinstance(name, str) or not name:
        raise _refused(f"{where}.name", name, "must be a string that is not empty")
    if not isinstance(arguments, str | Mapping):
        raise _refused(f"{where}.arguments", arguments, "must be a JSON text or an object")
    check_utf8(f'"{where}.name"', name)
    if isinstance(arguments, str):
        check_utf8(f'"{where}.arguments"', arguments)
        check_text_depth(f"{where}.arguments", arguments)
    else:
        check_depth(f"{where}.arguments", arguments)
    return {"name": name, "arguments": arguments}


def _tool(where: str, tool: object) -> Tool:
    checked = check_function(f"{where}.function", _function(where, tool))
    assert isinstance(tool, Mapping)
    return replace(checked, given={"type": "function", **tool})


def _function(where: str, tool: object) -> object:
    """The function of a tool."""
    given = _object(where, tool, 'an object like {"type": "function", "function": {...}}')
    kind = given.get("type", "function")
    if kind != "function":
        raise _refused(f"{where}.type", kind, 'must be "function"')
    if "function" not in given:
        raise RequestError(f'"{where}.function" is missing')
    return given["function"]


def _allowed(mode: object, allowed: object, tools: Sequence[Tool]) -> ToolChoice:
    """OpenAI's choice of a set of tools: the others do not exist for this answer."""
    where = "tool_choice.allowed_tools"
    if mode not in ("auto", "required"):
        raise _refused(f"{where}.mode", mode, 'must be "auto" or "required"')
    names = set()
    for i, tool in enumerate(_list(f"{where}.tools", allowed)):
        at = f"{where}.tools[{i}]"
        function = _object(f"{at}.function", _function(at, tool), "an object with a name")
        names.add(named_choice(f"{at}.function.name", function.get("name"), tools).name)
    return _must_have_tools(
        ToolChoice([tool for tool in tools if tool.name in names], ToolMode(mode))
    )


def _must_have_tools(choice: ToolChoice) -> ToolChoice:
    if choice.mode is ToolMode.REQUIRED and not choice.tools:
        raise RequestError('"tool_choice" is "required": must have a tool in "tools", found none')
    return choice


def _list(where: str, items: object, n_max: int = N_TOOLS_MAX) -> Sequence[object]:
    if not isinstance(items, list | tuple):
        raise _refused(where, items, "must be a list")
    if len(items) > n_max:
        raise RequestError(f'"{where}" must have at most {n_max} elements, found {len(items)}')
    return items


def _object(where: str, value: object, example: str) -> dict[str, Any]:
    """The object without its nulls."""
    if not isinstance(value, Mapping):
        raise _refused(where, value, f"must be {example}")
    return {key: item for key, item in value.items() if item is not None}


def _refused(where: str, value: object, valid: str) -> RequestError:
    return RequestError(f'"{where}" {valid}, found {shortened(value)}')
