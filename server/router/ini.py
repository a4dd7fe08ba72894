"""Reads INI files of presets, as llama-server has them.

    version = 1

    [*]                        ; for all models
    ctx-size = 4096

    [small]
    model = models/small.gguf

`;` and `#` begin a comment, at the begin of a line or behind a space. Knows no flag.
Tested by tests/server/test_router_presets.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from ...base.errors import RequestError
from ...base.utf8 import read_text

FOR_ALL: Final = "*"
_COMMENT: Final = re.compile(r"(?:^|\s)[;#].*")
_HEAD: Final = re.compile(r"\[([^\]]+)\]")


class Entry(NamedTuple):
    """A key with its value. `place` is its file and line, for errors."""

    place: str
    key: str
    value: str


class Section(NamedTuple):
    """A section with its entries. `place` is its file and line."""

    place: str
    name: str
    entries: list[Entry]


def read_ini(path: str) -> list[Section]:
    """The sections of a file, each once. Keys before the first section are those of `[*]`.

    Raises:
        RequestError: the file cannot be read, or a line of it; names the line.
    """
    text = read_text(path)
    sections = {FOR_ALL: Section(f"{path}:1", FOR_ALL, [])}
    current = sections[FOR_ALL]
    for place, line in _lines(path, text):
        head = _HEAD.fullmatch(line)
        if head is not None:
            current = _section(sections, place, head[1].strip())
        else:
            _add(current, place, line)
    return list(sections.values())


def _lines(path: str, text: str) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(text.split("\n"), start=1):
        stripped = _COMMENT.sub("", line).strip()
        if stripped:
            yield f"{path}:{number}", stripped


def _section(sections: dict[str, Section], place: str, name: str) -> Section:
    known = sections.get(name)
    if known is None:
        known = sections[name] = Section(place, name, [])
    elif name != FOR_ALL:
        raise RequestError(f"{place}: [{name}] is there twice, first at {known.place}")
    return known


def _add(section: Section, place: str, line: str) -> None:
    key, is_there, value = (part.strip() for part in line.partition("="))
    if not is_there or not key:
        raise RequestError(f"{place}: {line[:80]!r} must be [NAME] or KEY = VALUE")
    if any(key == known.key for known in section.entries):
        raise RequestError(f"{place}: {key} is there twice in [{section.name}]")
    section.entries.append(Entry(place, key, value))
