"""Turns templates into the sentences of a story, with correct pronouns and without repetition.

A template is a text with choices `[this|that|]` and fields `{h.his}`. Characters are `{h}` (the
name) or `{H}` (the name, or a clear pronoun or "the fox"), likewise `f` and `g`. Knows no plots.
Tested by tests/recipe/test_stories.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from random import Random
from typing import Final

from cast import Character
from things import PLACES, Place

_CHOICE: Final = re.compile(r"\[([^\[\]]*)\]")
_MENTION: Final = re.compile(r"\{([hfgHFG])[.}]")
_SUBJECT: Final = re.compile(r"(\[[^\]]*\],? )?\{[HFGhfg]\} (?!and \{)")  # starts with one subject
_A: Final = re.compile(r"\b([Aa]) (?=[aeiou])")


def choose(rng: Random, template: str) -> str:
    """Return the template with one text chosen for each `[a|b]`. Its fields are not filled in."""
    while match := _CHOICE.search(template):
        chosen = rng.choice(match[1].split("|"))
        template = template[: match.start()] + chosen + template[match.end() :]
    return template


@dataclass(frozen=True, slots=True)
class Question:
    """A question about a story: `asked` are its phrasings, `answer` is the right answer."""

    key: str
    asked: tuple[str, ...]
    answer: str


@dataclass(frozen=True, slots=True)
class Story:
    """A finished story: its sentences, characters and place, and questions with answers."""

    plot: str
    sentences: tuple[str, ...]
    cast: tuple[Character, ...]
    place: Place
    theme: str  # the part of a request after the hero, like "who lost a ball"
    questions: tuple[Question, ...]

    @property
    def text(self) -> str:
        return " ".join(self.sentences)

    @property
    def hero(self) -> Character:
        return self.cast[0]


@dataclass(slots=True)
class Telling:
    """A story under construction. `words` are the fields of templates besides the characters."""

    rng: Random
    cast: dict[str, Character]
    place: Place
    words: dict[str, str] = field(default_factory=dict)
    sentences: list[str] = field(default_factory=list)
    questions: list[Question] = field(default_factory=list)
    theme: str = ""
    _topic: str = ""  # the character that the last sentence was about
    _mentioned: set[str] = field(default_factory=set)

    def say(self, *templates: str) -> None:
        """Add a sentence from a random template. It differs from all earlier sentences."""
        for template in self.rng.sample(templates, len(templates)):
            sentence = self._tell(template)
            if sentence not in self.sentences:
                self.sentences.append(sentence)
                self._topic, self._mentioned = _mentions(template)
                return
        raise AssertionError(f"the story has all of these sentences already: {templates}")

    def move_to(self, *places: str) -> None:
        """Move the story to one of these places."""
        self.place = self.rng.choice([p for p in PLACES if p.the.split(" ", 1)[1] in places])

    def maybe(self, chance: float, *templates: str) -> None:
        """Add a sentence from one of these templates with probability `chance`."""
        if self.rng.random() < chance:
            self.say(*templates)

    def fact(self, key: str, answer: str, *asked: str) -> None:
        """Add a question with its answer. The phrasings are `asked`, or those of the key."""
        questions = tuple(self._plain(text) for text in asked or _ASKED[key])
        self.questions.append(Question(key, questions, self._plain(answer)))

    def story(self, plot: str) -> Story:
        return Story(
            plot,
            tuple(self.sentences),
            tuple(self.cast.values()),
            self.place,
            self.filled(self.theme),
            tuple(self.questions),
        )

    def filled(self, template: str) -> str:
        """Return the template as a part of a sentence, with characters by their names."""
        return self._fill(template, {key.upper(): c.name for key, c in self.cast.items()})

    def _plain(self, template: str) -> str:
        return _capitalized(self.filled(template))

    def _tell(self, template: str) -> str:
        words = {key.upper(): self._reference(key) for key in self.cast}
        return _capitalized(self._fill(template, words))

    def _fill(self, template: str, references: dict[str, str]) -> str:
        text = choose(self.rng, template).format(
            **self.cast, **references, **self.words, at=self.place.at, to=self.place.to,
            place=self.place.the,
        )  # fmt: skip
        return _A.sub(r"\1n ", text)

    def _reference(self, key: str) -> str:
        """Return a reference to a character as the subject: a pronoun only if it is clear."""
        who = self.cast[key]
        rivals = [c for k, c in self.cast.items() if k in self._mentioned and k != key]
        clear = self._topic == key and all(rival.male != who.male for rival in rivals)
        chance = self.rng.random()
        if clear and chance < 0.65:
            return who.he
        same_kind = [c for c in self.cast.values() if c.kind == who.kind]
        known = any(who.name in sentence for sentence in self.sentences)
        if known and len(same_kind) == 1 and chance > 0.88:
            return f"the {who.look.split()[-1]} {who.kind}" if who.look else f"the {who.kind}"
        return who.name


def _capitalized(text: str) -> str:
    start = 1 if text.startswith('"') else 0
    return text[:start] + text[start].upper() + text[start + 1 :]


def _mentions(template: str) -> tuple[str, set[str]]:
    """Return the character that a sentence is about ("" if unclear), and all its characters."""
    keys = [key.lower() for key in _MENTION.findall(template)]
    clear = '"' not in template and (len(set(keys)) == 1 or _SUBJECT.match(template))
    return keys[0] if clear else "", set(keys)


_ASKED: Final[dict[str, tuple[str, ...]]] = {
    "who": (
        "Who is the story about?",
        "Who was the story about?",
        "Who is the main character?",
        "Who is it about?",
        "Whom is the story about?",
    ),
    "name": (
        "What was the {h.kind}'s name?",
        "What is the {h.kind} called?",
        "What was the name of the {h.kind}?",
        "What was the {h.kind} called?",
    ),
    "where": (
        "Where did it happen?",
        "Where does the story happen?",
        "Where did {h} go?",
        "Where was {h}?",
        "Where was the {h.kind}?",
        "Where did the {h.kind} go?",
        "Which place did {h} go to?",
        "What place was it?",
    ),
    "problem": (
        "What was the problem?",
        "What went wrong?",
        "What was {h}'s problem?",
        "What was the {h.kind}'s problem?",
        "What happened to {h}?",
        "What was the trouble?",
    ),
    "helper": (
        "Who helped {h}?",
        "Who helped?",
        "Who was the helper?",
        "Did anyone help {h}?",
        "Who was there to help {h}?",
    ),
    "friend": (
        "Who was {h}'s friend?",
        "Who was the friend of {h}?",
        "Who was with {h}?",
        "Who else is in the story?",
    ),
    "end": (
        "How did it end?",
        "How does the story end?",
        "What happened in the end?",
        "How did the story end?",
        "What was the ending?",
    ),
    "feeling": (
        "How did {h} feel in the end?",
        "How did {h} feel at the end?",
        "Was {h} happy in the end?",
        "How was {h} feeling at the end?",
    ),
}
"""Phrasings of the questions about any story."""
