"""Exchanges: a question and its right answer, made from forms and typed as people do.

A form has phrasings and items. All phrasings of an item have the same answer. One in ten
combinations of item and phrasing is held out of training, for evaluation. Knows no subjects. Tested
by tests/recipe/test_facts.py.
"""

# ruff: noqa: SIM905 - long lists of words read better as a text
from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

_HELD_OUT_EACH: Final = 10

BEFORE: Final = (
    "Please tell me: ",
    "Tell me, ",
    "Hey, ",
    "I have a question. ",
    "Do you know this? ",
    "Quick question: ",
    "Now, ",
    "And ",
    "Okay, ",
    "Please, ",
    "So, ",
    "Hi, ",
    "Hello! ",
)
AFTER: Final = (" Please.", " Thanks!", " Thank you.", " Can you tell me?", " Do you know?")


@dataclass(frozen=True, slots=True)
class Exchange:
    """A question of the user and the right answer of the model."""

    kind: str
    asked: str
    answer: str


@dataclass(frozen=True, slots=True)
class Form:
    """Questions of one form. Phrasings and the answer are templates with the fields of an item."""

    name: str
    phrasings: Sequence[str]
    items: Sequence[Mapping[str, object]]
    answer: str

    def combination(self, rng: Random, *, held_out: bool = False) -> Exchange:
        """Return a random question, from those held out or from the others."""
        for _ in range(1000):
            item, phrasing = rng.choice(self.items), rng.choice(self.phrasings)
            asked = fill(phrasing, item)
            if is_held_out(asked) is held_out:
                return Exchange(self.name, asked, fill(self.answer, item))
        raise AssertionError(f"{self.name} has too few combinations to hold any out")


def is_held_out(asked: str) -> bool:
    """True if a question is held out of training. Politeness and typing do not matter."""
    return zlib.crc32(_core(asked).encode()) % _HELD_OUT_EACH == 0


def _core(asked: str) -> str:
    """Return a question without case, punctuation, short forms and politeness."""
    text = re.sub(r"[^a-z0-9 +-]", "", asked.lower().replace("what's", "what is"))
    return re.sub(r"^(please |can you |could you |do you know |tell me )+", "", text).strip()


def fill(template: str, item: Mapping[str, object]) -> str:
    """Return the template with the item's fields filled in and a capital letter at the start."""
    text = template.format(**item)
    return text[:1].upper() + text[1:]


def pairs(text: str, *fields: str) -> list[dict[str, object]]:
    """Return the items of a text like `a-b, c-d`, with a word or phrase for each field."""
    return [dict(zip(fields, entry.strip().split("-"), strict=True)) for entry in text.split(",")]


def dressed(rng: Random, asked: str) -> str:
    """Return a question as people ask it: sometimes with polite words, typed as people do."""
    chance = rng.random()
    if chance < 0.15:
        asked = rng.choice(BEFORE) + (asked[:1].lower() + asked[1:] if _common(asked) else asked)
    elif chance < 0.25:
        asked += rng.choice(AFTER)
    return typed(rng, asked)


def typed(rng: Random, text: str) -> str:
    """Return a text as people type it: sometimes in lower case or without some punctuation."""
    if rng.random() < 0.2:
        text = text.lower()
    if rng.random() < 0.2:
        text = text.rstrip("?.!") or text
    if rng.random() < 0.1:
        text = text.replace("'", "")
    return text


def _common(asked: str) -> bool:
    return asked.split(" ", 1)[0].lower() in _FIRST_WORDS


_FIRST_WORDS: Final = frozenset(
    "what which who where when why how is are do does can could tell name count add subtract say "
    "give please the write spell calculate".split()
)
