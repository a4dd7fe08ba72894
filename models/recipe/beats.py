"""Parts that most stories share: the opening, a meeting, feelings, the end.

Every plot calls these and adds its own middle. Tested by tests/recipe/test_stories.py.
"""

from __future__ import annotations

from typing import Final

from telling import Telling
from things import HOMES

_LOVES: Final = (
    "sing",
    "play outside",
    "look at the clouds",
    "run in the grass",
    "tell jokes",
    "draw pictures",
    "count the stars",
    "dance in the rain",
    "find new paths",
    "listen to the birds",
)


def opening(t: Telling) -> None:
    """Introduce the hero, with a home or something that the hero loves."""
    t.words["home"] = t.rng.choice(HOMES)
    t.words["love"], t.words["love2"] = t.rng.sample(_LOVES, 2)
    if t.rng.random() < 0.35:
        t.say(
            "[Once upon a time|Once|Long ago], there [was|lived] {h.a} [named|called] {h} who "
            "lived {home}.",
            "{h} was {h.a} who lived {home}.",
            "{home}, there lived {h.a} [named|called] {h}.",
            "{h.a} [named|called] {h} lived {home}.",
        )
    else:
        t.say(
            "[Once upon a time|Once upon a time|Once|Long ago], there [was|lived] {h.a} "
            "[named|called] {h}.",
            "There [was once|once was|once lived] {h.a} [named|called] {h}.",
            "This is [the|a] story of {h.a} [named|called] {h}.",
            "{h} was {h.a}.",
        )
        t.maybe(0.5, "{H} lived {home}.", "{H} had [always|long] lived {home}.")
    t.maybe(
        0.55,
        "{H} loved to {love}.",
        "{H} liked to {love} and to {love2}.",
        "More than anything else, {h} loved to {love}.",
        "Every [day|morning|afternoon], {H} would {love}.",
        "Nobody could {love} as happily as {h}.",
    )
    t.fact("who", "The story is about {h.a} named {h}.")
    t.fact("name", "The {h.kind}'s name was {h}.")
    t.fact("where", "{h} was {at}.")


def one_day(t: Telling, *why: str) -> None:
    """Send the hero to the place of the story. `why` are reasons, as they follow "to"."""
    t.words["why"] = t.filled(t.rng.choice(why)) if why else "play"
    t.say(
        "[One day|One morning|One sunny day|One afternoon], {H} went {to} to {why}.",
        "[One day|One morning|One windy day], {H} walked {to}, for {h} wanted to {why}.",
        "It was a [warm|bright|fine|cool] [day|morning], and {H} was {at} to {why}.",
        "[On Monday|On Sunday|On a bright day|One fine day], {h} got up early and went {to} to "
        "{why}.",
        '"I want to {why}," [said|thought] {h} [one day|one morning], and so {h.he} went {to}.',
    )


def sad(t: Telling) -> None:
    t.say(
        "{H} was very sad.",
        "{H} felt sad and sat down.",
        "A tear ran down {h}'s [face|nose].",
        "{H} began to cry.",
        "{H} did not know what to do.",
        "This made {h} very [sad|unhappy].",
        '"Oh no!" cried {h}.',
    )


def meet(t: Telling) -> None:
    """Introduce `f`, whom the hero meets."""
    t.say(
        "[Just then|Then|Soon|After a while], {f.a} [named|called] {f} came [by|along].",
        "[Just then|Soon|Luckily], {h} met {f.a} [named|called] {f}.",
        "{f.a} [named|called] {f} [heard|saw] {h} and came [closer|over].",
        "Not far away stood {f.a} [named|called] {f}.",
        "[That day|At that moment], {f.a} [named|called] {f} was {at} too.",
    )


def ask_why(t: Telling) -> None:
    """Let `f` ask what is wrong. `words["trouble"]` is the hero's answer."""
    t.say(
        '"What is [wrong|the matter]?" asked {f}.',
        '"Why are you so sad?" [asked|said] {f}.',
        '"Can I help you?" asked {f} [kindly|softly|with a smile].',
        "{f} asked {h} what [was wrong|had happened].",
        '"Do you need help, {h}?" asked {f}.',
    )
    t.say(
        '"{trouble}," [said|answered] {h}.',
        '{h} [said|answered], "{trouble}."',
        '"Oh, {f}, {trouble_low}," said {h}.',
        '{h} looked up and said, "{trouble}."',
    )


def offer(t: Telling) -> None:
    t.say(
        '"Do not worry," said {f}, "I will help you."',
        '"I can help you," said {f}.',
        '{f} smiled and said, "Let us do it together."',
        '"Two can do more than one," said {f}.',
        "{f} thought for a moment and had an idea.",
        '"I have an idea," said {f}.',
    )


def thanks(t: Telling) -> None:
    t.say(
        '"Thank you, {f}," said {h}.',
        "{h} thanked {f} and gave {f.him} a big hug.",
        '"You are a true friend," {h} told {f}.',
        "{h} thanked {f} with all {h.his} heart.",
        '"Thank you so much!" cried {h} [happily|with joy].',
        '{h} said, "I will never forget this, {f}."',
    )


def happy(t: Telling, *templates: str) -> None:
    """Say that the hero is happy, and add the question about the hero's feeling."""
    t.say(
        "{H} was [very happy|so happy|full of joy].",
        "{H} felt [happy|very happy] [again|now|at last].",
        "{H} [laughed|smiled] [and jumped with joy|from ear to ear|happily].",
        "How happy {h} was!",
        *templates,
    )
    t.fact("feeling", "{h} felt happy in the end.")


def closing(t: Telling, *lessons: str) -> None:
    """Add one or two last sentences. `lessons` are possible lessons of the story."""
    if lessons and t.rng.random() < 0.55:
        t.words["lesson"] = t.filled(t.rng.choice(lessons))
        t.say(
            "{H} had learned that {lesson}.",
            "From that day on, {h} knew that {lesson}.",
            "And {h} never forgot that {lesson}.",
            "That day, {h} learned that {lesson}.",
        )
    else:
        t.say(
            "{h} and {f} were friends from that day on.",
            "From then on, {h} and {f} [met|played together] every day.",
            "In the evening, {h} told everyone at home about {f}.",
            "And so {h} and {f} became the best of friends.",
            "That night, {H} [slept well|had a sweet dream|fell asleep with a smile].",
            "It was the best day of {h}'s life.",
            "{h} and {f} [walked home|went home] together, [hand in hand|singing a song].",
        )
    t.maybe(0.25, "The end.")
