"""The tools of the Responses API, under the names that the model knows.

A function stays a function. A custom tool takes free text: for the model it is a function with one
string, `input`. The tools of a namespace get its name as a prefix: `mcp__files` and `read` become
`mcp__files__read`. Tools that only OpenAI's servers run are left out; a log line says so.
Knows no connection. Tested by tests/server/test_responses_tools.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from ...base.log import get_logger
from ...model.chat.message import Tool, ToolMode
from ...runtime.tools import N_TOOLS_MAX, NAME, NAME_RULE, ToolChoice, check_function
from ..given import Given, found
from ..logged import LoggedOnce

log = get_logger("server")
_LOGGED: Final = LoggedOnce()  # types of tools

TOP_NAMESPACE: Final = "functions"  # of OpenAI's models: its tools have no prefix
INPUT: Final = "input"  # the only argument of a custom tool


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTool:
    """A tool of a request.

    Attributes:
        tool: what the model sees.
        name: its name in calls that the client gets.
        namespace: the namespace of the name; "" for none.
        is_custom: its calls have a text instead of arguments.
        schema_path: where the request has its schema, or its regular expression.
    """

    tool: Tool
    name: str
    namespace: str = ""
    is_custom: bool = False
    schema_path: str = ""


Tools = dict[str, ClientTool]  # by the names that the model knows


def model_name(namespace: str, name: str) -> str:
    """The name of a tool for the model."""
    return f"{namespace}__{name}" if namespace not in ("", TOP_NAMESPACE) else name


def tools_of(given: Given) -> Tools:
    """The tools in a list. Tools of other types than function, custom and namespace are left out.

    Raises:
        RequestError: a tool has a wrong shape, an invalid name, or that of an earlier one.
    """
    tools: Tools = {}
    for each in given.each(N_TOOLS_MAX):
        for client_tool in _tools(each, ""):
            name = client_tool.tool.name
            if name in tools:
                raise each.refused(f"has the name of an earlier tool: {name}")
            tools[name] = client_tool
    if len(tools) > N_TOOLS_MAX:
        raise given.refused(f"must have at most {N_TOOLS_MAX} tools, found {len(tools)}")
    return tools


def _tools(given: Given, namespace: str) -> Iterator[ClientTool]:
    kind = given.get("type").text()
    if kind == "function":
        yield _function(given, namespace)
    elif kind == "custom":
        yield _custom(given, namespace)
    elif kind == "namespace" and not namespace:
        name = _name(given)
        for each in given.get("tools").each(N_TOOLS_MAX):
            yield from _tools(each, name)
    else:
        _log_ignored(kind)


def _function(given: Given, namespace: str) -> ClientTool:
    tool = check_function(given.path, given.value)
    name = _model_name(given, namespace, tool.name)
    path = f"{given.path}.parameters"
    return ClientTool(
        tool=replace(tool, name=name), name=tool.name, namespace=namespace, schema_path=path
    )


def _custom(given: Given, namespace: str) -> ClientTool:
    name = _name(given)
    description = given.get("description").text_or("")
    schema: dict[str, Any] = {"type": "string"}
    form = given.get("format")
    if not form.is_absent and form.get("type").choice(("text", "grammar")) == "grammar":
        syntax = form.get("syntax").choice(("lark", "regex"))
        definition = form.get("definition").text()
        description += f"\n\nThe input must match this {GRAMMARS[syntax]}:\n{definition}"
        if syntax == "regex":
            schema["pattern"] = f"^(?:{definition})$"
    parameters = {
        "type": "object",
        "properties": {INPUT: schema},
        "required": [INPUT],
        "additionalProperties": False,
    }
    tool = Tool(
        name=_model_name(given, namespace, name),
        description=description.strip(),
        parameters=parameters,
    )
    path = f"{given.path}.format.definition"
    return ClientTool(tool=tool, name=name, namespace=namespace, is_custom=True, schema_path=path)


GRAMMARS: Final = {"lark": "Lark grammar", "regex": "regular expression"}


def _name(given: Given) -> str:
    name = given.get("name")
    if not NAME.fullmatch(name.text()):
        raise name.refused(f"{NAME_RULE}, found {found(name.text())}")
    return name.text()


def _model_name(given: Given, namespace: str, name: str) -> str:
    long = model_name(namespace, name)
    if not NAME.fullmatch(long):
        raise given.get("name").refused(f"is too long with its namespace: {long}")
    return long


def _log_ignored(kind: str) -> None:
    for name in _LOGGED.new([kind]):
        log.warning("ignoring tools of the type %s: only OpenAI's servers run them", name)


def choice_of(given: Given, tools: Tools) -> ToolChoice:
    """The choice of tools in `given`. The tools that it does not allow do not exist for the model.

    Raises:
        RequestError: a wrong shape, a tool that is not in `tools`, or no tool to call.
    """
    choice = _choice(given, tools)
    if choice.mode is ToolMode.REQUIRED and not choice.tools:
        raise given.refused('needs a tool of the type "function" or "custom" in "tools"')
    return choice


def _choice(given: Given, tools: Tools) -> ToolChoice:
    all_tools = [each.tool for each in tools.values()]
    if given.is_absent:
        return ToolChoice(all_tools)
    if isinstance(given.value, str):
        return ToolChoice(all_tools, ToolMode(given.choice([mode.value for mode in ToolMode])))
    if given.get("type").choice(("function", "custom", "allowed_tools")) != "allowed_tools":
        return ToolChoice(all_tools, ToolMode.REQUIRED, _known(given, tools))
    allowed = {_known(each, tools) for each in given.get("tools").each(N_TOOLS_MAX)}
    mode = given.get("mode").choice((ToolMode.AUTO, ToolMode.REQUIRED))
    return ToolChoice([tool for tool in all_tools if tool.name in allowed], ToolMode(mode))


def _known(given: Given, tools: Tools) -> str:
    """The model's name of a tool that a choice names; "" for a tool that is left out."""
    if given.get("type").text() not in ("function", "custom"):
        return ""
    name = model_name(given.get("namespace").text_or(""), given.get("name").text())
    if name not in tools:
        raise given.get("name").refused(f'is not in "tools": {name:.200}')
    return name
