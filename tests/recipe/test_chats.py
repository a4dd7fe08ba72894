"""Conversations and the corpus: turns alternate, seeds reproduce, held-out text is not trained."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import islice
from pathlib import Path
from random import Random

import corpus
from chats import asked_hero, conversation, story_chat, story_request
from corpus import documents, read_corpus, story_words, texts, write_corpus
from stories import make_story, words_of


def test_turns_alternate() -> None:
    rng = Random(1)
    for i in range(500):
        messages = conversation(rng, held_out=i % 2 == 1)
        roles = [m["role"] for m in messages if m["role"] != "system"]
        assert roles == ["user", "assistant"] * (len(roles) // 2)
        assert "system" not in [m["role"] for m in messages[1:]]
        assert all(m["content"].strip() for m in messages)


def test_a_story_chat_is_about_its_story() -> None:
    rng = Random(2)
    for _ in range(200):
        story, *questions = story_chat(rng)
        assert story.kind == "story"
        assert len(story.answer) > 300
        assert questions


def test_requests_fit_the_story() -> None:
    rng = Random(3)
    for _ in range(300):
        story = make_story(rng)
        asked = story_request(rng, story)
        if " about a" in asked and "{" not in asked:
            assert story.hero.kind in asked or "story" in asked
    asked, hero = asked_hero(rng)
    assert hero.name in asked
    assert hero.kind in asked


def test_the_corpus_of_a_seed_is_always_the_same(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        write_corpus(tmp_path / name, 200_000, seed)
    a, b, c = ((tmp_path / name).read_bytes() for name in "abc")
    assert a == b
    assert a != c
    assert 180_000 < sum(len(t) for d in read_corpus(tmp_path / "a") for t in texts(d)) < 210_000
    assert not list(tmp_path.glob("*.part"))


def test_the_corpus_is_the_same_in_every_process() -> None:
    script = Path(corpus.__file__)
    shown = [
        subprocess.run(
            [sys.executable, script, "--mb", "0.05", "--seed", "3", *more],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed, more in (("1", []), ("2", []), ("1", ["--held-out"]))
    ]
    assert shown[0] == shown[1] != shown[2]
    assert all(json.loads(line) for line in shown[0].splitlines())


def test_held_out_text_is_not_trained() -> None:
    training = {json.dumps(d) for d in islice(documents(1), 3000)}
    stories = [d["story"] for d in islice(documents(1, held_out=True), 300) if "story" in d]
    assert stories
    assert not training & {json.dumps(d) for d in islice(documents(1, held_out=True), 300)}


def test_all_words_of_stories_are_known() -> None:
    known = story_words(1, 4000)
    rng = Random(99)
    unknown = {w for _ in range(500) for w in words_of(make_story(rng).text)} - known
    assert unknown == set()
    assert "quantum" not in known
    assert {"mia", "fox", "once"} <= known
