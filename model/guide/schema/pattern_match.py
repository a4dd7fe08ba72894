"""Matches whole texts, in bounded time. Tested by tests/model/test_guide_schema_patterns.py."""

from __future__ import annotations

from . import charset
from .limits import (
    PATTERN_MATCH_STEPS,
)
from .pattern_nodes import (
    ANY_TEXT,
    Alt,
    Both,
    Chars,
    Node,
    Other,
    PatternError,
    Repeat,
    Seq,
)


def matches(node: Node, text: str) -> bool:
    """True if the whole text is in the language. Raises PatternError after too many steps."""
    return len(text) in _Matcher(text).ends(node, 0)


class _Matcher:
    """The ends of every match that starts at a position, computed once for each pair."""

    def __init__(self, text: str) -> None:
        self.codes = [ord(c) for c in text]
        self.steps = PATTERN_MATCH_STEPS
        self.known: dict[tuple[int, int], frozenset[int]] = {}

    def ends(self, node: Node, start: int) -> frozenset[int]:
        key = (id(node), start)
        found = self.known.get(key)
        if found is None:
            self.steps -= 1
            if self.steps < 0:
                raise PatternError("matching it takes too long")
            found = self.known[key] = self._ends(node, start)
        return found

    def _ends(self, node: Node, start: int) -> frozenset[int]:
        n = len(self.codes)
        if isinstance(node, Chars):
            hit = start < n and charset.has(node.ranges, self.codes[start])
            return frozenset((start + 1,)) if hit else frozenset()
        if isinstance(node, Seq):
            reached = frozenset((start,))
            for part in node.parts:
                reached = self._step(part, reached)
            return reached
        if isinstance(node, Alt):
            return frozenset().union(*(self.ends(p, start) for p in node.parts))
        if isinstance(node, Both):
            return frozenset.intersection(*(self.ends(p, start) for p in node.parts))
        if isinstance(node, Other):
            return frozenset(range(start, n + 1)) - self.ends(node.node, start)
        assert isinstance(node, Repeat), node
        return self._repeat(node, start)

    def _step(self, node: Node, starts: frozenset[int]) -> frozenset[int]:
        return frozenset().union(*(self.ends(node, s) for s in starts))

    def _repeat(self, node: Repeat, start: int) -> frozenset[int]:
        if node.node == ANY_TEXT.node and node.most is None and node.least == 0:
            return frozenset(range(start, len(self.codes) + 1))
        reached = frozenset((start,))
        found: set[int] = set(reached) if node.least == 0 else set()
        # After as many rounds as there are characters, rounds repeat themselves.
        rounds = min(
            node.most if node.most is not None else 10**9, node.least + len(self.codes) + 1
        )
        seen: set[frozenset[int]] = set()
        for i in range(1, rounds + 1):
            self.steps -= 1
            reached = self._step(node.node, reached)
            if not reached or self.steps < 0:
                break
            if i >= node.least:
                if reached in seen and reached <= found:
                    break
                seen.add(reached)
                found |= reached
        if self.steps < 0:
            raise PatternError("matching it takes too long")
        return frozenset(found)
