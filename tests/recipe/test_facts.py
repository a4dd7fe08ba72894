"""Questions of fixed form: one right answer each, held-out questions not trained."""

from __future__ import annotations

import re
from random import Random

import pytest
from about import ABOUT, SMALL_TALK
from exchanges import Form, dressed, is_held_out
from facts import FORMS, NUMBERS
from facts_words import OPPOSITES, PLURALS
from outside import ANSWERS, is_refusal, made_up_word, near_misses, outside
from phrases import everything, plain, said


def test_a_question_has_one_answer() -> None:
    answers: dict[str, str] = {}
    for form in FORMS:
        for asked, answer in everything(form):
            assert answers.setdefault(plain(asked), answer) == answer, asked
    for entry in ABOUT + SMALL_TALK:
        for asked in said(entry):
            assert answers.setdefault(plain(asked), entry.answer) == entry.answer, asked


def test_unanswerable_questions_have_no_other_answer() -> None:
    known = {plain(asked) for form in FORMS for asked, _ in everything(form)}
    known |= {plain(asked) for entry in ABOUT + SMALL_TALK for asked in said(entry)}
    rng = Random(1)
    for _ in range(20_000):
        asked = outside(rng).asked
        assert plain(asked) not in known, asked
    for asked in near_misses():
        assert plain(asked) not in known, asked


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_each_form_has_trained_and_held_out_questions(form: Form) -> None:
    rng = Random(1)
    for held_out in (False, True):
        for _ in range(20):
            assert is_held_out(form.combination(rng, held_out=held_out).asked) is held_out
    assert len({asked for asked, _ in everything(form)}) >= 20
    for asked, answer in everything(form):
        assert not re.search(r"[{}\[\]]", asked + answer)
        assert answer.endswith(".")


def number(text: str) -> int:
    """Parse `12`, `-3`, `twelve` or `minus three`."""
    sign = -1 if text.startswith(("-", "minus ")) else 1
    text = text.removeprefix("-").removeprefix("minus ")
    return sign * (NUMBERS.index(text) if text in NUMBERS else int(text))


@pytest.mark.parametrize("form", FORMS[:4], ids=lambda form: form.name)
def test_sums_and_differences_are_right(form: Form) -> None:
    for _, answer in everything(form):
        asked, result = answer[:-1].lower().split(" is ")
        first, sign, second = asked.split()
        a, b = number(first), number(second)
        assert number(result) == (a + b if sign == "plus" else a - b), answer


def test_comparisons_and_counts_are_right() -> None:
    forms = {form.name: form for form in FORMS}
    for name, sign in (("larger", 1), ("smaller", -1)):
        for _, answer in everything(forms[name]):
            a, b = map(int, re.findall(r"\d+", answer))
            assert (a - b) * sign > 0
    for asked, answer in everything(forms["count"]) + everything(forms["count_to"]):
        ends = list(map(int, re.findall(r"\d+", asked)))
        counted = list(map(int, re.findall(r"\d+", answer)))
        assert counted == list(range(ends[0] if len(ends) > 1 else 1, ends[-1] + 1))


def test_tables_have_each_word_once() -> None:
    for table in (OPPOSITES, PLURALS):
        words = [item["x"] for item in table]
        assert len(set(words)) == len(words)


def test_refusals_are_one_sentence_with_both_flags() -> None:
    assert all(map(is_refusal, ANSWERS))
    assert not is_refusal("Use -m.")
    assert not is_refusal("Use -m. Or use -hf.")
    rng = Random(1)
    training = {outside(rng).asked for _ in range(3000)}
    assert len(training) > 2500
    assert not training & {outside(rng, held_out=True).asked for _ in range(2000)}
    assert len({made_up_word(rng) for _ in range(1000)}) > 900


def test_dressing_keeps_the_question() -> None:
    rng = Random(1)
    seen = {dressed(rng, "What is 3 + 4?") for _ in range(500)}
    assert all("what is 3 + 4" in text.lower() for text in seen)
    assert len(seen) > 20
