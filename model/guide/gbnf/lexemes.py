"""Divides a grammar into lexemes such that llguidance's lexer accepts exactly the grammar's texts.

The lexer ends a lexeme where no lexeme allowed at its begin can go on, and never takes that back.
That is exact if the following holds: where a lexeme A may end, no lexeme B that is allowed at the
same begin can go on with a character that may follow A. Each violation splits B; single characters
are never in the way.

A violation does no harm if the text that follows A belongs to an optional lexeme that A can absorb:
then A matches all of it. Knows no syntax. Tested by tests/model/test_guide_gbnf.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Final

from ....base.errors import GrammarError
from .automaton import Alphabet, Automaton, Overlap, Steps, TooManyStepsError, absorbs, overlap
from .graphs import components, holding, is_nullable, leaves, references
from .limits import (
    LEXEME_SIZE_MAX,
    N_CHARACTERS_MAX,
    N_COPIES_MAX,
    N_ROUNDS_MAX,
    N_SYMBOLS_MAX,
    NODE_DEPTH_MAX,
)
from .nodes import Alt, Chars, Node, Ref, Repeat, Rules, Seq, Text, Token, alt, seq
from .shape import apart, is_regular
from .skeleton import Edge, Lexeme, Skeleton

_SPLIT_ONCE_MAX: Final = 32  # items of a sequence; longer ones split into all items


def divided(rules: Rules, regular: set[str], root: str, steps: Steps) -> Rules:
    """Return the rules with lexemes as their leaves, and references to rules beside them.

    Lexemes are single characters if the search for larger ones takes too long.

    Raises:
        GrammarError: the grammar is too large, or names a token that can be mistaken for text or
            another token.
    """
    _check_sizes(rules, regular)
    divider = _Divider(rules, regular)
    if root in regular:
        return {root: divider.lexeme(Ref(root))}
    try:
        conflicts = _Conflicts(rules, steps)
        for _ in range(N_ROUNDS_MAX):
            plan = divider.plan(root)
            found = conflicts.find(Skeleton(plan, root, steps))
            if not found:
                return plan
            divider.split(found)
    except TooManyStepsError:
        pass
    divider.split_all = True
    plan = divider.plan(root)
    if any(isinstance(node, Token) for body in plan.values() for node in leaves(body)):
        raise GrammarError("gbnf: the grammar names tokens, and is too ambiguous for that")
    return plan


def _ambiguous(token: Token) -> GrammarError:
    return GrammarError(
        f"gbnf: {token.name} names a token that can also be text at the same place; it must be a "
        "control token, or the texts in its place must begin otherwise"
    )


def _check_sizes(rules: Rules, regular: set[str]) -> None:
    """Refuse rules that are too large to be a regular expression."""
    sizes: dict[str, int] = {}
    for [name, *_] in components({name: list(references(rules[name])) for name in regular}):
        sizes[name] = n_characters(rules[name], sizes)
        if sizes[name] > N_CHARACTERS_MAX:
            raise GrammarError(
                f"gbnf: the rule {name} has more than {N_CHARACTERS_MAX} characters, if its rules "
                "and repetitions are written out"
            )


def n_characters(node: Node, sizes: Mapping[str, int]) -> int:
    """The characters of an expression, with all alternatives and repetitions written out.

    `sizes` are those of its rules.
    """
    match node:
        case Text(text):
            return len(text)
        case Ref(name):
            return sizes[name]
        case Repeat(item, least, most):
            return n_characters(item, sizes) * (most or max(least, 1))
        case Chars():
            return 1
        case _:
            return sum(n_characters(child, sizes) for child in node.children)


def _is_run(node: Node) -> bool:
    return isinstance(node.item if isinstance(node, Repeat) else node, Chars)


class _Divider:
    """Divides the rules into lexemes as large as possible, but for those to be split."""

    def __init__(self, rules: Rules, regular: set[str]) -> None:
        self._rules = rules
        self._regular = regular
        self._broken: dict[Node, int] = {}  # and where to split a sequence
        self.split_all = False
        graph = {name: list(references(body)) for name, body in rules.items()}
        order = components(graph)
        self._nullable = holding(rules, order, is_nullable)
        self._sizes: dict[str, int] = {}
        self._depths: dict[str, int] = {}
        for [name, *_] in order:
            if name in regular:
                self._sizes[name] = self._size(rules[name])
                self._depths[name] = self._depth(rules[name])

    def split(self, nodes: Mapping[Node, int]) -> None:
        """Divide these lexemes into smaller ones from now on, sequences in front of an item."""
        for node, at in nodes.items():
            self._broken[node] = at
            body = self._rules[node.name] if isinstance(node, Ref) else node
            self._broken[body] = at

    def plan(self, root: str) -> Rules:
        """Return the rules that `root` needs."""
        plan: Rules = {}
        todo, n_symbols = [root], 0
        while todo:
            name = todo.pop()
            if name not in plan:
                plan[name] = self._planned(self._rules[name])
                todo.extend(references(plan[name]))
                n_symbols += sum(1 for _ in leaves(plan[name]))
                if n_symbols > N_SYMBOLS_MAX:
                    raise GrammarError(
                        "gbnf: the grammar has too many rules, or texts that begin alike"
                    )
        return plan

    def lexeme(self, node: Node) -> Lexeme:
        return Lexeme(node, is_nullable(node, self._nullable))

    def _planned(self, node: Node) -> Node:
        if is_regular(node, self._regular):
            return self._planned_regular(node)
        match node:
            case Seq(items):
                return seq(self._runs(items))
            case Alt(items):
                plain = [item for item in items if is_regular(item, self._regular)]
                others = [item for item in items if not is_regular(item, self._regular)]
                planned = [self._planned_regular(alt(plain))] if plain else []
                return alt([*planned, *map(self._planned, others)])
            case Repeat(item, least, most):
                return Repeat(self._planned(item), least, most)
            case _:
                return node

    def _runs(self, items: Iterable[Node]) -> Iterator[Node]:
        """Join the regular items beside each other."""
        for plain, run in groupby(items, lambda item: is_regular(item, self._regular)):
            if plain:
                yield self._planned_regular(seq(run))
            else:
                yield from map(self._planned, run)

    def _planned_regular(self, node: Node) -> Node:
        if node == Seq(()):
            return node
        if not self._is_split(node):
            return self.lexeme(node)
        match node:
            case Text(text):
                size = 1 if self.split_all or node in self._broken else LEXEME_SIZE_MAX
                texts = [text[i : i + size] for i in range(0, len(text), size)]
                return Seq(tuple(self.lexeme(Text(text)) for text in texts))
            case Seq(items):
                parts = items
                if len(items) <= _SPLIT_ONCE_MAX and not self.split_all:
                    at = self._broken.get(node, len(items) - 1)
                    parts = (seq(items[:at]), seq(items[at:]))
                return seq([self._planned_regular(part) for part in parts])
            case Alt(items) if self.split_all or node in self._broken:
                return alt([self._planned_regular(item) for item in items])
            case Alt(items):  # too large
                return alt([self._planned_regular(part) for part in self._parts(items)])
            case Repeat(item, least, most):
                if isinstance(item, Alt) and most is None and least <= 1 and not self.split_all:
                    runs_apart = apart(item.items, least, _is_run)
                    if runs_apart is not None:
                        return self._planned_regular(runs_apart)
                return Repeat(self._planned_regular(item), least, most)
            case _:
                return node

    def _parts(self, items: Iterable[Node]) -> Iterator[Node]:
        """Divide alternatives into lexemes that are not too large."""
        part: list[Node] = []
        size = 0
        for item in items:
            size += self._size(item)
            if part and size > LEXEME_SIZE_MAX:
                yield alt(part)
                part, size = [], self._size(item)
            part.append(item)
        yield alt(part)

    def _is_split(self, node: Node) -> bool:
        if isinstance(node, Chars) or (isinstance(node, Text) and len(node.text) == 1):
            return False
        return (
            self.split_all
            or node in self._broken
            or self._size(node) > LEXEME_SIZE_MAX
            or self._depth(node) > NODE_DEPTH_MAX
        )

    def _depth(self, node: Node) -> int:
        """The nodes on the longest way to a leaf, also through rules."""
        rules = max((self._depths[name] for name in references(node)), default=0)
        return node.depth + rules

    def _size(self, node: Node) -> int:
        """The positions of an expression's automaton."""
        match node:
            case Text(text):
                return len(text)
            case Ref(name):
                return self._sizes[name]
            case Repeat(item, least, most):
                return self._size(item) * min(most or max(least, 1), N_COPIES_MAX)
            case Chars():
                return 1
            case _:
                return sum(self._size(child) for child in node.children)


class _Conflicts:
    """Finds the lexemes to split."""

    def __init__(self, rules: Rules, steps: Steps) -> None:
        self._rules = rules
        self._steps = steps
        self._alphabet = Alphabet(rules, steps)
        self._automata: dict[Lexeme, Automaton] = {}
        self._overlaps: dict[tuple[Lexeme, Lexeme], Overlap] = {}
        self._absorbed: dict[tuple[Lexeme, Lexeme], bool] = {}

    def find(self, skeleton: Skeleton) -> dict[Node, int]:
        """Return the lexemes that go on where another one should end, and where to split each.

        Two positions are together if a text, divided into lexemes in the same way, leads to both.
        """
        found: dict[Node, int] = {}
        seen = {(skeleton.start, skeleton.start)}
        todo = list(seen)
        while todo:
            p, q = todo.pop()
            right = [(edge, self._starts(edge.item)) for edge in skeleton.nexts(q)]
            left = right if p == q else [(a, self._starts(a.item)) for a in skeleton.nexts(p)]
            self._steps.spend(len(left) * len(right))
            for i, (a, starts_a) in enumerate(left):
                for b, starts_b in right[i if p == q else 0 :]:
                    if starts_a & starts_b and self._compare(a, b, skeleton, found):
                        pair = (min(a.target, b.target), max(a.target, b.target))
                        if pair not in seen:
                            seen.add(pair)
                            todo.append(pair)
        return found

    def _compare(self, a: Edge, b: Edge, skeleton: Skeleton, found: dict[Node, int]) -> bool:
        """Add the lexemes of a conflict. Return True if the same text can match both."""
        self._steps.spend(2)
        if isinstance(a.item, Token) or isinstance(b.item, Token):
            return self._compare_tokens(a.item, b.item)
        both = self._overlap(a.item, b.item)
        if both.b_goes_on and self._can_follow(a, both.b_goes_on, skeleton):
            self._add(b.item, a.item, found)
        if both.a_goes_on and self._can_follow(b, both.a_goes_on, skeleton):
            self._add(a.item, b.item, found)
        return both.is_common

    def _add(self, lexeme: Lexeme, end: Lexeme, found: dict[Node, int]) -> None:
        """Add a lexeme that goes on where `end` should: split it there, or in front of its end."""
        node = lexeme.node
        body = self._rules[node.name] if isinstance(node, Ref) else node
        items = body.items if isinstance(body, Seq) else ()
        if node in found or len(items) < 2:
            found.setdefault(node, 0)
            return
        found[node] = len(items) - 1
        if lexeme != end and len(items) <= _SPLIT_ONCE_MAX:
            for at in range(len(items) - 1, 0, -1):
                start = Lexeme(seq(items[:at]), False)
                if self._overlap(start, end).is_common:
                    found[node] = at
                    break

    def _can_follow(self, edge: Edge, classes: int, skeleton: Skeleton) -> bool:
        """True if characters of these classes begin a lexeme behind one that cannot absorb it."""
        assert isinstance(edge.item, Lexeme), edge
        result = False
        for next in skeleton.nexts(edge.target):
            self._steps.spend(1)
            if isinstance(next.item, Token):
                if self._alphabet.mask(next.item.starts) & classes:
                    raise _ambiguous(next.item)
            elif self._starts(next.item) & classes:
                is_absorbed = next.is_optional and self._absorbs(edge.item, next.item)
                result = result or not is_absorbed
        return result

    def _compare_tokens(self, a: Lexeme | Token, b: Lexeme | Token) -> bool:
        """Return True if they are the same; refuse what llguidance does not tell apart."""
        if isinstance(a, Token) and isinstance(b, Token):
            if a != b and any(p <= s and r <= q for p, q in a.ids for r, s in b.ids):
                first, second = sorted((a.name, b.name))
                raise GrammarError(f"gbnf: {first} and {second} are possible at the same place")
        elif isinstance(a, Token) or isinstance(b, Token):
            token, lexeme = (a, b) if isinstance(a, Token) else (b, a)
            assert isinstance(token, Token)
            if self._alphabet.mask(token.starts) & self._starts(lexeme):
                raise _ambiguous(token)
        return a == b

    def _starts(self, item: Lexeme | Token) -> int:
        """The classes of first characters; all classes for tokens."""
        return -1 if isinstance(item, Token) else self._automaton(item).starts

    def _automaton(self, lexeme: Lexeme) -> Automaton:
        found = self._automata.get(lexeme)
        if found is None:
            self._steps.spend(20)
            found = Automaton(lexeme.node, self._rules, self._alphabet, self._steps)
            self._automata[lexeme] = found
        return found

    def _overlap(self, a: Lexeme, b: Lexeme) -> Overlap:
        found = self._overlaps.get((a, b))
        if found is None:
            self._steps.spend(5)
            found = overlap(self._automaton(a), self._automaton(b), self._steps)
            self._overlaps[a, b] = found
        return found

    def _absorbs(self, a: Lexeme, b: Lexeme) -> bool:
        found = self._absorbed.get((a, b))
        if found is None:
            found = absorbs(self._automaton(a), self._automaton(b), self._steps)
            self._absorbed[a, b] = found
        return found
