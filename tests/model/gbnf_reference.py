"""A tiny recognizer of GBNF grammars, and random grammars for it.

It keeps all stacks of expressions that are still to match, one character after the other, as
llama.cpp does (src/llama-grammar.cpp), and knows nothing of lexemes.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from lamella.model.guide.gbnf.nodes import Alt, Chars, Node, Ref, Repeat, Rules, Seq, Text, repeat

Stack = tuple[Node, "Stack"] | None  # the next expression is the first one

N_STACKS_MAX = 3000


class TooManyStacksError(Exception):
    """The grammar is too ambiguous for this recognizer."""


def follow(rules: Rules, text: str) -> tuple[int, bool]:
    """Return how many characters can begin a match of `root`, and whether the text matches."""
    stacks = _expanded(rules, [(Ref("root"), None)])
    for i, character in enumerate(text):
        after = [rest for stack in stacks if stack for rest in _taken(stack, character)]
        stacks = _expanded(rules, after)
        if not stacks:
            return i, False
    return len(text), None in stacks


def _taken(stack: tuple[Node, Stack], character: str) -> Iterable[Stack]:
    node, rest = stack
    if isinstance(node, Text):
        if node.text[0] == character:
            yield (Text(node.text[1:]), rest) if node.text[1:] else rest
    else:
        assert isinstance(node, Chars)
        if any(a <= ord(character) <= b for a, b in node.ranges):
            yield rest


def _expanded(rules: Rules, stacks: Iterable[Stack]) -> set[Stack]:
    """Replace the first expressions until each is a text or a class."""
    seen: set[Stack] = set()
    todo = list(stacks)
    found: set[Stack] = set()
    while todo:
        stack = todo.pop()
        if stack in seen:
            continue
        seen.add(stack)
        if len(seen) > N_STACKS_MAX:
            raise TooManyStacksError
        if stack is None or isinstance(stack[0], Text | Chars):
            found.add(stack)
            continue
        node, rest = stack
        match node:
            case Ref(name):
                todo.append((rules[name], rest))
            case Alt(items):
                todo.extend((item, rest) for item in items)
            case Seq(items):
                for item in reversed(items):
                    rest = (item, rest)
                todo.append(rest)
            case Repeat(item, least, most):
                if least == 0:
                    todo.append(rest)
                if most != 0:
                    more = repeat(item, max(least - 1, 0), None if most is None else most - 1)
                    todo.append((item, (more, rest)))
            case _:
                raise AssertionError(node)
    return found


class RandomGrammar:
    """Writes a random grammar over a few characters."""

    def __init__(self, seed: int, characters: str = "abc") -> None:
        self._random = Random(seed)
        self._characters = characters
        self._names = ["root", *(f"r{i}" for i in range(self._random.randint(0, 3)))]

    def text(self) -> str:
        lines = []
        for i, name in enumerate(self._names):
            self._later = self._names[i + 1 :]
            lines.append(f"{name} ::= {self._alternatives(self._random.randint(1, 3))}\n")
        return "".join(lines)

    def _alternatives(self, depth: int, is_first: bool = True) -> str:
        n = self._random.choice((1, 1, 2, 2, 3))
        return " | ".join(self._sequence(depth, is_first) for _ in range(n))

    def _sequence(self, depth: int, is_first: bool) -> str:
        n = self._random.choice((0, 1, 1, 2, 2, 3, 4))
        return " ".join(self._item(depth, is_first and i == 0) for i in range(n)) or '""'

    def _item(self, depth: int, is_first: bool) -> str:
        """An item; few of the first ones refer to rules before this one, which may be cyclic."""
        kind = self._random.random()
        names = self._names
        if is_first and self._random.random() < 0.95:
            names = self._later
        if kind < 0.3:
            item = self._literal()
        elif kind < 0.5 or (kind < 0.75 and not names):
            item = self._class()
        elif kind < 0.75 or depth == 0:
            item = self._random.choice(names) if names else self._literal()
        else:
            item = f"({self._alternatives(depth - 1, is_first)})"
        counts = ("", "", "", "*", "+", "?", "{2}", "{1,}", "{0,2}", "{1,3}")
        return item + self._random.choice(counts)

    def _literal(self) -> str:
        n = self._random.choice((1, 1, 2, 3))
        return f'"{"".join(self._random.choices(self._characters, k=n))}"'

    def _class(self) -> str:
        if self._random.random() < 0.1:
            return "."
        chosen = "".join(self._random.sample(self._characters, self._random.randint(1, 2)))
        return f"[{self._random.choice(('', '', '^'))}{chosen}]"
