"""The shipped model gives the stored answers and reaches the numbers of its card: some questions;
with --full, all of them."""

from __future__ import annotations

import json
from functools import cache
from itertools import islice
from pathlib import Path
from random import Random

import evaluate
import pytest
from corpus import documents
from evaluate import SEED, Talker
from matrix import first

import lamella
from lamella.model.shipped import NAME, shipped_model

MODELS = Path(evaluate.__file__).parents[1]
CARD = MODELS / "README.md"
ANSWERS = json.loads((MODELS / "greedy.json").read_text("utf-8"))

DEVICES: dict[str, dict[str, object]] = {
    "cpu": {"devices": ["none"]},
    "cpu unpacked": {"devices": ["none"], "repack": False},
    "sim+cpu unpacked": {"devices": ["sim"], "n_gpu_layers": 3, "repack": False},
    "sim+cpu": {"devices": ["sim"], "n_gpu_layers": 3},
    "sim": {"devices": ["sim"], "n_gpu_layers": -1},
}


@cache
def answers(devices: str) -> dict[str, str]:
    return evaluate.greedy_answers(shipped_model(), **DEVICES[devices])


@pytest.mark.parametrize("devices", first(3, DEVICES))
def test_greedy_answers_are_the_stored_ones(devices: str) -> None:
    assert len(evaluate.GREEDY) == 10
    for asked in evaluate.GREEDY:
        assert answers(devices)[asked] == ANSWERS[asked], asked


# a simulated device has the kernels for plain weights, and so their bits
@pytest.mark.parametrize("devices", first(1, ["sim+cpu unpacked", "sim"]))
def test_stories_are_the_same_for_equal_arithmetic(devices: str) -> None:
    assert answers("cpu")[evaluate.STORY] == ANSWERS[evaluate.STORY]
    assert answers("cpu unpacked")[evaluate.STORY] == answers(devices)[evaluate.STORY]


def test_load_without_a_file_opens_it() -> None:
    with lamella.load(n_ctx=64, devices=["none"]) as model:
        assert NAME in repr(model)


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
    assert result["meets_targets"], evaluate.summary(result)
    card = CARD.read_text("utf-8")
    for key in ("questions", "all_forms", "story_questions", "about", "outside", "stories"):
        assert f"| {result[key]['right']} of {result[key]['n']} |" in card, key
    assert f"{result['perplexity']:.4f}" in card
