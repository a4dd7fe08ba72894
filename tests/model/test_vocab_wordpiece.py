"""WordPiece: how words become tokens, normalization, and the special tokens of BERT."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from vocab_makers import CTRL, N, Token, metadata, texts

from lamella.base.errors import ModelFileError, RequestError
from lamella.model.vocab import Vocab, load_vocab

SPECIAL: list[Token] = [(f"[{name}]", 0, CTRL) for name in ("PAD", "UNK", "CLS", "SEP", "MASK")]


def bert(
    *pieces: str,
    special: Sequence[Token] = SPECIAL,
    normalizer: Mapping[str, bool] = {},
    **values: object,
) -> Vocab:
    """Return a vocabulary of BERT's special tokens, then `pieces`, written as in GGUF files."""
    found = metadata([*special, *((p, 0.0, N) for p in pieces)], model="bert", scores=None)
    found.values |= {f"normalizer.{name}": value for name, value in normalizer.items()} | values
    return load_vocab(found)


def plain(v: Vocab, text: str) -> list[str]:
    return texts(v, v.tokenize(text, add_special=False))


def test_a_word_becomes_the_longest_tokens_from_the_left() -> None:
    v = bert("▁un", "▁unaff", "affable", "able", "a", "▁able")
    assert plain(v, "unaffable") == ["▁unaff", "able"]
    assert plain(v, "un able") == ["▁un", "▁able"]
    assert plain(v, " unable\n\tuna ") == ["▁un", "able", "▁un", "a"]


def test_a_word_that_is_not_made_of_tokens_is_unknown() -> None:
    v = bert("▁un", "▁a", "able")
    assert plain(v, "unx able unable") == ["[UNK]", "[UNK]", "▁un", "able"]
    assert v.tokenize("") == [2, 3]
    with pytest.raises(RequestError, match="no tokens"):
        bert("▁a", special=SPECIAL[2:]).tokenize("b")


def test_words_of_more_than_100_characters_are_unknown() -> None:
    """As in the models' training. llama.cpp has no limit."""
    v = bert("▁a", "a", "▁é", "é", normalizer={"strip_accents": False})
    assert plain(v, "a" * 100) == ["▁a", *["a"] * 99]
    assert plain(v, "a" * 101 + " a") == ["[UNK]", "▁a"]
    assert len(plain(v, "é" * 100)) == 100


def test_text_is_in_lower_case_and_without_accents() -> None:
    v = bert("▁e", "▁eau", "▁İ", "▁é", "▁E")
    assert plain(v, "É EAU e\u0301") == ["▁e", "▁eau", "▁e"]
    accents = bert("▁e", "▁é", "▁É", normalizer={"strip_accents": False})
    assert plain(accents, "É é e") == ["▁é", "▁é", "▁e"]
    cased = bert("▁e", "▁é", "▁É", "▁E", normalizer={"lowercase": False})
    assert plain(cased, "É E e") == ["▁É", "▁E", "▁e"]


def test_punctuation_and_chinese_characters_are_words() -> None:
    v = bert("▁a", "▁,", "▁水", "▁か", "か", "▁$", "▁»", "▁¬b")
    assert plain(v, "a,a$水水かか»¬b") == [
        *("▁a", "▁,", "▁a", "▁$", "▁水", "▁水", "▁か", "か", "▁»", "▁¬b")
    ]


def test_control_characters_disappear() -> None:
    v = bert("▁ab", "▁a", "b")
    assert plain(v, "a\0b a\u200bb\ufffd a\u00adb\x7f") == ["▁ab"] * 3


def test_text_never_becomes_special_tokens_unless_asked() -> None:
    v = bert("▁cls", "▁[", "▁]", "▁a")
    assert plain(v, "[CLS]") == ["▁[", "▁cls", "▁]"]
    ids = v.tokenize("a[SEP]a", add_special=False, parse_special=True)
    assert texts(v, ids) == ["▁a", "[SEP]", "▁a"]


def test_the_special_tokens_of_bert() -> None:
    v = bert("▁a")
    assert (v.bos, v.eos, v.sep, v.pad, v.mask, v.unk) == (2, 3, 3, None, None, 1)
    assert (v.add_bos, v.add_eos, v.add_sep) == (True, True, False)
    assert texts(v, v.tokenize("a")) == ["[CLS]", "▁a", "[SEP]"]
    stated = bert("▁a", cls_token_id=0, seperator_token_id=1, padding_token_id=2, mask_token_id=3)
    assert (stated.bos, stated.eos, stated.sep) == (0, 1, 1)
    assert (stated.pad, stated.mask) == (2, 3)
    assert bert("▁a", add_bos_token=False, add_eos_token=False).tokenize("a") == [5]


def test_a_separator_to_add_must_exist() -> None:
    with pytest.raises(ModelFileError, match=r"add_sep_token is true, but .* no SEP"):
        bert("▁a", special=SPECIAL[:3], add_eos_token=False, add_sep_token=True)


def test_detokenized_text_has_spaces_between_words() -> None:
    v = bert("▁hel", "lo", "▁,", "▁world")
    assert v.detokenize(v.tokenize("Hello, World")) == "hello , world"


@pytest.mark.parametrize("unit", ["a", " ", "a ", "水", "\u0301", "a\u0301", "\0"])
def test_long_texts_are_fast(unit: str) -> None:
    v = bert("▁a", "a", "aa", "▁水")
    ids = v.tokenize(unit * (300_000 // len(unit)), add_special=False)
    assert len(ids) in (0, 1, 5, 150_000, 300_000)
