"""BPE over characters, as in Gemma 4: spaces, newlines, bytes, and special tokens."""

from __future__ import annotations

import random

import pytest
from vocab_makers import BYTE_TOKENS, CTRL, HEAD, USER, N, Token, merged, metadata, texts

from lamella.base.errors import RequestError
from lamella.model.vocab import Vocab, load_vocab

MERGES = ["h e", "l l", "he ll", "hell o", "▁ hello", "▁ ▁", "\n \n", "é e"]
MADE = ["he", "ll", "hell", "hello", "▁hello", "▁▁", "\n\n", "ée"]
CHARACTERS = [*"helo▁\né<>0x41", "\n\n\n"]
TOKENS: list[Token] = [*BYTE_TOKENS, *((text, 0.0, N) for text in [*CHARACTERS, *MADE])]


def gemma4(*more: Token, tokens: list[Token] = TOKENS, **values: object) -> Vocab:
    own = {"model": "gemma4", "merges": MERGES, "bos_token_id": 1} | values
    return load_vocab(metadata([*HEAD, *tokens, *more], **own))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hello hello", ["hello", "▁hello"]),
        ("hello  hello", ["hello", "▁", "▁hello"]),
        ("ll  ll", ["ll", "▁▁", "ll"]),
        ("\n\n\nhello\n", ["\n\n\n", "hello", "\n"]),
        ("\n\n\n\n", ["\n\n", "\n\n"]),
        ("éa😀", ["é", "<0x61>", "<0xF0>", "<0x9F>", "<0x98>", "<0x80>"]),
        ("<0x41>", ["<", "0", "x", "4", "1", ">"]),
        ("", []),
    ],
)
def test_tokens_of_a_text(text: str, expected: list[str]) -> None:
    v = gemma4()
    ids = v.tokenize(text, add_special=False)
    assert texts(v, ids) == expected
    assert v.detokenize(ids) == text


def test_the_pre_tokenizer_may_select_it() -> None:
    v = gemma4(model="gpt2", pre="sarvam-moe")
    assert texts(v, v.tokenize("hello hello")) == ["hello", "▁hello"]


def test_bos_is_added_and_special_tokens_are_found() -> None:
    v = gemma4(("<turn|>", 0, CTRL), ("<|channel>", 0, USER))
    ids = v.tokenize("hello<|channel> hello<turn|>", parse_special=True)
    assert texts(v, ids) == ["<s>", "hello", "<|channel>", "▁hello", "<turn|>"]
    assert v.detokenize(ids) == "hello<|channel> hello"
    assert ids[-1] in v.eog


def test_a_vocabulary_without_byte_tokens_refuses_unknown_characters() -> None:
    v = gemma4(tokens=TOKENS[256:])
    assert texts(v, v.tokenize("hello", add_special=False)) == ["hello"]
    with pytest.raises(RequestError, match="no token for the byte 0x61 of the character 'a'"):
        v.tokenize("hella")


def test_random_merges_follow_the_rule() -> None:
    """A text is merged in parts, which must not change the result."""
    chance = random.Random(1)
    for _ in range(40):
        symbols, merges = [*"ab▁é😀"], list[str]()
        for _ in range(chance.randrange(1, 12)):
            left, right = chance.choice(symbols), chance.choice(symbols)
            merges.append(f"{left} {right}")
            symbols.append(left + right)
        tokens: list[Token] = [(text, 0, N) for text in dict.fromkeys(symbols)]
        v = gemma4(tokens=tokens, merges=merges)
        for n in (*range(1, 16), 50, 120):
            text = "".join(chance.choices("ab é😀", k=n))
            found = texts(v, v.tokenize(text, add_special=False))
            assert found == merged(text.replace(" ", "▁"), merges)


def test_a_whitespace_vocabulary_skips_spaces_and_characters_without_a_token() -> None:
    own = {"model": "whitespace", "pre": "whitespace", "merges": MERGES}
    tokens: list[Token] = [*HEAD, *((text, 0.0, N) for text in [*"helo你", *MADE])]
    v = load_vocab(metadata(tokens, **own))
    ids = v.tokenize("hello \u3000\n你hell!o  Hello", add_special=False)
    assert texts(v, ids) == ["hello", "你", "hell", "o", "e", "ll", "o"]
    v = load_vocab(metadata(tokens, **own, **{"normalizer.lowercase": True}))
    assert texts(v, v.tokenize("HELLO", add_special=False)) == ["hello"]
