"""The evaluation: its questions and counts, and a run on a real file."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from random import Random

import evaluate
import pytest
from cast import Character
from exchanges import Exchange
from facts import FORMS
from stories import words_of
from tiny_model import write_tiny


class Knowing:
    """A fake model with given answers."""

    def __init__(self, answers: dict[str, str]) -> None:
        self.answers = answers

    def answer(self, messages: evaluate.Messages, n_predict: int = 128) -> str:
        return self.answers.get(messages[-1]["content"], "no idea")


def test_questions_are_of_every_form() -> None:
    asked = list(evaluate.fixed_questions(100, Random(1)))
    assert len(asked) == 100
    about = {"about_lamella", "about_larger", "about_m", "about_hf", "about_serve"}
    assert set(Counter(x.kind for x in asked)) == {form.name for form in FORMS} | about


def test_answers_must_be_exact() -> None:
    exchanges = [Exchange("sum", "1 + 1", "2."), Exchange("sum", "1 + 2", "3.")]
    talker = Knowing({"1 + 1": "2.", "1 + 2": "3"})
    score = evaluate.ask_all(talker, exchanges, evaluate.exact)  # type: ignore[arg-type]
    assert (score.n, score.n_right) == (2, 1)
    assert score.wrong == [{"kind": "sum", "asked": "1 + 2", "answered": "3", "wanted": "3."}]


@pytest.mark.parametrize(
    ("text", "ended", "bad"),
    [
        ("A fox named Tom was happy.", True, ""),
        ("A fox named Tom was happy.", False, "ended"),
        ("A fox named Tom was quantum.", True, "known_words"),
        ("A fox was with Tom.", True, "introduced"),
        ("He ran. He sat. He ran.", True, "no_repeats"),
        ('A fox sat. "Wait," called Tom.', True, "introduced"),
        ("A fox named Tom was with a fox named Tom.", True, "introduced"),
    ],
)
def test_faults_of_stories_are_counted(
    monkeypatch: pytest.MonkeyPatch, text: str, ended: bool, bad: str
) -> None:
    class Telling(Knowing):
        def story(self, prompt: object, seed: int) -> tuple[str, bool]:
            return text, ended

    words = set(words_of("a fox named Tom was happy with; he ran, sat"))
    words |= set(words_of("wait, called"))
    monkeypatch.setattr(evaluate, "story_words", lambda seed: words)
    hero = Character("Tom", "fox", "", male=True)
    monkeypatch.setattr(evaluate, "asked_hero", lambda rng: ("A fox named Tom, please.", hero))
    found = evaluate.tell_stories(Telling({}), 2, Random(1))  # type: ignore[arg-type]
    assert found["right"] == (0 if bad else 2)
    assert {wrong["bad"] for wrong in found["wrong"]} == ({bad} if bad else set())


def test_evaluate_runs_on_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate, "story_words", lambda seed: {"fox"})
    path = write_tiny(tmp_path / "tiny.gguf")
    result = evaluate.evaluate(path, path, n=2)
    assert result["perplexity"] == result["perplexity_f32"] > 1
    assert result["meets_targets"] is False
    assert result["questions"]["n"] == result["stories"]["n"] == 2
    assert "questions: 0 of 2" in evaluate.summary(json.loads(json.dumps(result)))
