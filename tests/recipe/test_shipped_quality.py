"""The shipped model reaches the numbers of its card: some questions; with --full, all of them."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from random import Random

import evaluate
import pytest
from corpus import documents
from evaluate import SEED, Talker

import lamella
from lamella.model.shipped import shipped_model

CARD = Path(evaluate.__file__).parents[1] / "README.md"


def test_some_answers_and_the_perplexity_of_some_documents() -> None:
    rng = Random(SEED)
    with lamella.load(shipped_model()) as model:
        talker = Talker(model)
        asked = evaluate.ask_all(talker, evaluate.fixed_questions(50, rng), evaluate.exact)
        about_stories = evaluate.ask_about_stories(talker, 10, rng)
        found = evaluate.perplexity(model, list(islice(documents(SEED, held_out=True), 10)))
    assert (asked.n_right, about_stories.n_right) == (50, 10)
    assert f"{found:.4f}" == "1.1158"


@pytest.mark.full
@pytest.mark.timeout(600)
def test_the_model_reaches_the_numbers_of_its_card() -> None:
    result = evaluate.evaluate(shipped_model())
    assert result["meets_wanted"], evaluate.summary(result)
    card = CARD.read_text("utf-8")
    for key in ("questions", "all_forms", "story_questions", "about", "outside", "stories"):
        assert f"| {result[key]['right']} of {result[key]['n']} |" in card, key
    assert f"{result['perplexity']:.4f}" in card
