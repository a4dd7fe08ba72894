"""PLaMo 2 against a plain implementation of its rule, and its byte tokens."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping

import pytest
from vocab_makers import BYTE_TOKENS, CTRL, UNK, N, Token, metadata, texts

from lamella.base.errors import ModelFileError
from lamella.base.settings import NO_JIT
from lamella.model.vocab import Vocab, load_vocab

HEAD: list[Token] = [
    ("<|plamo:unk|>", 0, UNK),
    *((f"<|plamo:{name}|>", 0, CTRL) for name in ("bos", "eos", "pad")),
]


@pytest.fixture(params=["compiled", "plain Python"], autouse=True)
def kernels(request: pytest.FixtureRequest) -> Iterator[str]:
    with NO_JIT.set(request.param != "compiled"):
        yield request.param


def plamo2(scores: Mapping[str, float], **values: object) -> Vocab:
    """Return a vocabulary of special tokens, all bytes, then the tokens of `scores`."""
    tokens: list[Token] = [*HEAD, *BYTE_TOKENS, *((text, x, N) for text, x in scores.items())]
    return load_vocab(metadata(tokens, model="plamo2", **values))


def best(text: str, scores: Mapping[str, float]) -> list[str]:
    """Try each first token, the longest first, and then a character as bytes."""
    found: list[tuple[int, list[str]]] = [(0, [])]  # for the last 0, 1, 2 .. characters
    for at in range(len(text) - 1, -1, -1):
        rest = text[at:]
        choices = []
        for n in range(len(rest), 0, -1):
            if rest[:n] in scores:
                total, parts = found[len(rest) - n]
                choices.append((total - round(scores[rest[:n]] * 1e4), [rest[:n], *parts]))
        total, parts = found[len(rest) - 1]
        byte_texts = [f"<0x{byte:02X}>" for byte in rest[0].encode()]
        choices.append((total + 10_000_000, [*byte_texts, *parts]))
        found.append(min(choices, key=lambda choice: choice[0]))
    return found[-1][1]


@pytest.mark.parametrize("seed", range(10))
def test_the_tokens_with_the_highest_sum_of_scores_are_found(seed: int) -> None:
    rng = random.Random(seed)
    letters = "ab é😀"
    words = {"".join(rng.choices(letters, k=rng.randrange(1, 5))) for _ in range(40)}
    scores = {word: -float(rng.randrange(1, 5)) for word in sorted(words)}  # many are equal
    v = plamo2(scores)
    for _ in range(30):
        text = "".join(rng.choices(letters + "水", k=rng.randrange(20)))
        assert texts(v, v.tokenize(text)) == best(text, scores), text
        assert v.detokenize(v.tokenize(text)) == text


def test_special_tokens_and_useless_scores() -> None:
    v = plamo2({"</s>": -1, "a": -2000, "b": float("-inf"), "c": -1999.9})
    assert (v.bos, v.eos, v.unk, v.pad) == (1, 2, 0, 3)
    assert (v.add_bos, v.add_eos) == (False, False)
    assert texts(v, v.tokenize("abc</s>")) == ["<0x61>", "<0x62>", "<0x63>", "</s>"]
    assert v.eog == {2}  # "</s>" is a tag of HTML
    assert texts(v, v.tokenize("<|plamo:eos|>"))[0] == "<0x3C>"
    assert v.tokenize("<|plamo:eos|>", parse_special=True) == [2]


def test_every_byte_needs_a_token() -> None:
    with pytest.raises(ModelFileError, match="lacks the BYTE token <0xFF>"):
        load_vocab(metadata([*HEAD, *BYTE_TOKENS[:-1]], model="plamo2"))


@pytest.mark.parametrize("unit", ["a", "b", "ab", "水"])
def test_long_texts_are_fast(unit: str, kernels: str) -> None:
    v = plamo2({"a": -1, "a" * 20: -2, "abab": -2})
    text = unit * ((1_000_000 if kernels == "compiled" else 5_000) // len(unit))
    assert v.detokenize(v.tokenize(text)) == text
