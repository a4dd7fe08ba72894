"""Refuses grammars with rules that are missing, that never end, or that are left-recursive.

Knows no llguidance. Tested by tests/model/test_guide_gbnf_parser.py.
"""

from __future__ import annotations

from typing import Final, NoReturn

from ....base.errors import GrammarError
from .graphs import can_end, components, holding, is_nullable, is_recursive, leftmost, references
from .parser import Parsed

ROOT: Final = "root"  # the rule that the whole text matches
_N_NAMED: Final = 8  # rules of a cycle in a message


def check(parsed: Parsed) -> None:
    """Check a grammar's rules, also those that `root` does not need, as llama.cpp does.

    But rules without an end may be there, if nothing needs them.

    Raises:
        GrammarError: names the rule and its place.
    """
    rules = parsed.rules
    if ROOT not in rules:
        raise GrammarError(f"gbnf: the grammar has no rule {ROOT}, which the whole text must match")
    for name, at in parsed.references.items():
        if name not in rules:
            parsed.fail(f"the rule {name} is not defined", at)
    graph = {name: list(dict.fromkeys(references(body))) for name, body in rules.items()}
    order = components(graph)
    nullable = holding(rules, order, is_nullable)
    begins = {name: list(dict.fromkeys(leftmost(body, nullable))) for name, body in rules.items()}
    for component in components(begins):
        if is_recursive(component, begins):
            _left_recursion(parsed, component, begins)
    ending = holding(rules, order, can_end)
    for component in components(graph, [ROOT]):
        at, name = min((parsed.places[name], name) for name in component)
        if not ending.issuperset(component):
            parsed.fail(f"the rule {name} never ends: all its alternatives need {name} again", at)


def _left_recursion(parsed: Parsed, component: list[str], begins: dict[str, list[str]]) -> NoReturn:
    inside = set(component)
    first = min(component, key=lambda name: parsed.places[name])
    cycle = [first]
    while (name := next(n for n in begins[cycle[-1]] if n in inside)) not in cycle:
        cycle.append(name)
    del cycle[: cycle.index(name)]
    cycle.append(name)
    shown = " -> ".join(cycle if len(cycle) <= _N_NAMED else [*cycle[: _N_NAMED - 1], "...", name])
    parsed.fail(
        f"the rule {name} is left-recursive ({shown}): write it as a repetition or right-recursive",
        parsed.places[name],
    )
