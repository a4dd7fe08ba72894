"""Rewrites a grammar so that as much of it as possible is regular; it matches the same texts.

    a ::= x a | y            a ::= x* y
    a ::= ([^<] | "<" a)*    a ::= [^<]* ("<" a [^<]*)*

Rules with a single use become a part of their user. A rule is regular if it is not recursive and
has no tokens: then it can be one regular expression. Knows no llguidance.
Tested by tests/model/test_guide_gbnf.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from .graphs import components, is_recursive, references
from .limits import LINEAR_RULES_MAX, LINEAR_SIZE_MAX, NODE_DEPTH_MAX
from .nodes import EMPTY, Alt, Node, Ref, Repeat, Rules, Seq, Token, alt, repeat, seq

_INLINED_DEPTH_MAX: Final = NODE_DEPTH_MAX // 2


def shaped(rules: Rules, root: str) -> tuple[Rules, set[str]]:
    """Return the rules that `root` needs, rewritten, and the names of the regular ones.

    The grammar is sound (see checks.py).
    """
    rules = _reachable(rules, root)
    rules = _reachable(_inlined(rules, root), root)
    for component in components(_graph(rules)):
        for name in component:
            rules[name] = _without_tail(rules[name], name)
    for component in components(_graph(rules)):
        if len(component) > 1:
            rules.update(_linear(component, rules))
    rules = _reachable(rules, root)
    regular = _regular(rules)
    rules = _divided(rules, regular)
    factored = {name: _factored(body, rules, regular) for name, body in rules.items()}
    return _reachable(factored, root), regular


def is_regular(node: Node, regular: set[str]) -> bool:
    """True if an expression has no tokens and no references but to `regular` rules."""
    if isinstance(node, Ref):
        return node.name in regular
    return not isinstance(node, Token) and all(is_regular(c, regular) for c in node.children)


def replaced(node: Node, bodies: Mapping[str, Node]) -> Node:
    """Return an expression with these bodies in place of the references to them."""
    match node:
        case Ref(name):
            return bodies.get(name, node)
        case Seq(items):
            return seq([replaced(item, bodies) for item in items])
        case Alt(items):
            return alt([replaced(item, bodies) for item in items])
        case Repeat(item, least, most):
            return repeat(replaced(item, bodies), least, most)
        case _:
            return node


def _graph(rules: Rules) -> dict[str, list[str]]:
    return {name: list(dict.fromkeys(references(body))) for name, body in rules.items()}


def _reachable(rules: Rules, root: str) -> Rules:
    found = {root: rules[root]}
    todo = [root]
    while todo:
        for name in references(rules[todo.pop()]):
            if name not in found:
                found[name] = rules[name]
                todo.append(name)
    return found


def _inlined(rules: Rules, root: str) -> Rules:
    """Put the rules that are referenced once into the rules that reference them."""
    uses = Counter(name for body in rules.values() for name in references(body))
    once = {name for name in rules if uses[name] == 1 and name != root}
    inner = {n: [r for r in references(body) if r in once] for n, body in rules.items()}
    result: Rules = {}
    for [name] in (c for c in components(inner) if len(c) == 1):
        body = rules[name]
        bodies = {
            used: result[used]
            for used in inner[name]
            if used in result and body.depth + result[used].depth <= _INLINED_DEPTH_MAX
        }
        result[name] = replaced(body, bodies) if bodies else body
    return result


def _without_tail(body: Node, name: str) -> Node:
    """Return the body of a rule with a repetition in place of references to itself at its end."""
    before, rest = _tails(body, name)
    if not before:
        return body
    assert rest is not None, name
    return seq([repeat(alt(before), 0, None), rest])


def _tails(node: Node, name: str) -> tuple[list[Node], Node | None]:
    """Split the matches of an expression.

    Returns:
        what comes before a reference to `name` at the end, and the matches without such an end.
    """
    match node:
        case Ref(other) if other == name:
            return [EMPTY], None
        case Alt(items):
            parts = [_tails(item, name) for item in items]
            rests = [rest for _, rest in parts if rest is not None]
            return [b for before, _ in parts for b in before], alt(rests) if rests else None
        case Seq(items) if items:
            before, rest = _tails(items[-1], name)
            if before:
                start = items[:-1]
                ended = None if rest is None else seq([*start, rest])
                return [seq([*start, each]) for each in before], ended
        case Repeat(item, 0, 1):
            before, rest = _tails(item, name)
            if before:
                return before, EMPTY if rest is None else repeat(rest, 0, 1)
        case _:
            pass
    return [], node


def _linear(component: list[str], rules: Rules) -> Rules:
    """Solve rules that refer to each other only at their ends, as a finite automaton would.

    Returns:
        these rules without references to each other, or none if that is impossible or long.
    """
    if len(component) > LINEAR_RULES_MAX:
        return {}
    inside = set(component)
    for name in component:
        ends = rules[name]
        for other in component:
            before, rest = _tails(ends, other)
            if any(n in inside for each in before for n in references(each)):
                return {}
            ends = rest if rest is not None else EMPTY
        if any(n in inside for n in references(ends)):
            return {}
    solved = {name: rules[name] for name in component}
    for pivot in component:
        for name in component:
            if name != pivot:
                body = replaced(solved[name], {pivot: solved[pivot]})
                solved[name] = _without_tail(body, name)
        if sum(_size(body) for body in solved.values()) > LINEAR_SIZE_MAX:
            return {}
        if any(body.depth > _INLINED_DEPTH_MAX for body in solved.values()):
            return {}
    return solved


def _size(node: Node) -> int:
    return 1 + sum(_size(child) for child in node.children)


def _regular(rules: Rules) -> set[str]:
    graph = _graph(rules)
    regular: set[str] = set()
    for component in components(graph):
        if not is_recursive(component, graph) and is_regular(rules[component[0]], regular):
            regular.add(component[0])
    return regular


def _factored(node: Node, rules: Rules, regular: set[str]) -> Node:
    """Separate the regular alternatives of unlimited repetitions from the others."""
    match node:
        case Seq(items):
            return seq([_factored(item, rules, regular) for item in items])
        case Alt(items):
            return alt([_factored(item, rules, regular) for item in items])
        case Repeat(item, least, most):
            item = _factored(item, rules, regular)
            if most is None and least <= 1:
                return _factored_repeat(item, least, rules, regular)
            return repeat(item, least, most)
        case _:
            return node


def _divided(rules: Rules, regular: set[str]) -> Rules:
    """Give the irregular alternatives of rules that also have regular ones a rule of their own."""
    result: Rules = {}
    for name, body in rules.items():
        result[name] = body
        if name in regular or not isinstance(body, Alt):
            continue
        others = [item for item in body.items if not is_regular(item, regular)]
        if 0 < len(others) < len(body.items) and any(not isinstance(each, Ref) for each in others):
            plain = [item for item in body.items if is_regular(item, regular)]
            result[name] = alt([*plain, Ref(f"{name}'")])
            result[f"{name}'"] = alt(others)
    return result


def _alternatives(node: Node, rules: Rules, regular: set[str], seen: set[str]) -> list[Node]:
    """The alternatives of an expression, also those of irregular rules with regular ones."""
    if isinstance(node, Ref) and node.name not in regular | seen:
        body = rules[node.name]
        parts = body.items if isinstance(body, Alt) else (body,)
        if all(isinstance(part, Ref) or is_regular(part, regular) for part in parts):
            inner = _alternatives(body, rules, regular, seen | {node.name})
            return inner if any(is_regular(each, regular) for each in inner) else [node]
    if isinstance(node, Alt):
        return [each for item in node.items for each in _alternatives(item, rules, regular, seen)]
    return [node]


def _factored_repeat(item: Node, least: int, rules: Rules, regular: set[str]) -> Node:
    items = _alternatives(item, rules, regular, set())
    return apart(items, least, lambda each: is_regular(each, regular)) or repeat(item, least, None)


def apart(items: Iterable[Node], least: int, is_plain: Callable[[Node], bool]) -> Node | None:
    """Return `least` (0 or 1) or more of these expressions, with runs of the plain ones in one.

    (p | q)* is p* (q p*)*. Returns None if all are plain or none is.
    """
    plain = [item for item in items if is_plain(item)]
    others = [item for item in items if not is_plain(item)]
    if not plain or not others:
        return None
    runs = repeat(alt(plain), 0, None)
    step = seq([alt(others), runs])
    if least == 0:
        return seq([runs, repeat(step, 0, None)])
    starting = seq([repeat(alt(plain), 1, None), repeat(step, 0, None)])
    return alt([starting, repeat(step, 1, None)])
