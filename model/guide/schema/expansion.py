"""Multiplies formulas out into alternatives: lists of demands that hold together.

A conjunction is a tuple of literals: the sub-schemas that one value has to meet, or fail. Its
alternatives say which kinds (or which listed values) a value may have, and what is demanded of
each. Children stay conjunctions, so recursive schemas stay finite. Tested by
tests/model/test_guide_schema.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from ....base.errors import GrammarError
from .document import Document
from .formulas import (
    ALL_KINDS,
    Absent,
    And,
    Atom,
    Contains,
    Count,
    Demand,
    Formula,
    HasKey,
    ItemAt,
    Items,
    KeyNames,
    Keys,
    Kind,
    Kinds,
    Lit,
    Multiple,
    Or,
    Origin,
    Required,
    Scope,
    Text,
    Unique,
    Unsupported,
    Values,
    Within,
    canonical,
    kind_of,
    negate,
)
from .keywords_nested import keys_atom
from .limits import ALTERNATIVES, STATE_DEPTH, SUBSETS_MAX, Budget
from .numbers import as_decimal, is_multiple
from .pattern_match import matches
from .pattern_nodes import PatternError
from .reader import Reader
from .strings import Strings

Conj = tuple[Lit, ...]
Order = tuple[int, ...]


class RefusalError(Exception):
    """A demand that cannot be met. `tolerant`: fewer values are accepted instead."""

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
class _Task:
    formula: Formula
    order: Order
    blame: Origin | None
    scopes: tuple[int, ...]

    def part(self, formula: Formula, i: int) -> _Task:
        return _Task(formula, (*self.order, i), self.blame, self.scopes)


@dataclass(slots=True)
class Alternative:
    """One way to meet a conjunction.

    Attributes:
        kinds: the kinds that a value may have.
        values: the values that it may have, by canonical form; None: any.
        excluded: values that it may not have.
        atoms: the demands, in the order of the schema once it is complete.
    """

    kinds: frozenset[Kind] = ALL_KINDS
    values: dict[Any, Any] | None = None
    excluded: dict[Any, Any] = field(default_factory=dict)
    atoms: list[Placed] = field(default_factory=list)
    seen: set[tuple[int, bool, tuple[int, ...]]] = field(default_factory=set)
    required: set[str] = field(default_factory=set)
    absent: set[str] = field(default_factory=set)
    keys: list[Keys] = field(default_factory=list)
    pending: list[_Task] = field(default_factory=list)
    scopes: list[tuple[Scope, _Task]] = field(default_factory=list)

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


class Expander:
    """The alternatives of conjunctions, computed once for each."""

    def __init__(self, document: Document, reader: Reader, budget: Budget) -> None:
        self.document = document
        self.reader = reader
        self.budget = budget
        self._known: dict[tuple[tuple[int, bool, bool], ...], list[Alternative]] = {}
        self._reduced: set[tuple[tuple[int, bool, bool], ...]] = set()

    def conj(self, lits: list[Lit], blame: Origin | None = None) -> Conj:
        """The conjunction of the literals without what is always true."""
        found: dict[tuple[int, bool], Lit] = {}
        for lit in lits:
            if self.reader.is_constant(lit) is True:
                continue
            key = (lit.place, lit.positive)
            tolerant = lit.blame or blame
            if key not in found or (found[key].blame and not tolerant):
                found[key] = Lit(lit.place, lit.positive, tolerant)
        return tuple(found.values())

    def is_false(self, conj: Conj) -> bool:
        """Whether the conjunction is empty at first sight."""
        positive = {lit.place for lit in conj if lit.positive}
        return any(
            self.reader.is_constant(lit) is False or (not lit.positive and lit.place in positive)
            for lit in conj
        )

    def alternatives(self, conj: Conj) -> list[Alternative]:
        """All ways to meet the conjunction."""
        key = tuple((lit.place, lit.positive, lit.blame is not None) for lit in conj)
        found = self._known.get(key)
        if found is None:
            found = self._expand(conj, False)
            if found is None:
                self._reduced.add(key)
                found = self._expand(conj, True)
            if found is None:
                path = self.document[conj[0].place].path
                raise GrammarError(
                    f"the schema at `{path}` is too complex: its anyOf, oneOf, if and not make"
                    f" more than {ALTERNATIVES} alternatives"
                )
            self._known[key] = found
        return found

    def is_reduced(self, conj: Conj) -> bool:
        """Whether some alternatives of negations are left out, because there are too many."""
        key = tuple((lit.place, lit.positive, lit.blame is not None) for lit in conj)
        return key in self._reduced

    def _expand(self, conj: Conj, reduced: bool) -> list[Alternative] | None:
        """The alternatives; None if they are too many.

        `reduced` takes only the simple ways to fail what a negation wants to fail.
        """
        first = Alternative()
        tasks = [_Task(lit, (i,), lit.blame, ()) for i, lit in enumerate(conj)]
        stack: list[tuple[Alternative, list[_Task]]] = [(first, tasks)]
        done: list[Alternative] = []
        while stack:
            alternative, tasks = stack.pop()
            if not self._apply(alternative, tasks) or not self._propagate(alternative):
                continue
            if not alternative.pending:
                self._close_scopes(alternative)
                alternative.atoms.sort(key=lambda each: each.order)
                done.append(alternative)
            else:
                task = min(alternative.pending, key=lambda t: len(_options(t)))
                alternative.pending.remove(task)
                options = _options(task)
                if reduced and task.blame is not None:
                    options = tuple(o for o in options if _is_simple(o)) or options
                for i, option in reversed(list(enumerate(options))):
                    stack.append((alternative.copy(), [task.part(option, i)]))
            if len(done) + len(stack) > ALTERNATIVES:
                return None
        return done

    def _apply(self, alternative: Alternative, tasks: list[_Task]) -> bool:
        """Add formulas to an alternative; False if they contradict it."""
        queue = list(reversed(tasks))
        while queue:
            self.budget.spend()
            task = queue.pop()
            formula = task.formula
            if isinstance(formula, And):
                parts = [task.part(p, i) for i, p in enumerate(formula.parts)]
                queue.extend(reversed(parts))
            elif isinstance(formula, Or):
                alternative.pending.append(task)
            elif isinstance(formula, Scope):
                inner = _Task(formula.inner, task.order, task.blame, (*task.scopes, formula.place))
                alternative.scopes.append((formula, task))
                queue.append(inner)
            elif isinstance(formula, Lit):
                key = (formula.place, formula.positive, task.scopes)
                if (formula.place, not formula.positive, task.scopes) in alternative.seen:
                    return False
                if key not in alternative.seen:
                    alternative.seen.add(key)
                    blame = formula.blame or task.blame
                    scopes = task.scopes if formula.positive else ()  # `not` annotates nothing
                    queue.append(_Task(self._meaning(formula, blame), task.order, blame, scopes))
            elif not self._add(alternative, task):
                return False
        return True

    def _meaning(self, lit: Lit, blame: Origin | None) -> Formula:
        formula = self.reader.formula(lit.place)
        return formula if lit.positive else negate(formula, blame)

    def _add(self, alternative: Alternative, task: _Task) -> bool:
        formula = task.formula
        if isinstance(formula, Kinds):
            alternative.kinds &= formula.kinds
        elif isinstance(formula, Values):
            return self._add_values(alternative, formula, task)
        else:
            assert isinstance(formula, Atom), formula
            if not formula.kinds & alternative.kinds:
                return True
            self._note(alternative, formula.demand)
            alternative.atoms.append(Placed(task.order, formula, task.blame, task.scopes))
        return bool(alternative.kinds)

    def _note(self, alternative: Alternative, demand: Demand) -> None:
        """Remember which properties there are, to see contradictions early."""
        if isinstance(demand, Required):
            alternative.required.add(demand.name)
            failed = demand.name in alternative.absent or self._is_barred(alternative, demand.name)
        elif isinstance(demand, Absent):
            alternative.absent.add(demand.name)
            failed = demand.name in alternative.required
        elif isinstance(demand, Keys):
            alternative.keys.append(demand)
            failed = any(self._is_barred(alternative, name) for name in alternative.required)
        else:
            return
        if failed:
            alternative.kinds -= {Kind.OBJECT}

    def _is_barred(self, alternative: Alternative, name: str) -> bool:
        """Whether the property surely cannot be there."""
        try:
            return any(
                self.reader.is_constant(lit) is False
                for keys in alternative.keys
                for lit in key_lits(keys, name, wide=True)
            )
        except PatternError:
            return False

    def _add_values(self, alternative: Alternative, formula: Values, task: _Task) -> bool:
        listed = {canonical(v): v for v in formula.values}
        self.budget.spend(len(listed))
        if formula.positive:
            if alternative.values is not None:
                listed = {k: v for k, v in alternative.values.items() if k in listed}
            alternative.values = listed
            alternative.kinds &= frozenset(kind_of(v) for v in listed.values())
            return bool(alternative.kinds)
        for key, value in listed.items():
            if isinstance(value, list | dict):
                task = _Task(
                    Lit(self._structure(value, formula.origin), False, task.blame),
                    task.order,
                    task.blame or formula.origin,
                    task.scopes,
                )
                if alternative.values is None and not self._apply(alternative, [task]):
                    return False
            alternative.excluded[key] = value
        return True

    def _structure(self, value: Any, origin: Origin) -> int:
        """The place of a schema that a listed array or object meets, and no other value."""
        schema: dict[str, Any]
        if isinstance(value, list):
            schema = {
                "type": "array",
                "items": [{"const": each} for each in value],
                "additionalItems": False,
                "minItems": len(value),
            }
        else:
            schema = {
                "type": "object",
                "properties": {name: {"const": each} for name, each in value.items()},
                "additionalProperties": False,
                "required": list(value),
            }
        return self.document.add(schema, f"{origin.path}.{origin.keyword}", self.document.root)

    # Or: drop what is decided, before anything is copied

    def _propagate(self, alternative: Alternative) -> bool:
        """Decide every Or that has at most one option left; False on a contradiction."""
        changed = True
        while changed:
            changed = False
            for task in list(alternative.pending):
                options = _options(task)
                live: list[tuple[int, Formula]] | None = []
                for i, option in enumerate(options):
                    state = self._state(alternative, option, task, 0)
                    if state is True:
                        live = None
                        break
                    if state is None:
                        assert live is not None
                        live.append((i, option))
                if live is not None and len(live) > 1:
                    if len(live) < len(options):
                        alternative.pending.remove(task)
                        kept = Or(tuple(option for _, option in live))
                        alternative.pending.append(_Task(kept, task.order, task.blame, task.scopes))
                    continue
                alternative.pending.remove(task)
                changed = True
                if live is not None and (
                    not live or not self._apply(alternative, [task.part(live[0][1], live[0][0])])
                ):
                    return False
        return True

    def _state(
        self, alternative: Alternative, formula: Formula, task: _Task, depth: int
    ) -> bool | None:
        """Whether a formula surely holds or surely fails in an alternative; None: open."""
        self.budget.spend()
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
            barred = demand.name in alternative.absent or self._is_barred(alternative, demand.name)
            return False if barred and is_object else None
        if isinstance(demand, Absent):
            if demand.name in alternative.absent or self._is_barred(alternative, demand.name):
                return True
            return False if demand.name in alternative.required and is_object else None
        if isinstance(demand, Keys) and is_object and len(demand.names) == 1:
            [(name, lit)] = demand.names.items()
            if name in alternative.required and not demand.patterns and demand.rest is None:
                return self._value_state(alternative, name, lit)
        return None

    def _value_state(self, alternative: Alternative, name: str, lit: Lit) -> bool | None:
        """Whether a property that is there surely meets, or fails, a literal: a discriminator."""
        other = Lit(lit.place)
        for keys in alternative.keys:
            known = keys.names.get(name)
            if (
                known is not None
                and known.positive
                and self._is_discriminator(known)
                and self._is_discriminator(other)
                and self.reader.disjoint(known, other)
            ):
                return not lit.positive
        return None

    def _is_discriminator(self, lit: Lit) -> bool:
        schema = self.document[lit.place].schema
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

    def _lit_state(
        self, alternative: Alternative, lit: Lit, task: _Task, depth: int
    ) -> bool | None:
        if (lit.place, not lit.positive, task.scopes) in alternative.seen:
            return False
        if task.scopes:  # even what surely holds adds annotations
            return None
        if (lit.place, lit.positive, ()) in alternative.seen:
            return True
        if depth >= STATE_DEPTH:
            return None
        meaning = self._meaning(lit, lit.blame or task.blame)
        return self._state(alternative, meaning, task, depth + 1)

    def _joint_state(
        self, alternative: Alternative, formula: And | Or, task: _Task, depth: int
    ) -> bool | None:
        decisive = isinstance(formula, Or)  # one part of this state decides
        if depth > STATE_DEPTH or len(formula.parts) > 50:
            return None
        states = []
        for part in formula.parts:
            state = self._state(alternative, part, task, depth + 1)
            if state is decisive:
                return decisive
            states.append(state)
        return None if None in states else not decisive

    # unevaluatedProperties and unevaluatedItems

    def _close_scopes(self, alternative: Alternative) -> None:
        """Turn unevaluated... into demands on what no other keyword of the scope has named."""
        for scope, task in reversed(alternative.scopes):
            inside = [each for each in alternative.atoms if scope.place in each.scopes]
            if scope.properties is not None:
                keys = [e.atom.demand for e in inside if isinstance(e.atom.demand, Keys)]
                if not any(k.rest is not None for k in keys):
                    names = {name for k in keys for name in k.names}
                    patterns = dict.fromkeys(p for k in keys for p, _ in k.patterns)
                    true = Lit(self.document.add(True, "$", self.document.root))
                    atom = keys_atom(
                        self.reader,
                        scope.origin,
                        dict.fromkeys(sorted(names), true),
                        tuple((pattern, true) for pattern in patterns),
                        scope.properties,
                    )
                    alternative.atoms.append(
                        Placed((*task.order, 10**6), atom, task.blame, task.scopes)
                    )
            if scope.items is not None:
                self._close_items(alternative, scope, task, inside)

    def _close_items(
        self, alternative: Alternative, scope: Scope, task: _Task, inside: list[Placed]
    ) -> None:
        items = [e.atom.demand for e in inside if isinstance(e.atom.demand, Items)]
        if any(each.rest is not None for each in items):
            return
        demand: Demand
        if any(isinstance(e.atom.demand, Contains) for e in inside):
            demand = Unsupported("unevaluatedItems beside contains", "use items")
        else:
            true = Lit(self.document.add(True, "$", self.document.root))
            n = max((len(each.first) for each in items), default=0)
            demand = Items((true,) * n, scope.items)
        atom = Atom(frozenset((Kind.ARRAY,)), demand, scope.origin)
        alternative.atoms.append(Placed((*task.order, 10**6), atom, task.blame, task.scopes))

    # Values

    def accepts(self, conj: Conj, value: Any, *, wide: bool = False) -> bool:
        """Whether the value meets the conjunction.

        Where that is uncertain, or a keyword is not supported, the answer is `wide`.
        """
        kind = kind_of(value)
        key = canonical(value)
        for alternative in self.alternatives(conj):
            if (
                kind in alternative.kinds
                and key not in alternative.excluded
                and (alternative.values is None or key in alternative.values)
                and all(self.holds(each, value, wide) for each in alternative.placed(kind))
            ):
                return True
        return False

    def holds(self, placed: Placed, value: Any, wide: bool) -> bool:
        """Whether a value of one of the atom's kinds meets its demand."""
        self.budget.spend()
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
        return lit is None or self.accepts(self.conj([lit]), value, wide=wide)

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


def _options(task: _Task) -> tuple[Formula, ...]:
    """The options of an Or; with annotations at stake, every combination is one."""
    formula = task.formula
    assert isinstance(formula, Or), formula
    parts = formula.parts
    if not (formula.overlapping and task.scopes and 1 < len(parts) <= SUBSETS_MAX):
        return parts
    subsets = range(1, 2 ** len(parts))
    return tuple(And(tuple(p for i, p in enumerate(parts) if bits >> i & 1)) for bits in subsets)


def _is_simple(formula: Formula) -> bool:
    """Whether a formula only says which kind a value has, or which properties."""
    if isinstance(formula, And):
        return all(map(_is_simple, formula.parts))
    if isinstance(formula, Atom):
        return isinstance(formula.demand, Required | Absent)
    return isinstance(formula, Kinds)
