"""Stories, made from a random plot, random characters and a random place.

    story = make_story(Random(1))
    story.text, story.questions

The hero and the plot can be given. `is_held_out` selects the combinations that training never uses.
Tested by tests/recipe/test_stories.py.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable
from random import Random
from typing import Final

import plots_done
import plots_friends
import plots_lost
from cast import NAMES, Character, random_character
from telling import Story, Telling
from things import PLACES

PLOTS: Final[dict[str, Callable[[Telling], None]]] = {
    plot.__name__: plot
    for plot in (
        plots_lost.lost_thing,
        plots_lost.stuck,
        plots_lost.lost_way,
        plots_lost.afraid,
        plots_done.build,
        plots_done.plant,
        plots_done.job,
        plots_done.present,
        plots_friends.share,
        plots_friends.quarrel,
        plots_friends.newcomer,
        plots_friends.sick,
    )
}
_WISE: Final = frozenset(("lost_way", "build", "plant", "job"))  # plots in which `f` may be old
_HELD_OUT_EACH: Final = 40  # holds out one in 40 combinations of the hero's name, kind and plot


def make_story(rng: Random, plot: str = "", hero: Character | None = None) -> Story:
    """Return a story, with this plot and hero if they are given."""
    plot = plot or rng.choice(list(PLOTS))
    cast = {"h": hero or random_character(rng)}
    for key in "fg" if plot == "present" else "f":
        taken = frozenset(word for c in cast.values() for word in (c.name, c.kind))
        old = key == "f" and plot in _WISE and rng.random() < 0.4
        cast[key] = random_character(rng, taken, old=old)
    telling = Telling(rng, cast, rng.choice(PLACES))
    PLOTS[plot](telling)
    return telling.story(plot)


def is_held_out(hero: Character, plot: str) -> bool:
    """True if a combination is held out of training. The result is the same in every run."""
    return zlib.crc32(f"{hero.name} {hero.kind} {plot}".encode()) % _HELD_OUT_EACH == 0


def story_for(rng: Random, *, held_out: bool = False) -> Story:
    """Return a random story, from those held out or from the others."""
    while True:
        hero, plot = random_character(rng), rng.choice(list(PLOTS))
        if is_held_out(hero, plot) is held_out:
            return make_story(rng, plot, hero)


# --- properties of every story, which are measured on a model's stories ---

_WORD: Final = re.compile(r"[A-Za-z]+(?:'[a-z]+)?")
_END: Final = re.compile(r'(?<=[.!?])("?)\s+(?=["A-Z])')


def words_of(text: str) -> list[str]:
    """Return the words of a text in lower case, without the genitive's `'s`."""
    return [word.lower().removesuffix("'s") for word in _WORD.findall(text)]


def sentences_of(text: str) -> list[str]:
    return _END.sub("\\1\n", text.strip()).split("\n")


def repeated_sentences(text: str) -> list[str]:
    """Return the sentences that repeat an earlier one."""
    seen: set[str] = set()
    return [s for s in sentences_of(text) if s in seen or seen.add(s)]  # type: ignore[func-returns-value]


def strangers(text: str) -> list[str]:
    """Return the names in a text that are not introduced at their first use, or are introduced
    twice."""
    names = _in_order(_WORD.findall(text))
    return [name for name in names if not _introduced(name, text) or _introduced_again(name, text)]


def _in_order(words: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(w for word in words if (w := word.removesuffix("'s")) in NAMES))


def _introduced(name: str, text: str) -> bool:
    match = re.search(rf"\b{name}\b", text)
    assert match is not None
    before, after = text[: match.start()], text[match.end() :]
    named = re.search(_NAMED + "$", before)
    return named is not None or bool(re.match(r"(, an? | was an? )", after))


def _introduced_again(name: str, text: str) -> bool:
    return len(re.findall(rf"{_NAMED}{name}\b", text)) > 1


_NAMED: Final = r"\b[Aa]n? (?:[a-z]+[ -])+(?:named|called) "  # a little fox named ...
