"""Which rules of a grammar refer to which, and what follows from that.

Knows no syntax. Tested by tests/model/test_guide_gbnf.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from ....base.errors import GrammarError
from .limits import N_SWEEPS_MAX
from .nodes import Alt, Node, Ref, Repeat, Rules, Seq


def leaves(node: Node) -> Iterator[Node]:
    """Yield the expressions in an expression that have no other ones inside."""
    todo = [node]
    while todo:
        node = todo.pop()
        if not node.children:
            yield node
        todo.extend(node.children)


def references(node: Node) -> Iterator[str]:
    """Yield the names in an expression, once per reference."""
    return (leaf.name for leaf in leaves(node) if isinstance(leaf, Ref))


def components(
    graph: Mapping[str, Iterable[str]], roots: Iterable[str] | None = None
) -> list[list[str]]:
    """Return the strongly connected components; a component is behind those that it refers to.

    Only what `roots` need is returned, if they are given.
    Tarjan's algorithm (https://doi.org/10.1137/0201010), without recursion.
    """
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    on_stack: set[str] = set()
    found: list[list[str]] = []
    for root in graph if roots is None else roots:
        if root in index:
            continue
        calls = [(root, iter(graph[root]))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while calls:
            name, targets = calls[-1]
            for target in targets:
                if target not in index:
                    index[target] = low[target] = len(index)
                    stack.append(target)
                    on_stack.add(target)
                    calls.append((target, iter(graph[target])))
                    break
                if target in on_stack:
                    low[name] = min(low[name], index[target])
            else:
                calls.pop()
                if calls:
                    low[calls[-1][0]] = min(low[calls[-1][0]], low[name])
                if low[name] == index[name]:
                    found.append([stack.pop()])
                    while found[-1][-1] != name:
                        found[-1].append(stack.pop())
                    on_stack.difference_update(found[-1])
    return found


def is_recursive(component: list[str], graph: Mapping[str, Iterable[str]]) -> bool:
    """True if a rule of a component refers to itself, directly or through others."""
    return len(component) > 1 or component[0] in graph[component[0]]


def holding(
    rules: Rules, order: list[list[str]], test: Callable[[Node, set[str]], bool]
) -> set[str]:
    """Return the smallest set of rules for which `test` holds.

    `test` has a rule's body and the rules found so far; adding rules must not make it false.
    `order` are the rules' `components`.

    Raises:
        GrammarError: the rules refer to each other in too many ways.
    """
    found: set[str] = set()
    for component in order:
        for _ in range(N_SWEEPS_MAX):
            n_found = len(found)
            for name in component:
                if name not in found and test(rules[name], found):
                    found.add(name)
            if len(found) == n_found:
                break
        else:
            raise GrammarError(
                f"gbnf: {component[0]} and other rules refer to each other too often"
            )
    return found


def is_nullable(node: Node, nullable: set[str]) -> bool:
    """True if an expression matches the empty text. `nullable` are the rules that do."""
    return _matches(node, nullable, leaf=False)


def can_end(node: Node, ending: set[str]) -> bool:
    """True if an expression matches any text. `ending` are the rules that do."""
    return _matches(node, ending, leaf=True)


def _matches(node: Node, rules: set[str], *, leaf: bool) -> bool:
    """True if an expression matches by means of these rules, and of leaves if `leaf`."""
    match node:
        case Seq(items):
            return all(_matches(item, rules, leaf=leaf) for item in items)
        case Alt(items):
            return any(_matches(item, rules, leaf=leaf) for item in items)
        case Repeat(item, least, _):
            return least == 0 or _matches(item, rules, leaf=leaf)
        case Ref(name):
            return name in rules
        case _:
            return leaf


def leftmost(node: Node, nullable: set[str]) -> Iterator[str]:
    """Yield the names of rules with which a match of an expression may begin."""
    match node:
        case Seq(items):
            for item in items:
                yield from leftmost(item, nullable)
                if not is_nullable(item, nullable):
                    break
        case Ref(name):
            yield name
        case _:
            for child in node.children:
                yield from leftmost(child, nullable)
