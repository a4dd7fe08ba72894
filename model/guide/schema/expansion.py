"""Multiplies formulas out into alternatives: lists of demands that hold together.

A conjunction is a tuple of literals: the sub-schemas that one value has to meet, or fail. Its
alternatives say which kinds (or which listed values) a value may have, and what is demanded of
each. Children stay conjunctions, so recursive schemas stay finite. Tested by
tests/model/test_guide_schema.py.
"""

from __future__ import annotations

from typing import Any, Final

from ....base.errors import GrammarError
from .alternatives import (
    Alternative,
    Conj,
    Placed,
    Task,
    is_simple,
    options_of,
)
from .decisions import Decider
from .document import Document, Draft
from .formulas import (
    ARRAY,
    Absent,
    And,
    Atom,
    Contains,
    Demand,
    Formula,
    Items,
    Keys,
    Kind,
    Kinds,
    Lit,
    Or,
    Origin,
    Required,
    Scope,
    Values,
    canonical,
    kind_of,
)
from .keywords_nested import keys_atom
from .limits import ALTERNATIVES, Budget
from .reader import Reader

LAST: Final = 1_000_000  # the order of what comes after all other keywords


class Expander:
    """The alternatives of conjunctions, computed once for each."""

    def __init__(self, document: Document, reader: Reader, budget: Budget) -> None:
        self.document = document
        self.reader = reader
        self.budget = budget
        self._decider = Decider(document, reader, budget)
        self._known: dict[tuple[tuple[int, bool, bool], ...], list[Alternative]] = {}
        self._made: dict[tuple[Any, ...], int] = {}  # places of substitutes
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
        """True if the conjunction is empty at first sight."""
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
        """True if some alternatives of negations are left out, because there are too many."""
        key = tuple((lit.place, lit.positive, lit.blame is not None) for lit in conj)
        return key in self._reduced

    def _expand(self, conj: Conj, reduced: bool) -> list[Alternative] | None:
        """The alternatives; None if they are too many.

        `reduced` takes only the simple ways to fail what a negation wants to fail.
        """
        first = Alternative()
        tasks = [Task(lit, (i,), lit.blame, ()) for i, lit in enumerate(conj)]
        stack: list[tuple[Alternative, list[Task]]] = [(first, tasks)]
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
                task = min(alternative.pending, key=lambda t: len(options_of(t)))
                alternative.pending.remove(task)
                options = options_of(task)
                if reduced and task.blame is not None:
                    options = tuple(o for o in options if is_simple(o)) or options
                for i, option in reversed(list(enumerate(options))):
                    stack.append((alternative.copy(), [task.part(option, i)]))
            if len(done) + len(stack) > ALTERNATIVES:
                return None
        return done

    def _apply(self, alternative: Alternative, tasks: list[Task]) -> bool:
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
                scopes = task.scopes
                if formula.place not in scopes:
                    alternative.scopes.append((formula, task))
                    scopes = (*scopes, formula.place)
                queue.append(Task(formula.inner, task.order, task.blame, scopes))
            elif isinstance(formula, Lit):
                key = (formula.place, formula.positive, task.scopes)
                if (formula.place, not formula.positive, task.scopes) in alternative.seen:
                    return False
                if key not in alternative.seen:
                    alternative.seen.add(key)
                    blame = formula.blame or task.blame
                    scopes = task.scopes if formula.positive else ()  # `not` annotates nothing
                    queue.append(
                        Task(self._decider.meaning(formula, blame), task.order, blame, scopes)
                    )
            elif not self._add(alternative, task):
                return False
        return True

    def _add(self, alternative: Alternative, task: Task) -> bool:
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
            failed = demand.name in alternative.absent or self._decider.is_barred(
                alternative, demand.name
            )
        elif isinstance(demand, Absent):
            alternative.absent.add(demand.name)
            failed = demand.name in alternative.required
        elif isinstance(demand, Keys):
            alternative.keys.append(demand)
            failed = any(
                self._decider.is_barred(alternative, name) for name in alternative.required
            )
        else:
            return
        if failed:
            alternative.kinds -= {Kind.OBJECT}

    def _add_values(self, alternative: Alternative, formula: Values, task: Task) -> bool:
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
                task = Task(
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
        key = ("const", id(value))
        if key in self._made:
            return self._made[key]
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
        path = f"{origin.path}.{origin.keyword}"
        self._made[key] = self.document.add(schema, path, self.document.root)
        return self._made[key]

    def _propagate(self, alternative: Alternative) -> bool:
        """Decide every Or that has at most one option left; False on a contradiction."""
        changed = True
        while changed:
            changed = False
            for task in list(alternative.pending):
                options = options_of(task)
                live: list[tuple[int, Formula]] | None = []
                for i, option in enumerate(options):
                    state = self._decider.state(alternative, option, task, 0)
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
                        alternative.pending.append(Task(kept, task.order, task.blame, task.scopes))
                    continue
                alternative.pending.remove(task)
                changed = True
                if live is not None and (
                    not live or not self._apply(alternative, [task.part(live[0][1], live[0][0])])
                ):
                    return False
        return True

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
                        Placed((*task.order, LAST), atom, task.blame, task.scopes)
                    )
            if scope.items is not None:
                self._close_items(alternative, scope, task, inside)

    def _close_items(
        self, alternative: Alternative, scope: Scope, task: Task, inside: list[Placed]
    ) -> None:
        items = [e.atom.demand for e in inside if isinstance(e.atom.demand, Items)]
        if any(each.rest is not None for each in items):
            return
        true = Lit(self.document.add(True, "$", self.document.root))
        n = max((len(each.first) for each in items), default=0)
        rest = self._unless_contained(scope, inside)
        origin = Origin(scope.origin.path, "unevaluatedItems")
        atom = Atom(ARRAY, Items((true,) * n, rest), origin)
        alternative.atoms.append(Placed((*task.order, LAST), atom, task.blame, task.scopes))

    def _unless_contained(self, scope: Scope, inside: list[Placed]) -> Lit:
        """What an item meets that only unevaluatedItems is about.

        From 2020 on, an item that `contains` has found is evaluated.
        """
        assert scope.items is not None
        found = [e.atom.demand.item for e in inside if isinstance(e.atom.demand, Contains)]
        place = self.document[scope.place]
        if not found or place.draft < Draft.D2020:
            return scope.items
        lits = [scope.items, *(lit for lit in found if lit.positive)]
        key = ("anyOf", *(lit.place for lit in lits))
        if key not in self._made:
            either = {"anyOf": [self.document[lit.place].schema for lit in lits]}
            path = f"{place.path}.unevaluatedItems"
            self._made[key] = self.document.add(either, path, scope.place)
        return Lit(self._made[key])
