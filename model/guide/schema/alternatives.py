"""Alternatives: lists of demands that hold together, and the tasks that fill them.

Tested by tests/model/test_guide_schema.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from .formulas import (
    ALL_KINDS,
    Absent,
    And,
    Atom,
    Formula,
    Keys,
    Kind,
    Kinds,
    Lit,
    Or,
    Origin,
    Required,
    Scope,
    Unsupported,
)
from .limits import SUBSETS_MAX
from .pattern_match import matches

Conj = tuple[Lit, ...]  # all of them hold
Order = tuple[int, ...]  # where a keyword stands in the schema


class RefusalError(Exception):
    """A demand that cannot be met. With `blame`, fewer values are accepted instead."""

    def __init__(self, origin: Origin, problem: Unsupported, blame: Origin | None) -> None:
        super().__init__(origin, problem.reason)
        self.origin = origin
        self.problem = problem
        self.blame = blame


@dataclass(frozen=True, slots=True)
class Placed:
    """An atom in an alternative: where it stands, and what it serves."""

    order: Order
    atom: Atom
    blame: Origin | None
    scopes: tuple[int, ...]


@dataclass(slots=True)
class Task:
    """A formula that is to be added to an alternative, with its place and what it serves."""

    formula: Formula
    order: Order
    blame: Origin | None
    scopes: tuple[int, ...]

    def part(self, formula: Formula, i: int) -> Task:
        return Task(formula, (*self.order, i), self.blame, self.scopes)


@dataclass(slots=True)
class Alternative:
    """One way to meet a conjunction.

    Attributes:
        kinds: the kinds that a value may have.
        values: the values that it may have, by canonical form; None: any.
        excluded: values that it may not have.
        atoms: the demands, in the order of the schema once it is complete.
        seen: the literals that were added.
        required, absent, keys: what the demands say about properties.
        pending: what is still to be multiplied out.
        scopes: sub-schemas with unevaluatedProperties or unevaluatedItems.
    """

    kinds: frozenset[Kind] = ALL_KINDS
    values: dict[Any, Any] | None = None
    excluded: dict[Any, Any] = field(default_factory=dict)
    atoms: list[Placed] = field(default_factory=list)
    seen: set[tuple[int, bool, tuple[int, ...]]] = field(default_factory=set)
    required: set[str] = field(default_factory=set)
    absent: set[str] = field(default_factory=set)
    keys: list[Keys] = field(default_factory=list)
    pending: list[Task] = field(default_factory=list)
    scopes: list[tuple[Scope, Task]] = field(default_factory=list)

    def copy(self) -> Alternative:
        return Alternative(
            self.kinds,
            self.values,
            dict(self.excluded),
            list(self.atoms),
            set(self.seen),
            set(self.required),
            set(self.absent),
            list(self.keys),
            list(self.pending),
            list(self.scopes),
        )

    def placed(self, kind: Kind) -> list[Placed]:
        """The demands on values of a kind."""
        return [each for each in self.atoms if kind in each.atom.kinds]


def key_lits(keys: Keys, name: str, wide: bool = False) -> Iterator[Lit]:
    """The sub-schemas for a property. An uncertain match of a pattern counts both ways."""
    is_rest = name not in keys.names
    if not is_rest:
        yield keys.names[name]
    for pattern, lit in keys.patterns:
        surely, maybe = matches(pattern.narrow, name), matches(pattern.wide, name)
        if surely or (maybe and not wide):
            yield lit
        if surely or (maybe and wide):
            is_rest = False
    if is_rest and keys.rest is not None:
        yield keys.rest


def options_of(task: Task) -> tuple[Formula, ...]:
    """The options of an Or; with annotations at stake, every combination is one."""
    formula = task.formula
    assert isinstance(formula, Or), formula
    parts = formula.parts
    if not (formula.overlapping and task.scopes and 1 < len(parts) <= SUBSETS_MAX):
        return parts
    subsets = range(1, 2 ** len(parts))
    return tuple(And(tuple(p for i, p in enumerate(parts) if bits >> i & 1)) for bits in subsets)


def is_simple(formula: Formula) -> bool:
    """True if a formula only says which kind a value has, or which properties."""
    if isinstance(formula, And):
        return all(map(is_simple, formula.parts))
    if isinstance(formula, Atom):
        return isinstance(formula.demand, Required | Absent)
    return isinstance(formula, Kinds)
