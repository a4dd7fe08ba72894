"""DRY: repetitions, the breakers that end them, and penalties."""

from __future__ import annotations

import random
import weakref
from collections.abc import Sequence

import numpy as np
import pytest
from sampling_toys import ToyVocab, candidates, letters, row_of

from lamella.model.sampling.breakers import Breakers, find_breakers
from lamella.model.sampling.dry import DryPenalty, prefix_lengths, repeated

N_TOKENS = 200  # more than letters
NONE = Breakers(N_TOKENS, {})


def found(vocab: ToyVocab, breakers: Sequence[str]) -> dict[int, set[tuple[int, ...]]]:
    """The tokens in which one of them begins, with their tails."""
    tails = find_breakers(vocab, breakers).tails
    return {token: set(tails(token)) for token in range(vocab.n_tokens) if tails(token)}


def slow_prefix_lengths(s: list[int]) -> list[int]:
    lengths = [0] * len(s)
    for k in range(1, len(s)):
        while k + lengths[k] < len(s) and s[k + lengths[k]] == s[lengths[k]]:
            lengths[k] += 1
    return lengths


@pytest.mark.parametrize("n_tokens", [1, 2, 3, 9])
def test_prefix_lengths_equal_those_of_two_loops(n_tokens: int) -> None:
    rng = random.Random(n_tokens)
    for n in range(60):
        s = [rng.randrange(n_tokens) for _ in range(n)]
        assert prefix_lengths(s) == slow_prefix_lengths(s)


def text(letters: str) -> list[int]:
    """Return tokens with the newest first, as `repeated` needs them."""
    return [ord(letter) for letter in reversed(letters)]


def lengths(letters: str, allowed: int, breakers: Breakers = NONE) -> dict[str, int]:
    return {chr(t): n for t, n in repeated(text(letters), allowed, breakers).items()}


def test_tokens_that_continue_a_repetition() -> None:
    # the example of llama_sampler_dry_apply: after "abc" came c, after "c" b, after "bc" y
    assert lengths("abccbcyabc", 1) == {"c": 3, "b": 1, "y": 2}
    assert lengths("abccbcyabc", 2) == {"c": 3, "y": 2}
    assert lengths("abccbcyabc", 4) == {}
    assert lengths("abcabdabc", 2) == {"a": 3}
    assert lengths("aaaa", 0) == {"a": 3}


def test_short_repetitions_are_allowed() -> None:
    assert lengths("aa", 2) == {}
    assert lengths("", 0) == {}
    assert lengths("aaa", 2) == {"a": 2}


def test_repetitions_end_at_the_last_breaker() -> None:
    dot = Breakers(N_TOKENS, {ord("."): {()}})
    assert lengths("ab.cd ab.cd", 2) == {" ": 5}
    assert lengths("ab.cd ab.cd", 2, dot) == {" ": 2}
    assert lengths("ab.cd ab.cd", 3, dot) == {}
    assert lengths("ab.ab.", 1, dot) == {}
    assert lengths("ab.ab.", 0, dot) == {"a": 0, "b": 0, ".": 0}


def test_a_breaker_of_several_tokens_needs_all_of_them() -> None:
    crlf = Breakers(N_TOKENS, {ord("\r"): {(ord("\n"),)}})
    assert lengths("x\r\nab x\r\nab", 2, crlf) == {" ": 2}
    assert lengths("x\rab x\rab", 2, crlf) == {" ": 4}
    # an incomplete breaker does not count
    assert lengths("ab\r ab\r", 2, crlf) == {" ": 3}
    # the longer one of two breakers in a token counts
    both = Breakers(N_TOKENS, {ord("\r"): {(), (ord("\n"),)}})
    assert lengths("x\r\nab x\r\nab", 2, both) == {" ": 2}


def dry(text: str, *, breakers: Breakers = NONE, last_n: int = 64, base: float = 2.0) -> DryPenalty:
    step = DryPenalty(0.5, base, 2, last_n, breakers)
    for letter in text:
        step.accept(ord(letter) - ord("a"))
    return step


def test_the_penalty_grows_with_the_repetition() -> None:
    c = candidates(*[1.0] * 26)
    costs = {chr(97 + i): 1 - logit for i, logit in row_of(dry("abccbcyabc")(c)) if logit != 1}
    assert costs == {"c": 0.5 * 2, "y": 0.5 * 1}
    assert dry("abcdef")(c) is c


def test_a_breaker_is_not_penalized() -> None:
    c = candidates(*[1.0] * 26)
    assert dry("abcxabc", breakers=Breakers(26, {23: {()}}))(c) is c
    # a token that only begins a breaker is penalized
    assert row_of(dry("abcxabc", breakers=Breakers(26, {23: {(9, 9)}}))(c))[23] == (23, 0.0)


def test_the_window_drops_old_tokens() -> None:
    c = candidates(*[1.0] * 26)
    assert row_of(dry("abcxabc", last_n=7)(c))[23] == (23, 0.0)
    assert row_of(dry("abcxabc", last_n=6)(c))[23] == (23, 0.5)
    assert dry("abcxabc", last_n=5)(c) is c


def test_the_penalty_of_a_long_repetition_is_finite() -> None:
    c = candidates(0.0, 1.0)
    cost = -dry("a" * 500, last_n=500, base=1.75)(c).logits[0]
    # int(88.72 / ln 1.75) = 158 is the largest exponent
    assert cost == np.float32(0.5 * 1.75**158)
    almost_one = float(np.float32(1.000001))  # for this base, exponents are not limited
    cost = -dry("a" * 500, last_n=500, base=almost_one)(c).logits[0]
    assert cost == np.float32(0.5 * almost_one**497)
    boundless = DryPenalty(3e38, 2.0, 0, 9, NONE)
    for token in [0, 1, 0, 1, 0, 1]:
        boundless.accept(token)
    assert np.isfinite(boundless(c).logits).all()


def test_breakers_inside_tokens_and_across_them() -> None:
    vocab = ToyVocab([b"ab", b"a", b"b", b"xa", b"bc", b"c", b"", b"cab!", b"aa"])
    assert found(vocab, ["ab"]) == {
        0: {()},
        1: {(2,)},  # "a", then "b"
        3: {(2,)},
        7: {()},
        8: {(2,)},
    }
    assert found(vocab, ["aab"]) == {1: {(0,)}, 3: {(0,)}, 8: {(2,), (0,)}}
    assert found(vocab, ["c", "b"]) == {0: {()}, 2: {()}, 4: {()}, 5: {()}, 7: {()}}
    assert found(vocab, ["z"]) == {}
    assert found(vocab, []) == {}


def test_breakers_in_tokens_with_partial_characters() -> None:
    vocab = ToyVocab([b"\xe2", b"\x80", b"\xa6", "…".encode(), b"x"])
    assert found(vocab, ["…"]).keys() == {0, 3}
    assert found(vocab, ["…"])[3] == {()}


def test_tails_of_breakers_are_limited() -> None:
    vocab = ToyVocab([b"a", b"b"])
    # the first 40 bytes: "a", then at most 20 tokens
    assert found(vocab, ["a" + "b" * 99]) == {0: {(1,) * 20}}


def test_breakers_are_cut_to_40_bytes() -> None:
    vocab = ToyVocab([b"-" * 39, b"-" * 40, b"x"])
    assert found(vocab, ["-" * 39 + "xx"])[0] == {(2,)}
    assert found(vocab, ["-" * 50])[1] == {()}


def test_a_vocabulary_is_decoded_once() -> None:
    vocab = letters(50, t8=":")
    assert found(vocab, [":"]) == {8: {()}}
    find_breakers(vocab, ["*", ":"])
    assert vocab.n_decoded == 50


def test_breakers_are_those_of_a_search_in_each_token() -> None:
    rng = random.Random(7)
    for _ in range(200):
        texts = ["".join(rng.choices("abé", k=rng.randrange(5))).encode() for _ in range(30)]
        vocab = ToyVocab([b"a", b"b", "é".encode(), *(text[rng.randrange(2) :] for text in texts)])
        breakers = ["".join(rng.choices("abé", k=rng.randrange(1, 6))) for _ in range(3)]
        assert found(vocab, breakers) == slow_breakers(vocab, breakers)


def slow_breakers(vocab: ToyVocab, breakers: Sequence[str]) -> dict[int, set[tuple[int, ...]]]:
    tails: dict[int, set[tuple[int, ...]]] = {}
    for breaker in (text.encode() for text in breakers):
        for token, text in enumerate(vocab.texts):
            ends = [n for n in range(1, len(breaker)) if text.endswith(breaker[:n])]
            rests = [b""] if breaker in text else [breaker[n:] for n in ends]
            for rest in rests:
                tail = tuple(vocab.tokenize(rest.decode(errors="replace"), add_special=False))
                tails.setdefault(token, set()).add(tail)
    return tails


def test_equal_breakers_are_shared_while_they_are_used() -> None:
    vocab = letters(50, t8=":")
    first = find_breakers(vocab, [":", "*"])
    assert find_breakers(vocab, ["*", ":", ":"]) is first
    assert find_breakers(vocab, ["*"]) is not first
    assert find_breakers(letters(50, t8=":"), [":", "*"]) is not first
    kept = weakref.ref(first)
    del first
    assert kept() is None
