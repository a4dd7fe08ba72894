"""Writes the reference of the Python API: .venv/bin/python tests/api/make_reference.py

`docs/api.md` comes from docstrings and declarations. `api/options.py` has the options as typed
keyword arguments. Both are checked by tests/api/test_reference.py.
"""

from __future__ import annotations

import inspect
import textwrap
import types
import typing
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import lamella
from lamella.base import errors
from lamella.base.options import Declared, Options, declarations, groups
from lamella.graph import GGMLType
from lamella.model.pooling import Pooling
from lamella.runtime.params import ALIASES, OpenParams, RequestParams

ROOT: Final = Path(__file__).resolve().parents[2]
OPTIONS: Final = ROOT / "api" / "options.py"
PAGE: Final = ROOT / "docs" / "api.md"

# the types of values in more forms than the declared one
WIDER: Final = {
    "chat_template_kwargs": "Mapping[str, object] | None",
    "override_kv": "Mapping[str, bool | int | float | str]",
    "OpenParams.lora": "str | Sequence[str | tuple[str, float]]",
    "control_vector": "str | Sequence[str | tuple[str, float]]",
    "RequestParams.lora": "Sequence[Mapping[str, float]]",
    "logit_bias": "Mapping[int, float] | Mapping[str, float] | Sequence[tuple[int | str, float]]",
    "spec_type": "str | Sequence[str]",
    "json_schema": "Mapping[str, object] | bool | str | type | TypeAdapter[Any]",
}
NAMES: Final = {alias: of for alias, of in ALIASES.items() if alias.isidentifier()}
LEFT_OUT: Final = ("path", "stop")  # methods have arguments of these names

HEAD: Final = '''\
"""The options of `lamella.load` and of generations, as types of keyword arguments.

Made from the declarations by tests/api/make_reference.py: do not edit. Knows no values.
Tested by tests/api/test_reference.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from pydantic import TypeAdapter
'''


RESULTS: Final = (
    *(lamella.Completion, lamella.ToolCall, lamella.Usage, lamella.Timings),
    *(lamella.TextStream, lamella.AsyncTextStream, lamella.TextPiece, lamella.CallPiece),
    lamella.DeviceArray,
)
SECTIONS: Final = ("Args", "Attributes", "Raises")

INTRODUCTION: Final = """\
# The Python API

Made from the docstrings by `tests/api/make_reference.py`: edit those. The tests run the examples.

mypy and other type checkers report a misspelled or unknown option, if Lamella is installed without
`--editable`: they do not find an editable package whose folders have other names.

| | the whole result | a stream of pieces |
|---|---|---|
| messages | `model.chat` | `model.chat_stream` |
| a text | `model.complete` | `model.complete_stream` |
| messages, for coroutines | `await model.achat` | `async for piece in model.achat_stream` |
| a text, for coroutines | `await model.acomplete` | `async for piece in model.acomplete_stream` |

Embedding models: `model.embed` and `await model.aembed`. Rerankers: `model.rerank` and
`await model.arerank`.
"""

GENERATION: Final = "Options of one generation. None means the default."

ERRORS: Final = """\
## Errors

Every error is a `lamella.LamellaError`. All of them are names of `lamella`.
"""

# --- api/options.py ---


def options_module() -> str:
    """The text of `api/options.py`."""
    loads = _typed_dict("LoadOptions", "Options of `lamella.load`.", OpenParams)
    requests = _typed_dict("RequestOptions", GENERATION, RequestParams, NAMES, none=" | None")
    return "\n\n".join((HEAD, loads, requests))


def _typed_dict(
    name: str, doc: str, options: type[Options], aliases: Iterable[str] = (), none: str = ""
) -> str:
    """The source of a TypedDict. `none` is added to the types."""
    lines = [f"class {name}(TypedDict, total=False):", f'    """{doc}"""', ""]
    for declared in declared_options(options):
        hint = hint_text(options, declared.name)
        lines += _field(declared.name, hint + none, help_text(declared))
    for alias in aliases:
        lines += _field(alias, hint_text(options, ALIASES[alias]) + none, _meaning(alias))
    return "\n".join(lines) + "\n"


def _meaning(alias: str) -> str:
    return f"another name of `{ALIASES[alias]}`"


def _field(name: str, type: str, doc: str) -> list[str]:
    wrapped = textwrap.wrap(doc, 90)
    quoted = "\n    ".join(wrapped) + ("" if len(wrapped) == 1 else "\n    ")
    return [f"    {name}: {type}", f'    """{quoted}"""']


def declared_options(options: type[Options]) -> list[Declared]:
    """The options that are keyword arguments."""
    return [one for one in declarations(options).values() if one.name not in LEFT_OUT]


def hint_text(options: type[Options], name: str) -> str:
    """The type of an option's values, as source."""
    for known in (name, f"{options.__name__}.{name}"):
        if known in WIDER:
            return WIDER[known]
    hints = [hints[name] for hints in _hints(options) if name in hints]
    return _type_text(hints[-1])  # a group may have the name of one of its options


def _hints(options: type[Options]) -> Iterator[dict[str, Any]]:
    yield typing.get_type_hints(options)
    for inner in groups(options):
        yield from _hints(inner)


def _type_text(hint: Any) -> str:
    """A type as source. A caller may pass any sequence for a tuple, a name for a type."""
    args = typing.get_args(hint)
    if isinstance(hint, types.UnionType):
        return " | ".join(_type_text(arg) for arg in args)
    origin = typing.get_origin(hint)
    if origin is tuple and args[-1] is not Ellipsis:
        return f"tuple[{', '.join(_type_text(arg) for arg in args)}]"
    if origin is not None and issubclass(origin, Sequence):
        return f"Sequence[{_type_text(args[0])}]"
    if hint is types.NoneType:
        return "None"
    if hint in (GGMLType, Pooling):
        return "str"
    assert hint in (bool, int, float, str), f"{hint}: how does a caller write such a value?"
    return str(hint.__name__)


def help_text(declared: Declared) -> str:
    """The description of an option, with its default."""
    shown = declared.option.default_text
    if shown is None:
        shown = repr(declared.default)
    text = declared.option.help
    return f"{text} (default: {shown})" if shown else text


# --- docs/api.md ---


def page() -> str:
    """The text of `docs/api.md`."""
    parts = [
        INTRODUCTION.strip(),
        _function("lamella.load", lamella.load),
        *_class(lamella.Model),
        *(part for kind in RESULTS for part in _class(kind)),
        "## Options of `lamella.load`\n\n" + _table(OpenParams),
        "## Options of a generation: `RequestOptions`\n\n"
        + f"{GENERATION}\n\n{_table(RequestParams)}",
        ERRORS + f"\n```\n{_error_tree()}\n```",
    ]
    return "\n\n".join(parts) + "\n"


def _class(kind: type) -> Iterator[str]:
    """The section of a class, with its public methods and properties in order, then those of its
    base."""
    yield f"## `lamella.{kind.__name__}`\n\n{_body(kind)}"
    ours = [base for base in kind.__mro__ if base.__module__.startswith("lamella")]
    for name, member in (pair for base in ours for pair in vars(base).items()):
        if name in ("__next__", "__anext__") or not name.startswith("_"):
            shown = f"{kind.__name__}.{name}"
            if isinstance(member, property):
                yield f"### `{shown}`\n\n{_body(member)}"
            elif inspect.isfunction(member):
                yield _function(shown, member, level=3)


def _function(name: str, function: Any, level: int = 2) -> str:
    """The section of a function: its call without annotations, then its docstring."""
    code = inspect.unwrap(function).__code__
    names = [p for p in code.co_varnames[: code.co_argcount] if p != "self"]
    plain = function.__defaults__ or ()
    names[len(names) - len(plain) :] = [
        f"{name}={value!r}" for name, value in zip(names[-len(plain) :], plain, strict=False)
    ]
    keywords = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    defaults = function.__kwdefaults__ or {}
    arguments = [*names, *(["*"] if keywords else [])]
    arguments += [f"{key}={defaults[key]!r}" if key in defaults else key for key in keywords]
    arguments += ["**options"] if code.co_flags & inspect.CO_VARKEYWORDS else []
    is_async = "await " if inspect.iscoroutinefunction(function) else ""
    heading = "#" * level
    return f"{heading} `{is_async}{name}({', '.join(arguments)})`\n\n{_body(function)}"


def _body(documented: object) -> str:
    """A docstring as Markdown: examples become blocks of code, sections become lists."""
    paragraphs = (inspect.getdoc(documented) or "").split("\n\n")
    return "\n\n".join(_paragraph(paragraph) for paragraph in paragraphs)


def _paragraph(text: str) -> str:
    if text.startswith(">>>"):
        return f"```pycon\n{text}\n```"
    title, *rest = text.split("\n")
    if title.rstrip(":") in SECTIONS:
        lines: list[str] = []
        for line in textwrap.dedent("\n".join(rest)).split("\n"):
            lines.append(f"  {line.strip()}" if line.startswith(" ") else f"- {_item(line)}")
        return f"**{title.rstrip(':')}**\n\n" + "\n".join(lines)
    return text


def _item(line: str) -> str:
    name, colon, text = line.partition(":")
    return f"`{name}`:{text}" if colon and name.isidentifier() else line


def _table(options: type[Options]) -> str:
    rows = ["| option | type | |", "|---|---|---|"]
    for one in declared_options(options):
        rows.append(_row(one.name, hint_text(options, one.name), help_text(one)))
    if options is RequestParams:
        rows += [
            _row(alias, hint_text(options, of), _meaning(alias)) for alias, of in NAMES.items()
        ]
    return "\n".join(rows)


def _row(name: str, type: str, help: str) -> str:
    return f"| `{name}` | `{type.replace(' | ', ' or ')}` | {help} |"  # a bar would end the cell


def _error_tree() -> str:
    doc = errors.__doc__ or ""
    return textwrap.dedent(doc.split("\n\n")[1])


def main() -> None:
    OPTIONS.write_text(options_module(), encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
