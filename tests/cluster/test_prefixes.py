"""Numbers of pages: those of a prompt are those of the prefix tree."""

from __future__ import annotations

import numpy as np
import pytest

from lamella.cluster.prefixes import numbers_of, page_numbers, summary
from lamella.model.kv_prefix import PLAIN, PrefixIdentity, PrefixTree
from lamella.model.kv_sequence import KVPool

PAGE = 4


def tree_of(*prompts: list[int], identity: PrefixIdentity = PLAIN) -> PrefixTree:
    pool = KVPool(400, page_size=PAGE)
    tree = PrefixTree(pool)
    for tokens in prompts:
        seq = tree.find(tokens, identity)
        seq.append(len(tokens) - seq.length)
        tree.insert(tokens, seq, ended=True, identity=identity)
        seq.free()
    return tree


def test_pages_of_a_prompt_are_those_of_the_tree() -> None:
    tokens = list(range(3 * PAGE + 2))
    assert set(page_numbers(tokens, PAGE)) == set(numbers_of(summary(tree_of(tokens))))


@pytest.mark.parametrize(("n_tokens", "n_pages"), [(0, 0), (1, 0), (4, 0), (5, 1), (9, 2)])
def test_the_last_token_is_evaluated(n_tokens: int, n_pages: int) -> None:
    assert len(page_numbers(list(range(n_tokens)), PAGE)) == n_pages


def test_a_page_stands_for_all_before_it() -> None:
    one, other = page_numbers([1] * 13, PAGE), page_numbers([2] * 4 + [1] * 9, PAGE)
    assert set(one).isdisjoint(other)
    assert page_numbers([1] * 9, PAGE) == one[:2]


def test_identities_share_nothing() -> None:
    salted = PrefixIdentity("key")
    tokens = list(range(13))
    assert set(page_numbers(tokens, PAGE)).isdisjoint(page_numbers(tokens, PAGE, salted))
    tree = tree_of(tokens, identity=salted)
    assert set(numbers_of(summary(tree))) == set(page_numbers(tokens, PAGE, salted))


def test_a_summary_is_bounded_and_closed() -> None:
    """The most recently used pages, never one without those before it."""
    prompts = [list(np.random.default_rng(i).integers(0, 99, 21)) for i in range(8)]
    tree = tree_of(*prompts)
    found = set(numbers_of(summary(tree, 12)))
    assert len(found) == 12
    assert found >= set(page_numbers(prompts[-1], PAGE))
    for prompt in prompts:
        are_there = [page in found for page in page_numbers(prompt, PAGE)]
        assert are_there == sorted(are_there, reverse=True)
