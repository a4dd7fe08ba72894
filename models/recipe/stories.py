"""Stories: a plot, characters and a place drawn at random, and told.

    story = make_story(Random(1))
    story.text, story.questions

What is asked for can be given: the hero, the plot. `is_held_out` says which combinations training
never sees. Tested by tests/recipe/test_stories.py.
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
_WISE: Final = frozenset(("lost_way", "build", "plant", "job"))  # where `f` may be an old one
_HELD_OUT_EACH: Final = 40  # one in so many combinations of hero's name, kind and plot


def make_story(rng: Random, plot: str = "", hero: Character | None = None) -> Story:
    """A story, of this plot and hero if they are given."""
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
    """Whether training must not see this combination; the same in every run."""
    return zlib.crc32(f"{hero.name} {hero.kind} {plot}".encode()) % _HELD_OUT_EACH == 0


def story_for(rng: Random, *, held_out: bool = False) -> Story:
    """A story among those held out, or among the others."""
    while True:
        hero, plot = random_character(rng), rng.choice(list(PLOTS))
        if is_held_out(hero, plot) is held_out:
            return make_story(rng, plot, hero)


# --- what is true of every story, and is measured on those that a model tells ---

_WORD: Final = re.compile(r"[A-Za-z]+(?:'[a-z]+)?")
_END: Final = re.compile(r'(?<=[.!?])("?)\s+(?=["A-Z])')


def words_of(text: str) -> list[str]:
    """The words of a text in lower case, a genitive's `'s` taken off."""
    return [word.lower().removesuffix("'s") for word in _WORD.findall(text)]


def sentences_of(text: str) -> list[str]:
    return _END.sub("\\1\n", text.strip()).split("\n")


def repeated_sentences(text: str) -> list[str]:
    """Sentences that stand in a text more than once."""
    seen: set[str] = set()
    return [s for s in sentences_of(text) if s in seen or seen.add(s)]  # type: ignore[func-returns-value]


def strangers(text: str) -> list[str]:
    """Names in a text that are not introduced where they first appear, or once more later."""
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
