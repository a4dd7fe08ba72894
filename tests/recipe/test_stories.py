"""Stories: no repetition, every name is introduced, answers are true."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from random import Random

import pytest
from cast import BOYS, GIRLS, KINDS, NAMES, Character, random_character, with_article
from stories import (
    PLOTS,
    is_held_out,
    make_story,
    repeated_sentences,
    sentences_of,
    story_for,
    strangers,
    words_of,
)
from telling import Story, Telling
from things import PLACES


@cache
def some(plot: str) -> list[Story]:
    rng = Random(plot)
    return [make_story(rng, plot) for _ in range(150)]


@pytest.mark.parametrize("plot", PLOTS)
def test_no_sentence_is_repeated(plot: str) -> None:
    assert [s.text for s in some(plot) if repeated_sentences(s.text)] == []


@pytest.mark.parametrize("plot", PLOTS)
def test_all_names_are_introduced(plot: str) -> None:
    for story in some(plot):
        assert strangers(story.text) == [], story.text
        assert NAMES & set(re.findall(r"\w+", story.text)) == {c.name for c in story.cast}


@pytest.mark.parametrize("plot", PLOTS)
def test_texts_are_well_formed(plot: str) -> None:
    for story in some(plot):
        texts = [story.text, *(q.answer for q in story.questions), *story.questions[0].asked]
        for text in texts:
            assert not re.search(r"[\[\]{}|]|  | [.,!?]", text), text
            assert not re.search(r"\b[Aa] [aeiou]|\b[Aa]n (?!hour)[^aeiou]", text), text
        assert len(words_of(story.text)) < 200  # so that 300 tokens suffice
        for sentence in sentences_of(story.text):
            assert re.fullmatch(r'["A-Z].*[.!?]"?', sentence), sentence
            assert sentence.count('"') % 2 == 0, sentence


@pytest.mark.parametrize("plot", PLOTS)
def test_pronouns_refer_to_characters_of_the_story(plot: str) -> None:
    for story in some(plot):
        words = set(words_of(story.text))
        if all(c.male for c in story.cast):
            assert not words & {"she", "her", "herself"}, story.text
        if not any(c.male for c in story.cast):
            assert not words & {"he", "him", "his", "himself"}, story.text


@pytest.mark.parametrize("plot", PLOTS)
def test_answers_are_in_the_story(plot: str) -> None:
    """Names in an answer occur in the story; helpers and places are those of the story."""
    for story in some(plot):
        text = story.text
        facts = {q.key: q.answer for q in story.questions}
        assert facts["who"] == f"The story is about {story.hero.a} named {story.hero.name}."
        assert story.place.at in text.lower() or story.place.to in text, text
        assert facts["where"] == f"{story.hero.name} was {story.place.at}."
        for key in ("color", "what", "found", "stuck", "gift", "ill", "game", "chased", "fear"):
            if key in facts:
                word = facts[key].rstrip(".").split(" ")[-1]
                assert word.lower() in words_of(text), (facts[key], text)
        for question in story.questions:
            assert len(set(question.asked)) == len(question.asked)
            assert NAMES & set(words_of_case(question.answer)) <= {c.name for c in story.cast}


def words_of_case(text: str) -> list[str]:
    return re.findall(r"[A-Za-z]+", text)


def test_a_seed_gives_the_same_stories() -> None:
    def texts(seed: int) -> list[str]:
        rng = Random(seed)
        return [make_story(rng).text for _ in range(50)]

    assert texts(1) == texts(1)
    assert texts(1) != texts(2)


def test_stories_differ() -> None:
    rng = Random(5)
    stories = [make_story(rng) for _ in range(1000)]
    assert len({s.text for s in stories}) == 1000
    openings = Counter(s.sentences[0].split(s.hero.name)[0][:20] for s in stories)
    assert max(openings.values()) < 350
    assert {s.plot for s in stories} == set(PLOTS)
    assert {s.hero.kind for s in stories} == set(KINDS)
    assert {s.hero.name for s in stories} == NAMES


def test_requested_stories_are_made() -> None:
    hero = Character("Rusty", "fox", "brave little", True)
    story = make_story(Random(1), "build", hero)
    assert (story.plot, story.hero) == ("build", hero)
    assert "a brave little fox" in story.text.lower()


def test_held_out_combinations_are_few_and_fixed() -> None:
    rng = Random(2)
    drawn = [(random_character(rng), rng.choice(list(PLOTS))) for _ in range(4000)]
    assert 50 < sum(is_held_out(hero, plot) for hero, plot in drawn) < 200
    for held_out in (False, True):
        story = story_for(rng, held_out=held_out)
        assert is_held_out(story.hero, story.plot) is held_out


def test_names_kinds_and_places_are_distinct() -> None:
    assert not set(BOYS) & set(GIRLS)
    assert len(set(KINDS)) == len(KINDS)
    assert len({p.the for p in PLACES}) == len(PLACES)
    assert with_article("owl") == "an owl"
    taken = frozenset({"Tom", "fox"})
    rng = Random(1)
    for _ in range(500):
        character = random_character(rng, taken)
        assert character.name != "Tom"
        assert character.kind != "fox"


def test_a_pronoun_is_used_only_if_it_is_clear() -> None:
    tom = Character("Tom", "fox", "little", True)
    ben = Character("Ben", "bear", "small", True)
    mia = Character("Mia", "owl", "young", False)
    for other, expected in ((ben, set()), (mia, {"He slept."})):
        sentences = set()
        for seed in range(40):
            telling = Telling(Random(seed), {"h": tom, "f": other}, PLACES[0])
            telling.say("{h} saw {f}.")
            telling.say("{H} slept.")
            sentences.add(telling.sentences[1])
        assert sentences - {"Tom slept.", "The little fox slept."} == expected


def test_sentences_are_not_repeated() -> None:
    for seed in range(20):
        telling = Telling(Random(seed), {"h": random_character(Random(1))}, PLACES[0])
        for _ in range(2):
            telling.say("He ran.", "He sat.")
        assert sorted(telling.sentences) == ["He ran.", "He sat."]
        with pytest.raises(AssertionError, match="has all of these sentences"):
            telling.say("He ran.", "He sat.")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("There was a fox named Tom. Tom met Mia.", ["Mia"]),
        ("Tom was a fox. He met an owl called Mia.", []),
        ("Tom ran. Tom was a fox.", ["Tom"]),
        ("He had a friend, Mia, a small owl.", []),
        ("A fox named Tom saw Tom's friend Ben.", ["Ben"]),
    ],
)
def test_names_without_introduction_are_found(text: str, found: list[str]) -> None:
    assert strangers(text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("He ran. She ran.", []),
        ("He ran. She sat. He ran.", ["He ran."]),
        ('"Who?" asked Tom. "What?" asked Tom.', []),
        ('"Go!" said Mia. He sat. "Go!" said Mia.', ['"Go!" said Mia.']),
    ],
)
def test_repeated_sentences_are_found(text: str, found: list[str]) -> None:
    assert repeated_sentences(text) == found
