"""SPM merges against a plain implementation of the rule, and unusual vocabularies."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest
from vocab_makers import BYTE_TOKENS, CTRL, HEAD, UNUSED, USER, N, Token, normal, texts, vocab

from lamella.base.errors import RequestError
from lamella.base.settings import NO_JIT
from lamella.model.gguf import Strings
from lamella.model.vocab.spm import SpmEncoder


def merged(text: str, scores: dict[str, float]) -> list[str]:
    """Merge by SPM's rule: the pair with the best score, equal scores from left to right."""
    parts = list(text.replace(" ", "▁"))
    while True:
        pairs = [(scores[a + b], -i) for i, (a, b) in enumerate(pairwise(parts)) if a + b in scores]
        if not pairs:
            return parts
        i = -max(pairs)[1]
        parts[i : i + 2] = [parts[i] + parts[i + 1]]


def encoder(*tokens: Token, unk: int | None = 0) -> SpmEncoder:
    raw = [text.encode() if isinstance(text, str) else text for text, _, _ in tokens]
    scores = np.array([score for _, score, _ in tokens], np.float32)
    types = np.array([type for _, _, type in tokens], np.uint8)
    return SpmEncoder(Strings.of(raw), scores, types, unk)


def random_tokens(rng: random.Random, alphabet: str) -> dict[str, float]:
    found = dict.fromkeys(alphabet.replace(" ", "▁"), -9.0)
    while len(found) < 40:
        a, b = rng.choice(list(found)), rng.choice(list(found))
        found.setdefault(a + b, -float(rng.randrange(8)))  # few scores, so many are equal
    return found


@pytest.mark.parametrize("seed", range(30))
def test_pairs_are_merged_by_score_and_from_the_left(seed: int) -> None:
    rng = random.Random(seed)
    scores = random_tokens(rng, "ab é😀")
    names = list(scores)
    spm = encoder(*HEAD, *((name, score, N) for name, score in scores.items()))
    for _ in range(30):
        text = "".join(rng.choices("ab é😀", k=rng.randrange(1, 30)))
        found = [names[id - len(HEAD)] for id in spm.encode(text)]
        assert found == merged(text, scores)


def test_the_empty_text_has_no_tokens() -> None:
    assert encoder(*HEAD, *normal("a")).encode("") == []


def test_characters_without_a_token_become_bytes() -> None:
    v = vocab(*normal("a"), add_bos_token=False, add_space_prefix=False)
    assert texts(v, v.tokenize("aé\0")) == ["a", "<0xC3>", "<0xA9>", "<0x00>"]


def test_byte_tokens_are_found_by_text_without_types() -> None:
    v = vocab(*normal("a"), token_type=None, add_bos_token=False, add_space_prefix=False)
    assert texts(v, v.tokenize("a\n")) == ["a", "<0x0A>"]


def test_an_unknown_character_is_the_unknown_token_without_byte_tokens() -> None:
    tokens = [*HEAD, *BYTE_TOKENS[:200], *normal("a")]
    assert encoder(*tokens, unk=2).encode("aéa") == [203, 2, 203]
    assert encoder(*tokens, unk=None).encode("aa") == [203, 203]
    with pytest.raises(RequestError, match="no token for the byte 0xC3"):
        encoder(*tokens, unk=None).encode("aéa")


def test_plain_text_never_becomes_control_tokens() -> None:
    v = vocab(*normal("<", "/", "s", ">", "</", "s>"), add_bos_token=False, add_space_prefix=False)
    assert texts(v, v.tokenize("</s>")) == ["</", "s>"]
    one = vocab(("x", 0, CTRL), add_bos_token=False, add_space_prefix=False)
    assert texts(one, one.tokenize("x")) == ["<0x78>"]


def test_unused_tokens_are_replaced_by_their_parts() -> None:
    spm = encoder(*HEAD, ("ab", 0, UNUSED), *normal("a", "b", "abab"))
    assert spm.encode("ab") == [4, 5]
    assert spm.encode("abab") == [6]

    v = vocab(("éa", 0, UNUSED), *normal("a"), add_bos_token=False, add_space_prefix=False)
    assert texts(v, v.tokenize("éa")) == ["<0xC3>", "<0xA9>", "a"]


def test_user_defined_text_can_be_merged() -> None:
    assert encoder(*HEAD, ("ab", -9, USER), *normal("a", "b", "aa")).encode("aabab") == [6, 5, 3]


def test_the_first_of_equal_tokens_is_used_and_empty_ones_never() -> None:
    spm = encoder(*HEAD, *normal("", "a", "b", "a", "", "ab", "ab"), ("<s>", 0, N))
    assert spm.encode("aba") == [8, 4]


@pytest.mark.parametrize("strange", ["", " unknown", " 3", " 1", "a\0b", b"\xff\xfe"])
def test_invalid_tokens_are_ignored(strange: str | bytes) -> None:
    spm = encoder(*HEAD, (strange, 0, N), *normal("a", "b"))
    assert spm.encode("ab") == [4, 5]
    assert spm.encode("3") == [0]


def test_infinite_scores_are_valid() -> None:
    spm = encoder(*HEAD, ("ab", -np.inf, N), ("bc", np.inf, N), *normal("a", "b", "c"))
    assert spm.encode("abc") == [5, 4]


@pytest.mark.parametrize("unit", ["x", " ", "ab cd ", "😀", "\n"])
def test_long_texts_are_fast(unit: str) -> None:
    v = vocab(*normal("ab", "▁c", "▁▁", "x", "xx", "xxxx", "a", "b", "c", "▁"))
    text = unit * (100_000 // len(unit))
    assert v.detokenize(v.tokenize(text)) == text


@pytest.mark.parametrize("seed", range(10))
def test_characters_within_tokens_may_lack_a_token(seed: int) -> None:
    rng = random.Random(seed)
    scores = random_tokens(rng, "ab é😀")
    known = {text: score for text, score in scores.items() if len(text) > 1 or text in "ab"}
    names = [
        text.decode()
        for text in (t if isinstance(t, bytes) else t.encode() for t, *_ in BYTE_TOKENS)
    ]
    spm = encoder(*BYTE_TOKENS, *((name, score, N) for name, score in known.items()))
    names += known
    for _ in range(30):
        text = "".join(rng.choices("ab é😀", k=rng.randrange(1, 70)))
        expected: list[str] = []
        for part in merged(text, known):
            expected += [part] if part in known else [f"<0x{byte:02X}>" for byte in part.encode()]
        assert [names[id] for id in spm.encode(text)] == expected


def test_a_very_long_token() -> None:
    assert encoder(*HEAD, ("x" * 100_000, 0, N), *normal("x", "xx")).encode("xxx") == [5, 4]


def test_a_long_chain_of_unused_tokens() -> None:
    letters = "".join(map(chr, range(0x4E00, 0x4E00 + 1500)))
    chain = [(letters[:n], -n, UNUSED) for n in range(2, 1501)]
    found = encoder(*HEAD, *normal(*letters), *chain).encode(letters)
    assert found == list(range(3, 1503))


def test_kernels_run_as_plain_python() -> None:
    tokens: list[Token] = [("[X]", 0, CTRL), ("[X][X]", 0, CTRL), ("<i>", 0, USER)]
    tokens += normal("▁a", "aa", "aaaa", "a", "b", "▁", "ab", "▁ab")
    text = "ab a[X][X][X]é<i>" + "a" * 60
    ids = vocab(*tokens, add_space_prefix=False).tokenize(text, parse_special=True)
    with NO_JIT.set(1):
        v = vocab(*tokens, add_space_prefix=False)
        assert v.tokenize(text, parse_special=True) == ids
        assert v.detokenize(ids, special=True) == "<s>" + text
