"""RWKV: escaped tokens, and the longest token at each place."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from vocab_makers import CTRL, UNUSED, N, Token, metadata

from lamella.base.errors import RequestError
from lamella.base.settings import NO_JIT
from lamella.model.vocab import Vocab, load_vocab
from lamella.model.vocab.rwkv import unescaped

BYTES: list[Token] = [(repr(bytes([byte]))[2:-1], 0, N) for byte in range(256)]


@pytest.fixture(params=["compiled", "plain Python"], autouse=True)
def kernels(request: pytest.FixtureRequest) -> Iterator[str]:
    with NO_JIT.set(request.param != "compiled"):
        yield request.param


def rwkv(*tokens: Token, **values: object) -> Vocab:
    """Return a vocabulary of `<s>`, then `tokens`."""
    return load_vocab(
        metadata([("<s>", 0, CTRL), *tokens], model="rwkv", scores=None, eos_token_id=0, **values)
    )


@pytest.mark.parametrize(
    "raw", [b"a\tb\n\r", b"\\", b"'\"", b"\x00\xff", "é".encode(), bytes(range(256)), b"\\x41"]
)
def test_tokens_are_written_as_in_python_s_source(raw: bytes) -> None:
    assert unescaped(repr(raw)[2:-1].encode()) == raw


def test_the_longest_token_wins_at_each_place() -> None:
    v = rwkv(*BYTES, ("ab", 0, N), ("abcd", 0, N), ("\\n\\n", 0, N), ("\\xe6\\xb0", 0, N))
    assert v.tokenize("abcabcd\n\n\n") == [257, 100, 258, 259, 11]
    assert v.tokenize("水") == [260, 0xB4 + 1]
    assert v.detokenize(v.tokenize("水ab\n")) == "水ab\n"


def test_text_never_becomes_control_tokens() -> None:
    v = rwkv(*BYTES)
    assert v.tokenize("<s>") == [61, 116, 63]
    assert v.tokenize("a<s>", parse_special=True) == [98, 0]
    assert (v.bos, v.eos, v.add_bos, v.add_eos) == (None, 0, False, False)


def test_a_byte_without_a_token_is_unknown() -> None:
    tokens: list[Token] = [("a", 0, N), ("bc", 0, N), ("[PAD]", 0, UNUSED)]
    assert rwkv(*tokens, unknown_token_id=3).tokenize("abaé") == [1, 3, 1, 3, 3]
    with pytest.raises(RequestError, match="no tokens"):
        rwkv(*tokens).tokenize("ab")


@pytest.mark.parametrize("unit", ["a", "\n", "ab", "水"])
def test_long_texts_are_fast(unit: str, kernels: str) -> None:
    v = rwkv(*BYTES, ("aaaaaaaa", 0, N), ("abababab", 0, N))
    text = unit * ((1_000_000 if kernels == "compiled" else 10_000) // len(unit))
    assert v.detokenize(v.tokenize(text)) == text
