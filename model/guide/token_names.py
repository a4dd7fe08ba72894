"""The tokens that grammars may name: control tokens, user-defined tokens, and others by their ids.

Knows no llguidance. Tested by tests/model/test_guide_tokens.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from .gbnf.nodes import ANY, Ranges, Token

if TYPE_CHECKING:  # the helper process of a sandbox imports this without vocabularies
    from ..vocab import Vocab


@dataclass(frozen=True, slots=True)
class TokenNames:
    """What a translator has to know about a vocabulary.

    Attributes:
        n_tokens: how many tokens the vocabulary has.
        named: the ids of control tokens and user-defined tokens by name, with brackets.
        hidden: control and unknown tokens: no text matches them.
        ends: tokens that end a text.
    """

    n_tokens: int
    named: Mapping[str, int]
    hidden: frozenset[int]
    ends: frozenset[int]

    @classmethod
    def of(cls, vocab: Vocab) -> Self:
        """The names of a vocabulary."""
        return cls(vocab.n_tokens, vocab.special_ids, vocab.control_ids, vocab.eog)

    def token(self, name: str, negated: bool) -> Token:
        """Return the node for `<name>`, `<[id]>` or, if `negated`, all other tokens but end tokens.

        Raises:
            ValueError: the vocabulary has no such token, or it ends a text.
        """
        id = self.id(name)
        if not negated:
            if id in self.ends:
                raise ValueError(f"{name} ends a text, so no grammar can require it")
            starts = () if id in self.hidden else ANY if name[1] == "[" else ((ord("<"),) * 2,)
            return Token(((id, id),), starts, name)
        return Token(self.others(((id, id),)), ANY, f"!{name}")

    def id(self, name: str) -> int:
        """Return the id of `<name>` or `<[id]>`.

        Raises:
            ValueError: the vocabulary has no such token.
        """
        if name[1] != "[":
            if name not in self.named:
                raise ValueError(
                    f"no special token has the name {name}: write it as text, or as <[id]>"
                )
            return self.named[name]
        digits = name[2:-2]
        if len(digits) > len(str(self.n_tokens)) or int(digits) >= self.n_tokens:
            raise ValueError(f"no token has the id {digits:.20}: they are below {self.n_tokens}")
        return int(digits)

    def others(self, ids: Ranges) -> Ranges:
        """Return the ids of all other tokens that do not end a text."""
        without = sorted([*ids, *((id, id) for id in self.ends)])
        found, next = [], 0
        for first, last in without:
            if next < first:
                found.append((next, first - 1))
            next = max(next, last + 1)
        if next < self.n_tokens:
            found.append((next, self.n_tokens - 1))
        return tuple(found)


def any_token(name: str, negated: bool) -> Token:
    """Return a node for a token terminal when the vocabulary is not known yet."""
    return Token((), (), f"{'!' * negated}{name}")
