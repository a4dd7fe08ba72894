"""Decides formulas in an alternative before they are multiplied out.

Tested by tests/model/test_guide_schema.py.
"""

from __future__ import annotations

from .alternatives import (
    Alternative,
    Task,
    key_lits,
)
from .document import Document
from .formulas import (
    Absent,
    And,
    Atom,
    Formula,
    Keys,
    Kinds,
    Lit,
    Or,
    Origin,
    Required,
    Values,
    canonical,
    kind_of,
    negate,
)
from .limits import STATE_DEPTH, Budget
from .pattern_nodes import PatternError
from .reader import Reader


class Decider:
    """Says what surely holds, or surely fails, in an alternative."""

    def __init__(self, document: Document, reader: Reader, budget: Budget) -> None:
        self._document = document
        self._reader = reader
        self._budget = budget

    def meaning(self, lit: Lit, blame: Origin | None) -> Formula:
        formula = self._reader.formula(lit.place)
        return formula if lit.positive else negate(formula, blame)

    def is_barred(self, alternative: Alternative, name: str) -> bool:
        """True if the property surely cannot be there."""
        try:
            return any(
                self._reader.is_constant(lit) is False
                for keys in alternative.keys
                for lit in key_lits(keys, name, wide=True)
            )
        except PatternError:
            return False

    def state(
        self, alternative: Alternative, formula: Formula, task: Task, depth: int
    ) -> bool | None:
        """True if a formula surely holds or surely fails in an alternative; None: open."""
        self._budget.spend()
        if isinstance(formula, Kinds):
            if not formula.kinds & alternative.kinds:
                return False
            return True if alternative.kinds <= formula.kinds else None
        if isinstance(formula, Atom):
            return self._atom_state(alternative, formula)
        if isinstance(formula, Values):
            return self._values_state(alternative, formula)
        if isinstance(formula, And | Or):
            return self._joint_state(alternative, formula, task, depth)
        if isinstance(formula, Lit):
            return self._lit_state(alternative, formula, task, depth)
        return None

    def _atom_state(self, alternative: Alternative, atom: Atom) -> bool | None:
        if not atom.kinds & alternative.kinds:
            return True
        demand, is_object = atom.demand, alternative.kinds <= atom.kinds
        if isinstance(demand, Required):
            if demand.name in alternative.required:
                return True
            barred = demand.name in alternative.absent or self.is_barred(alternative, demand.name)
            return False if barred and is_object else None
        if isinstance(demand, Absent):
            if demand.name in alternative.absent or self.is_barred(alternative, demand.name):
                return True
            return False if demand.name in alternative.required and is_object else None
        if isinstance(demand, Keys) and is_object and len(demand.names) == 1:
            [(name, lit)] = demand.names.items()
            if name in alternative.required and not demand.patterns and demand.rest is None:
                return self._value_state(alternative, name, lit)
        return None

    def _value_state(self, alternative: Alternative, name: str, lit: Lit) -> bool | None:
        """True if a property that is there surely meets, or fails, a literal: a discriminator."""
        other = Lit(lit.place)
        for keys in alternative.keys:
            known = keys.names.get(name)
            if (
                known is not None
                and known.positive
                and self._is_discriminator(known)
                and self._is_discriminator(other)
                and self._reader.disjoint(known, other)
            ):
                return not lit.positive
        return None

    def _is_discriminator(self, lit: Lit) -> bool:
        schema = self._document[lit.place].schema
        return isinstance(schema, dict) and ("const" in schema or "enum" in schema)

    @staticmethod
    def _values_state(alternative: Alternative, formula: Values) -> bool | None:
        if alternative.values is not None:
            listed = {canonical(v) for v in formula.values}
            n_hits = sum(key in listed for key in alternative.values)
            if n_hits in (0, len(alternative.values)):
                return (n_hits > 0) == formula.positive
            return None
        kinds = frozenset(kind_of(v) for v in formula.values)
        return False if formula.positive and not kinds & alternative.kinds else None

    def _lit_state(self, alternative: Alternative, lit: Lit, task: Task, depth: int) -> bool | None:
        if (lit.place, not lit.positive, task.scopes) in alternative.seen:
            return False
        if task.scopes:  # even what surely holds adds annotations
            return None
        if (lit.place, lit.positive, ()) in alternative.seen:
            return True
        if depth >= STATE_DEPTH:
            return None
        meaning = self.meaning(lit, lit.blame or task.blame)
        return self.state(alternative, meaning, task, depth + 1)

    def _joint_state(
        self, alternative: Alternative, formula: And | Or, task: Task, depth: int
    ) -> bool | None:
        decisive = isinstance(formula, Or)  # one part of this state decides
        if depth > STATE_DEPTH or len(formula.parts) > 50:
            return None
        states = []
        for part in formula.parts:
            state = self.state(alternative, part, task, depth + 1)
            if state is decisive:
                return decisive
            states.append(state)
        return None if None in states else not decisive
