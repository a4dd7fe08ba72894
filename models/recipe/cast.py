"""Characters of the stories: names, kinds, traits, and pronouns.

Knows no plots. Tested by tests/recipe/test_stories.py.
"""

# ruff: noqa: SIM905 - long lists of words read better as a text
from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final

BOYS: Final = tuple(
    "Tom Ben Max Sam Leo Finn Jack Oscar Noah Theo Hugo Felix Paul Otto Milo Rusty Toby Bruno Emil "
    "Henry Arlo Jonas Pip Oliver Bobby Karl Simon Teddy Walter Louis Peter Barney".split()
)
GIRLS: Final = tuple(
    "Mia Lily Anna Emma Zoe Nora Ella Ruby Lucy Clara Rosie Molly Daisy Ida Frida Tilly "
    "Hazel Poppy Luna Olive Greta Maya Sophie Alice Betty Wanda Nell Martha Ivy Flora Penny "
    "Stella".split()
)
NAMES: Final = frozenset(BOYS + GIRLS)

CHILDREN: Final = ("boy", "girl")
ANIMALS: Final = tuple(
    "fox rabbit bear mouse cat dog duck frog owl squirrel hedgehog turtle pig goat sheep pony deer "
    "mole penguin monkey elephant lion hen badger beaver otter wolf crow".split()
)
OTHERS: Final = ("dragon", "robot", "fairy", "prince", "princess", "knight", "wizard", "giant")
KINDS: Final = CHILDREN + ANIMALS + OTHERS
MALE: Final = frozenset(("boy", "prince", "knight", "wizard"))
FEMALE: Final = frozenset(("girl", "princess", "fairy", "hen"))

TRAITS: Final = tuple(
    "brave clever curious gentle cheerful shy quiet funny busy friendly lively patient".split()
)
SIZES: Final = ("little", "little", "little", "small", "young", "tiny")
OLD: Final = ("old", "wise old", "kind old", "friendly old")


@dataclass(frozen=True, slots=True)
class Character:
    """One character. `look` are the adjectives of its introduction, maybe ""."""

    name: str
    kind: str
    look: str
    male: bool

    def __format__(self, spec: str) -> str:
        return self.name

    @property
    def he(self) -> str:
        return "he" if self.male else "she"

    @property
    def him(self) -> str:
        return "him" if self.male else "her"

    @property
    def his(self) -> str:
        return "his" if self.male else "her"

    @property
    def himself(self) -> str:
        return "himself" if self.male else "herself"

    @property
    def a(self) -> str:
        """`a brave little fox`"""
        return with_article(f"{self.look} {self.kind}".strip())

    @property
    def a_kind(self) -> str:
        """`a fox`"""
        return with_article(self.kind)


def with_article(noun: str) -> str:
    """Return `noun` with `a` or `an` in front, by its first letter."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def random_character(
    rng: Random, without: frozenset[str] = frozenset(), *, old: bool = False
) -> Character:
    """Return a random character whose name and kind are not in `without`.

    Only the kind of a child may be in `without`. With `old`, the character is an old adviser.
    """
    child = rng.random() < 0.35 and not old
    while True:
        kind = rng.choice(CHILDREN) if child else rng.choice(KINDS[2:])
        if kind not in without or child:
            break
    male = kind in MALE or (kind not in FEMALE and rng.random() < 0.5)
    name = rng.choice([name for name in (BOYS if male else GIRLS) if name not in without])
    return Character(name, kind, _look(rng, kind, old), male)


def _look(rng: Random, kind: str, old: bool) -> str:
    if old:
        return rng.choice(OLD)
    size = rng.choice(SIZES) if kind != "giant" else ""
    trait = rng.choice(TRAITS) if rng.random() < 0.6 else ""
    return f"{trait} {size}".strip()
