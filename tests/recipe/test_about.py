"""Answers about the model itself: true, one per question, with held-out phrasings not trained."""

from __future__ import annotations

import re
from random import Random

import pytest
from about import ABOUT, SMALL_TALK, Entry, entry_exchange, introduction
from phrases import plain, variants

import lamella
from lamella.cli.chat import HELP
from lamella.cli.main import COMMANDS, parser


@pytest.mark.parametrize("entry", ABOUT + SMALL_TALK, ids=lambda entry: entry.name)
def test_held_out_phrasings_are_not_trained(entry: Entry) -> None:
    trained = {plain(text) for template in entry.asked for text in variants(template)}
    assert len(trained) >= 8
    assert len(entry.held_out) >= 2
    assert not trained & set(map(plain, entry.held_out))
    assert not re.search(r"[\[\]|]", "".join((*entry.held_out, entry.answer)))


def test_trained_and_held_out_phrasings_can_be_drawn() -> None:
    rng = Random(1)
    held_out = {text for entry in ABOUT + SMALL_TALK for text in entry.held_out}
    drawn = [entry_exchange(rng, ABOUT + SMALL_TALK) for _ in range(500)]
    assert not {exchange.asked for exchange in drawn} & held_out
    assert not any("[" in exchange.asked for exchange in drawn)
    for _ in range(100):
        assert entry_exchange(rng, ABOUT, held_out=True).asked in held_out
    hello = introduction(rng)
    assert hello.answer.removeprefix("Nice to meet you, ")[:-1] in hello.asked


def test_answers_about_lamella_are_true() -> None:
    answers = {entry.name: entry.answer for entry in ABOUT}
    commands = {
        name for text in answers.values() for name in re.findall(r"(?<!import )lamella (\w+)", text)
    }
    assert {"run", "chat", "serve", "bench"} <= commands <= COMMANDS.keys()
    assert re.search(r"/exit +exit", HELP)
    assert "lamella.load" in answers["about_python"]
    assert callable(lamella.load)
    for flag in ("-m", "-hf"):
        assert re.search(rf"{flag} [A-Z]", answers["about_larger"])
        assert parser(["chat"]).parse_args(["chat", flag, "user/repo"]).command
