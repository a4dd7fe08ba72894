"""A schema's document: its drafts, its identifiers, and the places that `$ref` points to.

A place is one sub-schema with its path, draft and base address. Knows no keyword's meaning but
those of identifiers. Tested by tests/model/test_guide_schema.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final
from urllib.parse import unquote, urljoin

from ....base.errors import GrammarError


class Draft(IntEnum):
    """The drafts of JSON schema, by year or number."""

    D3 = 3
    D4 = 4
    D6 = 6
    D7 = 7
    D2019 = 2019
    D2020 = 2020


_DRAFTS: Final = {
    "json-schema.org/draft-03/schema": Draft.D3,
    "json-schema.org/draft-04/schema": Draft.D4,
    "json-schema.org/draft-06/schema": Draft.D6,
    "json-schema.org/draft-07/schema": Draft.D7,
    "json-schema.org/draft/2019-09/schema": Draft.D2019,
    "json-schema.org/draft/2020-12/schema": Draft.D2020,
    "json-schema.org/schema": Draft.D2020,
}
# Keywords whose values hold sub-schemas: identifiers count inside of these only. The first have
# them by name, the others are one, or a list of them.
_SCHEMA_MAPS: Final = frozenset(
    ("properties", "patternProperties", "definitions", "$defs", "dependencies", "dependentSchemas")
)
_SCHEMA_LISTS: Final = frozenset(
    ("additionalItems", "additionalProperties", "allOf", "anyOf", "contains", "else", "if", "items",
     "not", "oneOf", "prefixItems", "propertyNames", "then", "unevaluatedItems",
     "unevaluatedProperties", "contentSchema")
)  # fmt: skip


class RefError(Exception):
    """A reference that leads nowhere, or out of the document."""


@dataclass(frozen=True, slots=True)
class Place:
    """A sub-schema. `schema` is an object or a boolean, `path` a JSON path."""

    schema: Any
    path: str
    draft: Draft
    base: str


def child_path(path: str, *keys: str | int) -> str:
    """The JSON path of a member."""
    for key in keys:
        if isinstance(key, str) and re.fullmatch(r"[A-Za-z_$][A-Za-z0-9_$-]*", key):
            path += f".{key}"
        else:
            path += f"[{key!r}]"
    return path


def draft_of(schema: Any, otherwise: Draft, *, is_root: bool = False) -> Draft:
    """The draft that `$schema` names. Raises GrammarError if the root names an unknown one."""
    if not isinstance(schema, dict) or "$schema" not in schema:
        return otherwise
    name = schema["$schema"]
    if isinstance(name, str):
        bare = name.strip().rstrip("#").rstrip("/").removeprefix("https://").removeprefix("http://")
        if bare in _DRAFTS:
            return _DRAFTS[bare]
    if not is_root:
        return otherwise
    known = ", ".join(f"http://{each}" for each in _DRAFTS)
    raise GrammarError(f"`$schema` {name!r}: unknown draft; known are {known}")


class Document:
    """All places of a schema, found by address, anchor or pointer."""

    def __init__(self, schema: Any) -> None:
        self._places: list[Place] = []
        self._numbers: dict[tuple[int, str], int] = {}
        self._resources: dict[str, Place] = {}
        self._anchors: dict[tuple[str, str], Place] = {}
        self.dynamic_anchors: dict[str, int] = {}
        self.recursive_anchors = 0
        root = self._place(schema, "$", draft_of(schema, Draft.D2020, is_root=True), "")
        self._resources.setdefault("", root)
        self._index(root)
        self.root = self.number(root)

    def __getitem__(self, number: int) -> Place:
        return self._places[number]

    def number(self, place: Place) -> int:
        """The number of a place; the same for the same place."""
        key = (id(place.schema), place.path if isinstance(place.schema, bool) else place.base)
        if key not in self._numbers:
            self._numbers[key] = len(self._places)
            self._places.append(place)
        return self._numbers[key]

    def child(self, number: int, *keys: str | int) -> int:
        """The number of the sub-schema under `keys`."""
        parent = self._places[number]
        schema = parent.schema
        for key in keys:
            schema = schema[key]
        return self.add(schema, child_path(parent.path, *keys), number)

    def add(self, schema: Any, path: str, parent: int) -> int:
        """The number of a schema that stands in (or is made for) a place."""
        if not isinstance(schema, dict | bool):
            raise GrammarError(f"`{path}`: a schema must be an object or a boolean")
        above = self._places[parent]
        return self.number(self._place(schema, path, above.draft, above.base))

    def _place(self, schema: Any, path: str, draft: Draft, base: str) -> Place:
        if not isinstance(schema, dict | bool):
            raise GrammarError(f"`{path}`: a schema must be an object or a boolean")
        if isinstance(schema, dict):
            draft = draft_of(schema, draft)
            own = _own_id(schema, draft)
            if own is not None and not own.startswith("#"):
                base = _join(base, own).partition("#")[0]
        return Place(schema, path, draft, base)

    def _index(self, root: Place) -> None:
        stack = [root]
        while stack:
            place = stack.pop()
            if not isinstance(place.schema, dict):
                continue
            own = _own_id(place.schema, place.draft)
            if own is not None and own.startswith("#"):
                self._anchors.setdefault((place.base, own[1:]), place)
            elif own is not None:
                self._resources.setdefault(place.base, place)
            for keyword in ("$anchor", "$dynamicAnchor"):
                name = place.schema.get(keyword)
                if isinstance(name, str):
                    self._anchors.setdefault((place.base, name), place)
            name = place.schema.get("$dynamicAnchor")
            if isinstance(name, str):
                self.dynamic_anchors[name] = self.dynamic_anchors.get(name, 0) + 1
            self.recursive_anchors += place.schema.get("$recursiveAnchor") is True
            stack.extend(self._below(place))

    def _below(self, place: Place) -> Iterator[Place]:
        for keyword, value in place.schema.items():
            if keyword not in _SCHEMA_MAPS and keyword not in _SCHEMA_LISTS:
                continue
            path = child_path(place.path, keyword)
            if isinstance(value, dict) and keyword in _SCHEMA_MAPS:
                members = [(value[k], child_path(path, k)) for k in value]
            elif isinstance(value, list):
                members = [(each, child_path(path, i)) for i, each in enumerate(value)]
            else:
                members = [(value, path)]
            for schema, where in members:
                if isinstance(schema, dict):
                    yield self._place(schema, where, place.draft, place.base)

    def resolve(self, number: int, reference: str) -> int:
        """The place that `$ref` in a place points to. Raises RefError."""
        base = self._places[number].base
        address, _, fragment = _join(base, reference).partition("#")
        resource = self._resources.get(address)
        if resource is None:
            raise RefError(f"{reference!r} is not in the schema; remote references are not loaded")
        fragment = unquote(fragment)
        if not fragment:
            return self.number(resource)
        if not fragment.startswith("/"):
            anchor = self._anchors.get((address, fragment))
            if anchor is None:
                raise RefError(f"no sub-schema has the anchor {fragment!r}")
            return self.number(anchor)
        return self._pointed(resource, fragment, reference)

    def _pointed(self, place: Place, pointer: str, reference: str) -> int:
        value, path = place.schema, place.path
        for part in pointer[1:].split("/"):
            key: str | int = part.replace("~1", "/").replace("~0", "~")
            if isinstance(value, list) and part.isdecimal() and int(part) < len(value):
                key = int(part)
            elif not isinstance(value, dict) or key not in value:
                raise RefError(f"{reference!r} points to nothing")
            value = value[key]
            path = child_path(path, key)
            if isinstance(value, dict | bool):
                place = self._place(value, path, place.draft, place.base)
        if not isinstance(value, dict | bool):
            raise RefError(f"{reference!r} points to no schema")
        return self.number(place)


def _own_id(schema: dict[str, Any], draft: Draft) -> str | None:
    """The schema's identifier. In old drafts, a `$ref` hides what stands beside it."""
    if draft <= Draft.D7 and "$ref" in schema:
        return None
    name = schema.get("id" if draft <= Draft.D4 else "$id")
    return name if isinstance(name, str) else None


def _join(base: str, reference: str) -> str:
    if reference.startswith("#") or not reference:
        return base.partition("#")[0] + reference
    try:
        return urljoin(base, reference)
    except ValueError:
        return reference
