"""Python functions as tools: their descriptions for a model, and calls with JSON arguments.

Type hints become a JSON schema, and the docstring becomes descriptions. pydantic makes the schema
and converts arguments; docstring_parser reads docstrings in the styles of Google, NumPy and Sphinx.
Knows no model and no chat. Tests: tests/runtime/test_functions.py.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from reprlib import repr as shortened
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, Final, NotRequired, cast, get_type_hints

from ..base.errors import LamellaError, RequestError
from ..model.chat.message import Tool

if TYPE_CHECKING:
    from docstring_parser import Docstring
    from pydantic import TypeAdapter, ValidationError
    from pydantic.config import JsonDict

N_PROBLEMS: Final = 8  # the most problems of arguments that an error lists
_VALUES: Final = ("default", "const", "enum", "examples")  # keywords whose values are no schemas


class FunctionTool:
    """A function that a model may call.

    Attributes:
        tool: its description for the model: the function's name, docstring and parameters.
    """

    tool: Tool

    def __init__(self, function: Callable[..., object]) -> None:
        """
        Args:
            function: a function, a method or a coroutine function. JSON must be able to express
                its parameters: plain values, lists, dicts, Literal, Enum, dataclasses, TypedDicts,
                pydantic's models and their unions. A parameter without a type hint may be anything.

        Raises:
            RequestError: it has no name, or a parameter that a model cannot give.
        """
        self._function = function
        name = getattr(function, "__name__", "")
        if not (callable(function) and name.isidentifier() and name.isascii()):
            raise RequestError(f"tools: {shortened(function)} is not a function with a plain name")
        docstring = _docstring(function)
        self._adapter = _adapter(function, {p.arg_name: p.description for p in docstring.params})
        self.tool = Tool(
            name=name,
            description=(docstring.description or "").strip(),
            parameters=_parameters(name, self._adapter),
        )

    def call(self, arguments: str) -> str:
        """Call the function. Return its result: a text, or else the JSON of its value.

        Args:
            arguments: a JSON object. Values are converted to the types of the parameters.

        Raises:
            RequestError: the arguments do not fit; the message is for the model.
            Exception: the function raised it.
        """
        return result_text(self._run(arguments))

    async def acall(self, arguments: str) -> str:
        """`call` for coroutines. A plain function runs in a thread. Errors: see `call`."""
        given = self._given(arguments)
        if inspect.iscoroutinefunction(self._function):
            return result_text(await self._function(**given))
        import asyncio  # noqa: PLC0415 - slow to import

        return result_text(await asyncio.to_thread(self._function, **given))

    def result(self, arguments: str) -> str:
        """`call`, but an error becomes a text for the model: "error: " and its message."""
        try:
            return self.call(arguments)
        except Exception as e:
            return f"error: {error_text(e)}"

    async def aresult(self, arguments: str) -> str:
        """`result` for coroutines."""
        try:
            return await self.acall(arguments)
        except Exception as e:
            return f"error: {error_text(e)}"

    def _run(self, arguments: str) -> object:
        result = self._function(**self._given(arguments))
        if not inspect.iscoroutine(result):
            return result
        import asyncio  # noqa: PLC0415 - slow to import

        return asyncio.run(result)

    def _given(self, arguments: str) -> dict[str, Any]:
        """The arguments by name, converted. Raises RequestError."""
        from pydantic import ValidationError  # noqa: PLC0415 - slow to import

        try:
            return dict(self._adapter.validate_json(arguments.strip() or "{}"))
        except ValidationError as e:
            problems = "; ".join(_problems(e))
            raise RequestError(f"invalid arguments for {self.tool.name}: {problems}") from None


def error_text(error: BaseException) -> str:
    """An error of a call, for the model."""
    if isinstance(error, LamellaError):
        return str(error)
    return f"{type(error).__name__}: {error}"


def result_text(value: object) -> str:
    """The text of a result for a model: a text itself, or the JSON of another value."""
    if isinstance(value, str):
        return value
    from pydantic_core import to_json  # noqa: PLC0415 - slow to import

    return to_json(value, fallback=str).decode()


def closed_schema(schema: Any) -> Any:
    """The schema, where objects with properties have no others unless it says so."""
    if isinstance(schema, list):
        return [closed_schema(one) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    closed = {
        key: value if key in _VALUES else closed_schema(value) for key, value in schema.items()
    }
    if closed.get("type") == "object" and "properties" in closed:
        closed.setdefault("additionalProperties", False)
    return closed


def _adapter(
    function: Callable[..., object], descriptions: Mapping[str, str | None]
) -> TypeAdapter[Any]:
    """The type of the function's arguments: a TypedDict. Absent ones get the function's own
    defaults."""
    from pydantic import ConfigDict, TypeAdapter  # noqa: PLC0415 - slow to import
    from pydantic.errors import PydanticUserError  # noqa: PLC0415
    from typing_extensions import TypedDict  # noqa: PLC0415

    name = function.__name__
    try:
        hints = _hints(inspect.unwrap(function))
        fields = {
            parameter.name: _field(
                name,
                parameter,
                hints.get(parameter.name, Any),
                descriptions.get(parameter.name),
            )
            for parameter in inspect.signature(function).parameters.values()
        }
        arguments = cast(Any, TypedDict)(name, fields)
        arguments.__pydantic_config__ = ConfigDict(extra="forbid")
        return TypeAdapter(arguments)
    except (PydanticUserError, NameError, TypeError, ValueError) as e:
        reason = str(e).partition("\n")[0]
        raise RequestError(f"tools: {name} has an unknown type: {reason}") from None


def _hints(function: Callable[..., object]) -> dict[str, Any]:
    """The types of the parameters. That of the result may be unknown at run time."""
    if not hasattr(function, "__globals__"):  # a class
        return get_type_hints(function, include_extras=True)
    names = {name: hint for name, hint in function.__annotations__.items() if name != "return"}
    return get_type_hints(
        SimpleNamespace(__annotations__=names), function.__globals__, include_extras=True
    )


def _field(name: str, parameter: inspect.Parameter, hint: Any, description: str | None) -> Any:
    """The type of an argument, with its description and its default value."""
    from pydantic import Field, TypeAdapter  # noqa: PLC0415 - slow to import
    from pydantic_core import PydanticSerializationError  # noqa: PLC0415

    kind = parameter.kind
    if kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
        bare = parameter.replace(annotation=parameter.empty, default=parameter.empty)
        raise RequestError(
            f"tools: {name} has the {kind.description} parameter {bare}: a model gives arguments "
            "by name"
        )
    if parameter.default is parameter.empty:
        return Annotated[hint, Field(description=description)]
    default = parameter.default
    try:
        shown = TypeAdapter(hint).dump_python(default, mode="json", warnings=False)
        known: JsonDict = {"default": shown}
    except PydanticSerializationError:  # the model need not know it
        known = {}
    field = Field(description=description, json_schema_extra=known)
    return NotRequired[Annotated[hint, field]]


def _parameters(name: str, adapter: TypeAdapter[Any]) -> dict[str, Any]:
    """The JSON schema of the arguments."""
    from pydantic.errors import PydanticUserError  # noqa: PLC0415 - slow to import

    try:
        schema = adapter.json_schema()
    except PydanticUserError as e:
        reason = str(e).partition("\n")[0]
        raise RequestError(f"tools: JSON has no arguments for {name}: {reason}") from None
    found: dict[str, Any] = _untitled(closed_schema(schema))
    return found


def _untitled(schema: Any) -> Any:
    """The schema without pydantic's titles, which repeat the names, and with the type in front."""
    if isinstance(schema, list):
        return [_untitled(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    rest = {
        key: value if key in _VALUES else _untitled(value)
        for key, value in schema.items()
        if key not in ("title", "type") or not isinstance(value, str)
    }
    kind = schema.get("type")  # a dict if it is a parameter of this name
    return {"type": kind, **rest} if isinstance(kind, str) else rest


def _docstring(function: Callable[..., object]) -> Docstring:
    """The parts of a docstring. One in an unknown style is a description as a whole."""
    from docstring_parser import Docstring, ParseError, parse  # noqa: PLC0415 - few need it

    text = inspect.getdoc(function) or ""
    try:
        return parse(text)
    except ParseError:
        found = Docstring()
        found.short_description = text
        return found


def _problems(error: ValidationError) -> list[str]:
    """What is wrong with arguments, in short."""
    found = [
        ": ".join(filter(None, (".".join(map(str, one["loc"])), one["msg"])))
        for one in error.errors(include_url=False, include_context=False, include_input=False)
    ]
    more = len(found) - N_PROBLEMS
    return found[:N_PROBLEMS] + ([f"and {more} more"] if more > 0 else [])
