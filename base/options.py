"""Options that a user may set, each declared once as a field of a dataclass.

    @dataclass(frozen=True, slots=True, kw_only=True)
    class ContextParams(Options):
        n_ctx: int = option(0, "-c", "--ctx-size", low=0, high=INT32_MAX, help="tokens of context")

    @dataclass(frozen=True, slots=True, kw_only=True)
    class OpenParams(Options):
        context: ContextParams = group(ContextParams)

    params = OpenParams.make({"n_ctx": 4096})    # OpenParams(context=ContextParams(n_ctx=4096))

A new option needs only its declaration: the command line, its variables, the config file,
`lamella.load` and the plan read the declarations. Knows no command and no option.
Tested by tests/base/test_options.py.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, field
from difflib import get_close_matches
from reprlib import repr as shortened
from typing import Any, ClassVar, Final, NamedTuple, Self, TypeVar

from .errors import RequestError

FLOAT_MAX: Final = (2 - 2**-23) * 2.0**127  # of a float32
ON: Final = ("on", "1", "true", "yes", "enabled")
OFF: Final = ("off", "0", "false", "no", "disabled")

Group = TypeVar("Group", bound="Options")


class Shortcut(NamedTuple):
    """More flags of an option. Each sets it to `value`, or to what `parse` returns for its text.
    `metavar` is the placeholder of the text, `env` another name of the environment variables."""

    flags: Sequence[str]
    value: object
    help: str
    parse: Callable[[str], Any] | None = None
    metavar: str | None = None
    env: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """The declaration of an option. See `option` for the arguments."""

    flags: Sequence[str]
    off: Sequence[str]
    bare: str | None
    help: str
    metavar: str | None
    default_text: str | None
    env: str | None
    low: float | None
    high: float | None
    clamp: bool
    choices: Sequence[str] | None
    parse: Callable[[str], Any] | None
    check: Callable[[str, Any], Any] | None
    repeats: bool
    never_empty: bool
    shortcuts: Sequence[Shortcut]


def option(
    default: Any,
    *flags: str,
    help: str,
    off: Sequence[str] = (),
    bare: str | None = None,
    metavar: str | None = None,
    default_text: str | None = None,
    env: str | None = None,
    low: float | None = None,
    high: float | None = None,
    clamp: bool = False,
    choices: Sequence[str] | None = None,
    parse: Callable[[str], Any] | None = None,
    check: Callable[[str, Any], Any] | None = None,
    repeats: bool = False,
    never_empty: bool = False,
    shortcuts: Sequence[Shortcut] = (),
) -> Any:
    """Declare an option: the default of a dataclass field, whose name is the Python argument.

    Args:
        default: the value if the option is not set.
        flags: flags of the command line, the short one first. Those of a bool set it to True.
        help: one line. The command line appends the default.
        off: flags that set a bool to False. `flags` must have the opposite ones.
        bare: the text that a flag without a value stands for. The value may then be left out.
        metavar: the placeholder of the value in `--help`; by default N.
        default_text: the default in words, for `--help`.
        env: another name of the environment variables, besides the long flags' names. `$NAME`
            is exactly this variable of another program.
        low, high: the smallest and the largest valid number; both or none.
        clamp: move numbers into the range instead of refusing them.
        choices: the valid texts.
        parse: returns the value of a text; raises ValueError or RequestError with the reason. None:
            the field's type decides.
        check: returns the checked value, from the name and a value of any type; raises
            RequestError.
        repeats: the flag may be repeated. `parse` returns tuples, which are joined.
        never_empty: an empty variable is an invalid value. Other options are not set by one.
        shortcuts: flags that set the option to a fixed value.
    """
    assert (low is None) == (high is None), "a range needs both limits"
    assert flags or not off, "flags that turn an option off need one that turns it on"
    assert not any(flag.startswith("--no-") for flag in flags), "flags that turn it off are in off"
    declared = Option(
        flags=flags,
        off=off,
        bare=bare,
        help=help,
        metavar=metavar,
        default_text=default_text,
        env=env,
        low=low,
        high=high,
        clamp=clamp,
        choices=choices,
        parse=parse,
        check=check,
        repeats=repeats,
        never_empty=never_empty,
        shortcuts=shortcuts,
    )
    return field(default=default, metadata={"option": declared})


def group(kind: type[Group]) -> Group:
    """Declare a field that holds a group of options."""
    return field(default_factory=kind)


class Declared(NamedTuple):
    """An option of a class: its name, the type of its values, its default, its declaration, and the
    names of the groups it is in, outermost first."""

    name: str
    type: type
    is_optional: bool
    default: Any
    option: Option
    path: tuple[str, ...]

    def parse(self, text: str) -> Any:
        """The value of a text. Raises ValueError with the reason."""
        if self.option.parse is not None:
            return self.option.parse(text)
        if self.type is bool:
            return truth(text)
        if self.type in (int, float):
            return parse_number(self.type, text)
        if self.option.choices is not None and text not in self.option.choices:
            raise ValueError(f"{text!r} is not one of {', '.join(self.option.choices)}")
        return text


class Options:
    """Base of dataclasses whose fields are options or groups of options. Checks values at creation.

    Raises:
        RequestError: a value of a wrong type or out of range; names the option and valid values.
    """

    __slots__ = ()

    title: ClassVar[str] = "options"  # the heading in --help
    description: ClassVar[str | None] = None  # a line below the heading

    def __post_init__(self) -> None:
        for declared in declarations(type(self)).values():
            if not declared.path:
                value = checked(declared, getattr(self, declared.name))
                object.__setattr__(self, declared.name, value)

    @classmethod
    def make(cls, given: Mapping[str, Any]) -> Self:
        """Options with these values, given by name regardless of groups, and defaults for the rest.

        Raises:
            RequestError: an unknown name, or an invalid value.
        """
        _check_names(cls, given)
        return cls(**_nested(cls, given))

    def change(self, **given: Any) -> Self:
        """A copy of the options with other values, given by name regardless of groups.

        Raises:
            RequestError: an unknown name, or an invalid value.
        """
        _check_names(type(self), given)
        changes: dict[str, Any] = {}
        for name, value in given.items():
            path = declarations(type(self))[name].path
            if path:
                inner = changes.get(path[0], getattr(self, path[0]))
                changes[path[0]] = inner.change(**{name: value})
            else:
                changes[name] = value
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]

    def values(self) -> dict[str, Any]:
        """All values by name, including those of groups."""
        found: dict[str, Any] = {}
        for declared in declarations(type(self)).values():
            owner: Any = self
            for step in declared.path:
                owner = getattr(owner, step)
            found[declared.name] = getattr(owner, declared.name)
        return found


_DECLARATIONS: Final[dict[type, dict[str, Declared]]] = {}


def declarations(cls: type[Options]) -> Mapping[str, Declared]:
    """The options of a class by name, including those of its groups, in order."""
    known = _DECLARATIONS.get(cls)
    if known is None:
        known = _DECLARATIONS[cls] = _collect(cls)
    return known


def groups(cls: type[Options]) -> list[type[Options]]:
    """The classes of the groups of a class, in order."""
    hints = typing.get_type_hints(cls)
    kinds = [_plain_type(hints[one.name])[0] for one in dataclasses.fields(cls)]  # type: ignore[arg-type]
    return [kind for kind in kinds if issubclass(kind, Options)]


def _collect(cls: type[Options]) -> dict[str, Declared]:
    found: dict[str, Declared] = {}
    for declared in _walk(cls, ()):
        assert declared.name not in found, f"option {declared.name} is declared twice"
        found[declared.name] = declared
    return found


def _walk(cls: type[Options], path: tuple[str, ...]) -> Iterator[Declared]:
    hints = typing.get_type_hints(cls)
    for one in dataclasses.fields(cls):  # type: ignore[arg-type]
        kind, is_optional = _plain_type(hints[one.name])
        declared = one.metadata.get("option")
        if declared is not None:
            yield Declared(one.name, kind, is_optional, one.default, declared, path)
        elif one.default_factory is not MISSING and issubclass(kind, Options):
            yield from _walk(kind, (*path, one.name))


def _plain_type(hint: Any) -> tuple[type, bool]:
    """The class of a type hint, and True if None is valid too."""
    parts = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    plain = next(part for part in parts if part is not types.NoneType)
    return typing.get_origin(plain) or plain, types.NoneType in parts


def _check_names(cls: type[Options], given: Mapping[str, Any]) -> None:
    known = declarations(cls)
    unknown = next((name for name in given if name not in known), None)
    if unknown is not None:
        raise unknown_option(unknown, known)


def unknown_option(name: str, known: Collection[str]) -> RequestError:
    """The error for an unknown name: it suggests the nearest known one, or lists all."""
    near = get_close_matches(name, known, n=1)
    near += [one for one in known if one.startswith(name) or name.startswith(one)]
    if near:
        return RequestError(f"unknown option {name!r}; did you mean {near[0]}?")
    return RequestError(f"unknown option {name!r}; options are {', '.join(known)}")


def _nested(cls: type[Options], given: Mapping[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    inner: dict[str, dict[str, Any]] = {}
    known = declarations(cls)
    for name, value in given.items():
        path = known[name].path
        if path:
            inner.setdefault(path[0], {})[name] = value
        else:
            made[name] = value
    for one in dataclasses.fields(cls):  # type: ignore[arg-type]
        if one.name in inner:
            assert callable(one.default_factory), f"{one.name} is not a group"
            made[one.name] = one.default_factory.make(inner[one.name])  # type: ignore[attr-defined]
    return made


def checked(declared: Declared, value: Any) -> Any:
    """The checked value.

    Raises:
        RequestError: the value is invalid.
    """
    name, rule = declared.name, declared.option
    if value is None and declared.is_optional:
        return None
    if rule.check is not None:
        return rule.check(name, value)
    if declared.type in _CONVERSIONS:
        value = _CONVERSIONS[declared.type](name, value)
    if rule.choices is not None and value not in rule.choices:
        raise refused(name, value, f"one of {', '.join(rule.choices)}")
    if rule.low is None or rule.high is None or rule.low <= value <= rule.high:
        return value
    if rule.clamp:
        return type(value)(rule.low if value < rule.low else rule.high)
    raise refused(name, value, f"{rule.low:.10g} to {rule.high:.10g}")


def refused(name: str, value: object, valid: str) -> RequestError:
    """The error for an invalid value. `valid` describes the valid ones."""
    return RequestError(f"{name} is {shortened(value)}: must be {valid}")


def whole(name: str, value: object) -> int:
    """The value as an int; RequestError if it is not a whole number."""
    if isinstance(value, float) and value.is_integer():
        return int(value)  # JSON does not distinguish 40.0 and 40
    if isinstance(value, bool) or not isinstance(value, int):
        raise refused(name, value, "a whole number")
    return value


def real(name: str, value: object) -> float:
    """The value as a float; RequestError if it is not a finite float32."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise refused(name, value, "a number")
    if not -FLOAT_MAX <= value <= FLOAT_MAX:  # also refuses NaN
        raise refused(name, value, "a finite 32-bit number")
    return float(value)


def _bool(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise refused(name, value, "True or False")
    return value


_CONVERSIONS: Final[dict[type, Callable[[str, object], Any]]] = {
    int: whole,
    float: real,
    bool: _bool,
}


Number = TypeVar("Number", int, float)


def parse_number(kind: type[Number], text: str) -> Number:
    """The number of a text in ASCII, without spaces and underscores, which Python would allow.
    Raises ValueError with the reason."""
    with suppress(ValueError):
        if text.isascii() and "_" not in text and text == text.strip():
            return kind(text)
    raise ValueError(f"{text!r} is not {'a whole number' if kind is int else 'a number'}")


def parse_json(text: str, name: str = "") -> Any:
    """The value of a JSON text. Raises ValueError with the reason. `name` stands for the text in
    the message."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as e:
        raise ValueError(f"{name or repr(text[:100])} is not JSON: {e}") from None


def truth(text: str) -> bool:
    """The value of a word like on or off. Raises ValueError with the valid words."""
    if text.lower() in ON + OFF:
        return text.lower() in ON
    raise ValueError(f"{text!r} is not one of {', '.join(ON + OFF)}")
