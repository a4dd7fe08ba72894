"""Proves that two sub-schemas have no common value, so that a oneOf needs no negation.

Tested by tests/model/test_guide_schema.py.
"""

from __future__ import annotations

from typing import Final

from .alternatives import (
    Alternative,
    Conj,
    Placed,
    RefusalError,
    key_lits,
)
from .builder import Builder
from .checks import Checker
from .expansion import Expander
from .formulas import (
    Count,
    ItemAt,
    Items,
    Kind,
    Lit,
    Text,
    Unsupported,
    canonical,
    kind_of,
)
from .limits import DISJOINT_DEPTH
from .pattern_nodes import PatternError
from .plans import ObjectPlan, item_lits
from .reader import CircleError
from .strings import Strings

_TRUE_FALSE: Final = (False, True)


class Prover:
    """Proves that schemas have no common value."""

    def __init__(self, expander: Expander, checker: Checker, builder: Builder) -> None:
        self._expander = expander
        self._checker = checker
        self._builder = builder
        self._depth = 0
        self._disjoint: dict[tuple[Lit, Lit], bool] = {}

    def disjoint(self, a: Lit, b: Lit) -> bool:
        """True if two sub-schemas surely have no common value."""
        if (a, b) not in self._disjoint:
            if self._depth > DISJOINT_DEPTH:
                return False
            try:
                self._disjoint[a, b] = not self._may_hold(self._expander.conj([a, b]))
            except CircleError:
                return False
        return self._disjoint[a, b]

    def _may_hold(self, conj: Conj) -> bool:
        """False if no value meets the conjunction; True if one does, or if that is unknown."""
        if self._expander.is_false(conj):
            return False
        if not conj or self._depth > DISJOINT_DEPTH:
            return True
        self._depth += 1
        try:
            alternatives = self._expander.alternatives(conj)
            return self._expander.is_reduced(conj) or any(
                map(self._alternative_may_hold, alternatives)
            )
        finally:
            self._depth -= 1

    def _alternative_may_hold(self, alternative: Alternative) -> bool:
        if alternative.values is not None:
            return any(
                kind_of(v) in alternative.kinds
                and key not in alternative.excluded
                and all(
                    self._checker.holds(each, v, True) for each in alternative.placed(kind_of(v))
                )
                for key, v in alternative.values.items()
            )
        return any(self._kind_may_hold(alternative, kind) for kind in alternative.kinds)

    def _kind_may_hold(self, alternative: Alternative, kind: Kind) -> bool:
        demands = alternative.placed(kind)
        if any(isinstance(each.atom.demand, Unsupported) for each in demands):
            return True
        if kind is Kind.NULL:
            return canonical(None) not in alternative.excluded
        if kind is Kind.BOOLEAN:
            return any(canonical(v) not in alternative.excluded for v in _TRUE_FALSE)
        if kind in (Kind.INTEGER, Kind.FRACTION):
            try:
                return bool(self._builder.numbers(alternative))
            except RefusalError:
                return True
        if kind is Kind.STRING:
            strings = Strings()
            for each in demands:
                assert isinstance(each.atom.demand, Text)
                strings = strings.both(each.atom.demand.strings)
            return self._builder.may_match(strings, wide=True)
        if kind is Kind.ARRAY:
            return self._array_may_hold(demands)
        return self._object_may_hold(ObjectPlan(demands))

    def _array_may_hold(self, demands: list[Placed]) -> bool:
        counts = [each.atom.demand for each in demands if isinstance(each.atom.demand, Count)]
        least = max((c.least for c in counts), default=0)
        most = min((c.most for c in counts if c.most is not None), default=least)
        items = [each.atom.demand for each in demands if isinstance(each.atom.demand, Items)]
        at = [each.atom.demand for each in demands if isinstance(each.atom.demand, ItemAt)]
        for i in range(min(least, 20)):
            lits = [lit for each in items for lit in item_lits(each, i)]
            lits += [each.item for each in at if each.index == i]
            if not self._may_hold(self._expander.conj(lits)):
                return False
        return least <= most

    def _object_may_hold(self, plan: ObjectPlan) -> bool:
        if plan.required & plan.absent or (plan.most is not None and plan.least > plan.most):
            return False
        if plan.most is not None and len(plan.required) > plan.most:
            return False
        for name in plan.required:
            lits = list(plan.values.get(name, []))
            try:
                for keys in plan.keys:
                    lits += key_lits(keys, name, wide=True)
            except PatternError:
                return True
            if not self._may_hold(self._expander.conj(lits)):
                return False
        return True
