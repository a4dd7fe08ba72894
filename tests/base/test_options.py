"""Options: declared once, found by name, checked when set."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import pytest

from lamella.base.errors import RequestError
from lamella.base.options import (
    Options,
    Shortcut,
    declarations,
    group,
    option,
    truth,
)


def words(text: str) -> tuple[str, ...]:
    if " " in text:
        raise ValueError(f"{text!r} has a space")
    return tuple(text.split(","))


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner(Options):
    size: int = option(4, "-s", "--inner-size", low=1, high=9, help="a size")
    share: float = option(0.5, "--share", low=0, high=1, clamp=True, help="a share")
    is_on: bool = option(True, "--inner", off=("--no-inner",), help="turn it off")
    mode: str = option("a", "--mode", choices=("a", "b"), help="a mode")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer(Options):
    names: tuple[str, ...] = option((), "--names", parse=words, help="names")
    limit: int | None = option(
        None, "--limit", low=0, high=9, help="limit", shortcuts=(Shortcut(("--none",), 0, "0"),)
    )
    hidden: int = option(1, help="without a flag")
    inner: Inner = group(Inner)


def test_values_go_into_their_groups() -> None:
    made = Outer.make({"size": 7, "limit": 3, "mode": "b"})
    assert (made.limit, made.inner.size, made.inner.mode, made.names) == (3, 7, "b", ())
    assert made == Outer(limit=3, inner=Inner(size=7, mode="b"))
    assert made.values() == {
        **{"names": (), "limit": 3, "hidden": 1},
        **{"size": 7, "share": 0.5, "is_on": True, "mode": "b"},
    }


def test_changes() -> None:
    made = Outer.make({"size": 7})
    changed = made.change(size=8, share=0.25, limit=2)
    assert (changed.inner.size, changed.inner.share, changed.limit) == (8, 0.25, 2)
    assert made.inner.size == 7


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("size", "4", "size is '4': must be a whole number"),
        ("size", True, "size is True: must be a whole number"),
        ("size", None, "size is None: must be a whole number"),
        ("size", 0, "size is 0: must be 1 to 9"),
        ("is_on", 1, "is_on is 1: must be True or False"),
        ("share", "x", "share is 'x': must be a number"),
        ("share", 1e39, "share is 1e+39: must be a finite 32-bit number"),
        ("mode", "c", "mode is 'c': must be one of a, b"),
        ("limit", 10, "limit is 10: must be 0 to 9"),
        ("color", 1, "unknown option 'color'; options are names, limit, hidden, size, share"),
        ("siez", 1, "unknown option 'siez'; did you mean size?"),
        ("lim", 1, "unknown option 'lim'; did you mean limit?"),
    ],
)
def test_invalid_values(name: str, value: Any, message: str) -> None:
    with pytest.raises(RequestError) as error:
        Outer.make({name: value})
    assert str(error.value).startswith(message)
    with pytest.raises(RequestError) as error:
        Outer().change(**{name: value})
    assert str(error.value).startswith(message)


def test_numbers_that_are_clamped() -> None:
    assert [Inner(share=x).share for x in (-1.0, 0.5, 2.0)] == [0.0, 0.5, 1.0]
    with pytest.raises(RequestError, match="share is nan"):
        Inner(share=float("nan"))


def test_none_is_valid_only_if_the_type_allows_it() -> None:
    assert Outer(limit=None).limit is None


def test_declarations() -> None:
    found = declarations(Outer)
    assert [*found] == ["names", "limit", "hidden", "size", "share", "is_on", "mode"]
    assert {name: (d.type, d.is_optional, d.path) for name, d in found.items()} == {
        "names": (tuple, False, ()),
        "limit": (int, True, ()),
        "hidden": (int, False, ()),
        "size": (int, False, ("inner",)),
        "share": (float, False, ("inner",)),
        "is_on": (bool, False, ("inner",)),
        "mode": (str, False, ("inner",)),
    }


def test_a_name_is_declared_once() -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Twice(Options):
        size: int = option(1, help="the same name as in the group")
        inner: Inner = group(Inner)

    with pytest.raises(AssertionError, match="size is declared twice"):
        declarations(Twice)


def test_a_range_has_two_limits() -> None:
    with pytest.raises(AssertionError, match="a range needs both limits"):
        option(1, low=1, help="one limit would not be checked")


def test_a_flag_that_turns_off_needs_one_that_turns_on() -> None:
    with pytest.raises(AssertionError, match="need one that turns it on"):
        option(True, off=("--no-x",), help="`x` could not be set again")
    with pytest.raises(AssertionError, match="flags that turn it off are in off"):
        option(True, "--no-x", help="this flag would set True")


def test_words_for_on_and_off() -> None:
    assert [truth(word) for word in ("ON", "1", "enabled", "off", "0", "False")] == [True] * 3 + [
        False
    ] * 3
    with pytest.raises(ValueError, match="'maybe' is not one of on, 1, true"):
        truth("maybe")


def test_options_are_immutable() -> None:
    assert fields(Outer)
    with pytest.raises(AttributeError):
        Outer().limit = 3  # type: ignore[misc]


@pytest.mark.parametrize("text", ["4_096", " 5", "5 ", "\u0665", "", "1x"])
def test_texts_that_are_no_numbers(text: str) -> None:
    with pytest.raises(ValueError, match="is not a whole number"):
        declarations(Inner)["size"].parse(text)
    with pytest.raises(ValueError, match="is not a number"):
        declarations(Inner)["share"].parse(text)
