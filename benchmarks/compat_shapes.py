"""What a client relies on in a reply: keys, types, and the values that programs compare.

A shape is a flat table from a path, such as `choices[].message.content`, to a type. Knows no server
and no client. Tested by tests/server/test_compat.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

Shape = dict[str, str]

ERRORS: Final = ("body.error.type", "error.type")  # where replies have the type of an error
EMPTY: Final = ("[]", "{}")  # a client that reads one of these takes any other

# keys whose values are words of a protocol
WORDS: Final = frozenset(
    {"object", "type", "role", "finish_reason", "stop_type", "stop_reason", "code", "status"}
)


def shape_of(value: object) -> Shape:
    """The paths of a JSON value with their types; a list has one for all its elements."""
    found: dict[str, set[str]] = {}
    for path, kind in _leaves(value, "", ""):
        found.setdefault(path, set()).add(kind)
    return {path: "|".join(sorted(kinds)) for path, kinds in sorted(found.items())}


def _leaves(value: object, path: str, key: str) -> Iterator[tuple[str, str]]:
    match value:
        case dict() if value:
            for name, part in value.items():
                yield from _leaves(part, f"{path}.{name}" if path else str(name), str(name))
        case list() if value:
            for part in value:
                yield from _leaves(part, f"{path}[]", key)
        case _:
            yield path, _kind(value, key)


def _kind(value: object, key: str) -> str:
    if key in WORDS and isinstance(value, str | int):
        return f"={value}"
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
    return "{}" if isinstance(value, dict) else "[]"


def differences(peer: Mapping[str, str], ours: Mapping[str, str]) -> dict[str, str]:
    """The paths on which a client of the peer could fail, and how they differ.

    Paths that only we have are no difference: clients ignore what they do not know. Of a part that
    we do not have at all, the path is that of the part; of a request that only we refuse, that of
    the error.
    """
    refused = [path for path in ERRORS if path in ours and path not in peer]
    if refused:
        return {refused[0]: f"absent, here {ours[refused[0]]}"}
    found = {}
    for path, kind in peer.items():
        mine = ours.get(path)
        if mine is not None and not _fits(mine, kind):
            found[path] = f"{kind}, here {mine}"
        elif mine is None and not (kind in EMPTY and _has(ours, path)):
            part = next((each for each in _parts(path) if not _has(ours, each)), path)
            found[part] = f"{kind if part == path else 'an object'}, here {_instead(part, ours)}"
    return found


def _parts(path: str) -> Iterator[str]:
    """The path of each part that holds the part at `path`, and `path`."""
    for match in re.finditer(r"\.|\[\]|$", path):
        if match.start():
            yield path[: match.start()]


def _has(shape: Mapping[str, str], path: str) -> bool:
    return path in shape or any(each.startswith((f"{path}.", f"{path}[")) for each in shape)


def _instead(path: str, ours: Mapping[str, str]) -> str:
    """What stands at a path that we do not have: a part above it, or parts below it."""
    below = [each for each in ours if each.startswith((f"{path}.", f"{path}["))]
    if below:
        return f"has {below[0]}"
    above = [each for each in ours if each and path.startswith((f"{each}.", f"{each}["))]
    return f"{above[0]} is {ours[above[0]]}" if above else "absent"


def _fits(mine: str, kind: str) -> bool:
    """A client that reads numbers can read integers, one that reads two types can read one."""
    allowed = set(kind.split("|"))
    if "number" in allowed:
        allowed.add("integer")
    return set(mine.split("|")) <= allowed


def order_of(events: list[Any]) -> str:
    """The kinds of a stream's events in their order, where equal ones follow each other once."""
    found: list[str] = []
    for event in events:
        kind = _event_kind(event)
        if not found or found[-1] != kind:
            found.append(kind)
    return " ".join(found)


def _event_kind(event: Any) -> str:
    """A short word for an event: its name, what its delta has, or that it ends the text."""
    if isinstance(event, str):
        return event
    if "type" in event and isinstance(event["type"], str):
        return event["type"]
    if "choices" in event:
        if not event["choices"]:
            return "usage"
        choice = event["choices"][0]
        keys = sorted(choice["delta"]) if "delta" in choice else ["text"]
        return "+".join(keys) if choice.get("finish_reason") is None else "end"
    return "end" if event.get("stop") else "piece"
