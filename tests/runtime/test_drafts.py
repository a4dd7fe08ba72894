"""Where guesses come from, and how often they come true."""

from __future__ import annotations

import random

import pytest

from lamella.runtime.engine.drafts.acceptance import PRIOR, Acceptance
from lamella.runtime.engine.drafts.guesser import Guesser, Rest, spelled
from lamella.runtime.engine.drafts.ngram import N_INDEXED, NgramSource, copied
from lamella.runtime.engine.drafts.synthetic import SyntheticSource
from lamella.runtime.engine.drafts.table import N_ENTRIES, N_TABLES, NgramTables, TableSource
from lamella.runtime.speculative_params import SpecType, SpeculativeParams


def test_an_ngram_is_followed_as_its_last_occurrence_was() -> None:
    source = NgramSource(3)
    assert source.draft([1, 2, 3, 4, 5, 9, 1, 2, 3], 2).tokens == [4, 5]
    assert source.draft([1, 2, 3, 4, 5, 9, 1, 2, 3, 7], 2).tokens == ()
    assert source.draft([1, 2, 3, 4, 5, 9, 1, 2, 3, 7, 1, 2, 3], 4).tokens == [7, 1, 2, 3]


def test_an_ngram_never_finds_itself() -> None:
    assert NgramSource(3).draft([1, 2, 3], 4).tokens == ()
    assert NgramSource(3).draft([1], 4).tokens == ()
    assert NgramSource(1).draft([1], 4).tokens == ()


def test_a_repeated_pattern_goes_on() -> None:
    assert copied([1, 2, 3, 1, 2], 3, 5) == [1, 2, 1, 2, 1]
    assert NgramSource(2).draft([8, 1, 2, 3, 1, 2, 3, 1, 2], 7).tokens == [3, 1, 2, 3, 1, 2, 3]


def test_tokens_one_by_one_are_found_as_at_once() -> None:
    rng = random.Random(1)
    text = [rng.randrange(4) for _ in range(300)]
    grown = NgramSource(3)
    for n in range(1, len(text)):
        assert grown.draft(text[:n], 5) == NgramSource(3).draft(text[:n], 5)


def test_a_long_match_is_another_kind() -> None:
    long = list(range(20))
    kinds = {
        n: NgramSource(3).draft([*long[20 - n :], 7, 99, *long[20 - n :]], 1).kind
        for n in (3, 4, 6, 10)
    }
    assert len(set(kinds.values())) == 4


def test_a_shifted_text_is_indexed_again() -> None:
    source = NgramSource(2)
    source.draft(list(range(50)), 3)
    assert source.draft([40, 41, 42, 40, 41], 1).tokens == [42]


def test_only_the_end_of_a_long_prompt_is_indexed() -> None:
    text = [*range(2 * N_INDEXED), 5, 6, 7]
    assert NgramSource(3).draft(text, 1).tokens == ()
    late = 2 * N_INDEXED - 10
    assert NgramSource(3).draft([*range(2 * N_INDEXED), late, late + 1, late + 2], 1).tokens


def test_a_table_has_the_texts_of_one_client() -> None:
    tables = NgramTables()
    TableSource(tables.of("a", 2)).draft([1, 2, 3, 4], 3)
    assert TableSource(tables.of("a", 2)).draft([9, 1, 2], 3).tokens == [3, 4]
    assert TableSource(tables.of("b", 2)).draft([9, 1, 2], 3).tokens == ()
    for i in range(N_TABLES):
        tables.of(i, 2)
    assert TableSource(tables.of("a", 2)).draft([9, 1, 2], 3).tokens == ()  # it was the oldest


def test_a_table_is_bounded() -> None:
    table = NgramTables().of("a", 1)
    table.learn(range(N_ENTRIES + 50), 0)
    assert table.follow([N_ENTRIES], 1) == [N_ENTRIES + 1]
    assert table.follow([5], 1) == []


def test_rates_follow_what_comes_true() -> None:
    shared = Acceptance()
    own = Acceptance(shared)
    assert own.rate("x") == PRIOR
    for _ in range(20):
        own.add("x", 0, 7)
    assert own.rate("x") < 0.1
    assert Acceptance(shared).rate("x") < 0.3  # later texts begin with less hope
    assert own.rate("y") == PRIOR
    for _ in range(20):
        own.add("x", 7, 7)
    assert own.rate("x") > 0.9
    for _ in range(20):
        own.add("x", 0, 7)
    for _ in range(5000):
        own.skip("x")
    assert own.rate("x") == pytest.approx(PRIOR, abs=0.01)  # it is tried again


def test_a_rate_counts_checked_guesses_only() -> None:
    own = Acceptance(Acceptance())
    for _ in range(100):
        own.add("x", 1, 7)  # the second was wrong, and the others were not checked
    assert own.rate("x") == pytest.approx(0.5, abs=0.02)


def test_a_forced_text_is_spelled_in_long_tokens() -> None:
    spelling = {b"a": 1, b"ab": 2, b"abc": 3, b"d": 4}
    assert spelled(b"abcabd", spelling, 9) == [3, 2, 4]
    assert spelled(b"abcabd", spelling, 1) == [3]
    assert spelled(b"abxd", spelling, 9) == [2]


def guesser(*types: SpecType, rates: tuple[float, ...] = ()) -> Guesser:
    params = SpeculativeParams(spec_type=types, spec_synth_rates=rates)
    tables = NgramTables()
    return Guesser(params, Acceptance(), lambda n: tables.of("", n), 1)


def test_types_choose_the_sources() -> None:
    text = [*range(10), *range(9)]
    assert guesser(SpecType.AUTO).draft(text, 1).tokens == [9]
    assert guesser(SpecType.NGRAM_SIMPLE).draft(text, 1).tokens == [9]
    assert guesser(SpecType.NGRAM_MOD).draft(text, 1).kind == "table"
    assert guesser(SpecType.DRAFT_SIMPLE).draft(text, 1).tokens == ()


def test_synthetic_guesses_are_taken_at_their_rates() -> None:
    assert guesser(SpecType.AUTO, rates=(0.5, 0.5)).draft([4], 7).tokens == [4, 4]
    source = SyntheticSource([0.8, 0.0], 1)
    assert 700 < sum(source.takes(0) for _ in range(1000)) < 900
    assert not any(source.takes(1) for _ in range(1000))


def test_texts_without_guesses_rest_together() -> None:
    """Each in seven of eight steps, and all in the same ones: they began at different times."""
    rests, all_rest = [Rest() for _ in range(6)], list[bool]()
    for step in range(120):
        begun = rests[: step // 3 + 1]
        resting = [rest.goes_on() for rest in begun]
        for rest, is_resting in zip(begun, resting, strict=True):
            if not is_resting:
                rest.miss(step)
        all_rest.append(all(resting))
    assert sum(all_rest[80:]) == 35
