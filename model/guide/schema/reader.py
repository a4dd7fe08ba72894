"""Reads sub-schemas into formulas, one keyword after the other.

Knows no keyword: keywords.py has their table. Tested by tests/model/test_guide_schema.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final, NamedTuple

from .document import Document, Draft
from .formulas import (
    ALL_KINDS,
    FALSE,
    TRUE,
    And,
    Atom,
    Formula,
    Kind,
    Lit,
    Origin,
    Scope,
    Unsupported,
)
from .limits import MEMBERS_MAX, Budget
from .numbers import as_decimal
from .pattern import Pattern, parse_pattern
from .pattern_nodes import PatternError


class KeywordError(Exception):
    """A keyword is malformed or cannot be enforced."""

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason)
        self.remedy = remedy


class CircleError(Exception):
    """The meaning of a sub-schema is needed to find that meaning."""


class Sub:
    """One sub-schema while it is read: its keywords and its place."""

    def __init__(self, reader: Reader, number: int) -> None:
        place = reader.document[number]
        self.reader = reader
        self.number = number
        self.place = place
        self.schema: dict[str, Any] = place.schema
        self.keyword = ""

    @property
    def origin(self) -> Origin:
        return Origin(self.place.path, self.keyword)

    def lit(self, *keys: str | int) -> Lit:
        """The sub-schema under `keys`."""
        return self.reader.lit(self.reader.document.child(self.number, *keys))

    def atom(
        self,
        kinds: frozenset[Kind],
        demand: Any,
        opposite: Callable[[], Formula] | None = None,
    ) -> Atom:
        return Atom(kinds, demand, self.origin, opposite)

    def lits(self) -> tuple[Lit, ...]:
        """The sub-schemas of a keyword that has a list of them."""
        found = self.schema[self.keyword]
        if not isinstance(found, list) or not found:
            raise KeywordError("must be a non-empty array of schemas")
        return tuple(self.lit(self.keyword, i) for i in range(len(found)))

    def members(self, keyword: str) -> dict[str, Any]:
        found = self.schema.get(keyword, {})
        if not isinstance(found, dict):
            raise KeywordError("must be an object")
        if len(found) > MEMBERS_MAX:
            raise KeywordError(f"has {len(found)} members, the limit is {MEMBERS_MAX}")
        return found

    def count(self, keyword: str, limit: int) -> int | None:
        """A number of items, characters or properties; None if the keyword is absent."""
        if keyword not in self.schema:
            return None
        value = self.schema[keyword]
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise KeywordError(f"must be a whole number of at least 0, not {value!r:.40}")
        if value > limit:
            raise KeywordError(f"{value:.3g} is too large: the limit is {limit}")
        return value

    def number_value(self) -> Decimal:
        value = self.schema[self.keyword]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise KeywordError(f"must be a number, not {value!r:.40}")
        if not math.isfinite(value) or abs(value) > 1e308:
            raise KeywordError("must be a finite number")
        return as_decimal(value)

    def names(self, value: Any) -> list[str]:
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise KeywordError("must be an array of property names")
        return value


class Keyword(NamedTuple):
    """How a keyword is read, and the kinds of values that it says something about."""

    read: Callable[[Sub], Formula]
    kinds: frozenset[Kind] = ALL_KINDS


_UNEVALUATED: Final = ("unevaluatedProperties", "unevaluatedItems")


class Reader:
    """The formulas of all places of a document, made on demand.

    Attributes:
        disjoint: whether two sub-schemas surely have no common value; set by the owner.
    """

    def __init__(
        self,
        document: Document,
        budget: Budget,
        keywords: Mapping[str, Keyword],
        ignored: frozenset[Origin] = frozenset(),
    ) -> None:
        self.document = document
        self.disjoint: Callable[[Lit, Lit], bool] = lambda a, b: False
        self.budget = budget
        self._keywords = keywords
        self._ignored = ignored
        self._formulas: dict[int, Formula] = {}
        self._reading: set[int] = set()
        self._patterns: dict[str, Pattern] = {}

    def lit(self, number: int, positive: bool = True) -> Lit:
        return Lit(number, positive)

    def is_constant(self, lit: Lit) -> bool | None:
        """True if any value or no value meets the literal; None if that takes more than a look."""
        schema = self.document[lit.place].schema
        if isinstance(schema, bool):
            return schema is lit.positive
        meaningful = any(k in self._keywords or k in _UNEVALUATED for k in schema)
        return None if meaningful else lit.positive

    def formula(self, number: int) -> Formula:
        """What the sub-schema says.

        Raises:
            CircleError: it is being read: a proof for its own oneOf needs it.
        """
        if number in self._reading:
            raise CircleError
        if number not in self._formulas:
            self._reading.add(number)
            try:
                self._formulas[number] = self._read(number)
            finally:
                self._reading.discard(number)
        return self._formulas[number]

    def pattern(self, source: Any) -> Pattern:
        if not isinstance(source, str):
            raise KeywordError("must be a string")
        if source not in self._patterns:
            self.budget.spend(len(source))
            try:
                self._patterns[source] = parse_pattern(source)
            except PatternError as error:
                raise KeywordError(
                    f"the pattern {source!r:.80} is not supported: {error}"
                ) from None
        return self._patterns[source]

    def _read(self, number: int) -> Formula:
        schema = self.document[number].schema
        self.budget.spend()
        if isinstance(schema, bool):
            return TRUE if schema else FALSE
        sub = Sub(self, number)
        if "$ref" in schema and sub.place.draft <= Draft.D7:
            return self._keyword(sub, "$ref")
        parts = [self._keyword(sub, keyword) for keyword in schema if keyword in self._keywords]
        formula: Formula = parts[0] if len(parts) == 1 else And(tuple(parts))
        scoped = [k for k in ("unevaluatedProperties", "unevaluatedItems") if k in schema]
        if scoped:
            sub.keyword = scoped[0]
            lits = [sub.lit(k) if k in schema else None for k in
                    ("unevaluatedProperties", "unevaluatedItems")]  # fmt: skip
            return Scope(number, formula, lits[0], lits[1], sub.origin)
        return formula

    def _keyword(self, sub: Sub, keyword: str) -> Formula:
        self.budget.spend()
        sub.keyword = keyword
        if Origin(sub.place.path, keyword) in self._ignored:
            return TRUE
        try:
            return self._keywords[keyword].read(sub)
        except KeywordError as error:
            sub.keyword = keyword
            kinds = self._keywords[keyword].kinds
            return sub.atom(kinds, Unsupported(str(error), error.remedy))
