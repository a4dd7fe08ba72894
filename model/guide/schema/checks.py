"""Checks listed values, as a validator does. Tested by tests/model/test_guide_schema.py."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from .alternatives import (
    Conj,
    Placed,
    key_lits,
)
from .expansion import Expander
from .formulas import (
    Absent,
    Contains,
    Count,
    Demand,
    HasKey,
    ItemAt,
    Items,
    KeyNames,
    Keys,
    Lit,
    Multiple,
    Required,
    Text,
    Unique,
    Unsupported,
    Within,
    canonical,
    kind_of,
)
from .limits import Budget
from .numbers import as_decimal, is_multiple
from .pattern_match import matches
from .pattern_nodes import PatternError
from .strings import Strings


class Checker:
    """True if listed values meet conjunctions."""

    def __init__(self, expander: Expander, budget: Budget) -> None:
        self._expander = expander
        self._budget = budget

    def accepts(self, conj: Conj, value: Any, *, wide: bool = False) -> bool:
        """True if the value meets the conjunction.

        Where that is uncertain, or a keyword is not supported, the answer is `wide`.
        """
        kind = kind_of(value)
        key = canonical(value)
        for alternative in self._expander.alternatives(conj):
            if (
                kind in alternative.kinds
                and key not in alternative.excluded
                and (alternative.values is None or key in alternative.values)
                and all(self.holds(each, value, wide) for each in alternative.placed(kind))
            ):
                return True
        return False

    def holds(self, placed: Placed, value: Any, wide: bool) -> bool:
        """True if a value of one of the atom's kinds meets its demand."""
        self._budget.spend()
        demand = placed.atom.demand
        try:
            if isinstance(demand, Unsupported):
                return wide
            if isinstance(demand, Within):
                return demand.interval.holds(Fraction(as_decimal(value)))
            if isinstance(demand, Multiple):
                return is_multiple(value, demand.step)
            if isinstance(demand, Text):
                return _in_strings(demand.strings, value, wide)
            if isinstance(demand, Count):
                return demand.least <= len(value) and (
                    demand.most is None or len(value) <= demand.most
                )
            if isinstance(demand, Items | ItemAt | Contains | Unique):
                return self._array_holds(demand, value, wide)
            return self._object_holds(demand, value, wide)
        except PatternError:
            return wide

    def _meets(self, lit: Lit | None, value: Any, wide: bool) -> bool:
        return lit is None or self.accepts(self._expander.conj([lit]), value, wide=wide)

    def _array_holds(
        self, demand: Items | ItemAt | Contains | Unique, value: list[Any], wide: bool
    ) -> bool:
        if isinstance(demand, Unique):
            return len({canonical(v) for v in value}) == len(value)
        if isinstance(demand, ItemAt):
            return len(value) > demand.index and self._meets(demand.item, value[demand.index], wide)
        if isinstance(demand, Items):
            n = len(demand.first)
            return all(
                self._meets(demand.first[i] if i < n else demand.rest, each, wide)
                for i, each in enumerate(value)
            )
        surely = sum(self._meets(demand.item, v, False) for v in value[demand.start :])
        maybe = sum(self._meets(demand.item, v, True) for v in value[demand.start :])
        most, least = (surely, maybe) if wide else (maybe, surely)
        return least >= demand.least and (demand.most is None or most <= demand.most)

    def _object_holds(self, demand: Demand, value: dict[str, Any], wide: bool) -> bool:
        if isinstance(demand, Required):
            return demand.name in value
        if isinstance(demand, Absent):
            return demand.name not in value
        if isinstance(demand, KeyNames):
            return all(self._meets(demand.key, name, wide) for name in value)
        if isinstance(demand, HasKey):
            return any(
                _in_strings(demand.names, name, wide)
                and self._meets(demand.key, name, wide)
                and self._meets(demand.value, each, wide)
                for name, each in value.items()
            )
        assert isinstance(demand, Keys), demand
        return all(
            self._meets(lit, each, wide)
            for name, each in value.items()
            for lit in key_lits(demand, name, wide)
        )


def _in_strings(strings: Strings, text: str, wide: bool) -> bool:
    if not wide:
        return strings.holds(text)
    return (
        strings.least <= len(text)
        and (strings.most is None or len(text) <= strings.most)
        and text not in strings.excluded
        and all(matches(p.wide, text) for p in strings.patterns)
        and not any(matches(p.narrow, text) for p in strings.avoided)
    )
