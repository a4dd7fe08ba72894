"""WordPiece: how words become tokens, normalization, and the special tokens of BERT."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from vocab_makers import CTRL, N, Token, metadata, texts

from lamella.base.errors import ModelFileError, RequestError
from lamella.base.settings import NO_JIT
from lamella.model.vocab import Vocab, load_vocab
from lamella.model.vocab.bert_characters import bert_characters

SPECIAL: list[Token] = [(f"[{name}]", 0, CTRL) for name in ("PAD", "UNK", "CLS", "SEP", "MASK")]


@pytest.fixture(params=["compiled", "plain Python"], autouse=True)
def kernels(request: pytest.FixtureRequest) -> Iterator[str]:
    with NO_JIT.set(request.param != "compiled"):
        yield request.param


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


def test_tokens_may_be_single_bytes() -> None:
    pieces = [(bytes([byte]), 0.0, N) for byte in "▁!".encode()]
    v = bert(special=[*SPECIAL, *pieces])
    assert v.tokenize("!" * 100, add_special=False) == [5, 6, 7, 8] * 100


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


def test_text_with_the_mark_of_words_is_not_one_of_their_starts() -> None:
    v = bert("▁a", "a", "▁", "▁▁")
    assert plain(v, "a▁a a") == ["[UNK]", "▁a"]


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("strip_accents", [True, False])
def test_texts_become_the_tokens_of_the_tokenizers_library(
    lowercase: bool, strip_accents: bool, kernels: str
) -> None:
    rng = random.Random(0)
    letters = "abcéÉßİ,.水か각$♠"
    pieces = {*letters, *("".join(rng.choices(letters, k=rng.randrange(1, 4))) for _ in range(50))}
    words = {*letters, *("".join(rng.choices(letters, k=rng.randrange(1, 4))) for _ in range(50))}
    texts = [*(f"▁{word}" for word in sorted(words)), *sorted(pieces)]
    v = bert(*texts, normalizer={"lowercase": lowercase, "strip_accents": strip_accents})
    ids = {f"##{v.text(id)}": id for id in range(5, v.n_tokens)}
    ids |= {text[3:]: id for text, id in ids.items() if text.startswith("##▁")}
    library = Tokenizer(WordPiece({**ids, "[UNK]": 1}, unk_token="[UNK]"))
    library.normalizer = BertNormalizer(lowercase=lowercase, strip_accents=strip_accents)
    library.pre_tokenizer = BertPreTokenizer()
    others = [
        " ",
        "\n",
        "\u0301",
        "\u200b",
        "\u3000",
        "\U0001d504",
        "\ufb03",
        "\ufffd",
        "\x85",
        "ŉ",
        "क़",
        "\uff0d",
    ]
    for _ in range(300 if kernels == "compiled" else 30):
        text = "".join(rng.choices([*letters, *others], k=rng.randrange(20)))
        assert v.tokenize(text, add_special=False) == library.encode(text).ids, ascii(text)


@pytest.mark.parametrize("page", [0x00, 0x01, 0x03, 0x20, 0x2F, 0x30, 0xAC, 0xFE, 0x1D1, 0xE01])
def test_all_characters_are_normalized_as_in_the_tokenizers_library(page: int) -> None:
    """In the context of a word, which each may end, continue or leave unchanged."""
    table = bert_characters(True, True)
    normalizer, splitter = BertNormalizer(), BertPreTokenizer()
    for code_point in range(256 * page, 256 * page + 256):
        text = f"a{chr(code_point)}b"
        table.add(text)
        kind, n, n_bytes, *rest = table.entries[16 * code_point : 16 * code_point + 16].tolist()
        raw = bytes(rest[:n_bytes]).decode()
        words = [word for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text))]
        assert words == [[f"a{raw}b"], ["a", "b"], ["a", raw, "b"]][kind], hex(code_point)
        assert n == len(raw)


@pytest.mark.parametrize("unit", ["a", " ", "a ", "水", "\u0301", "a\u0301", "\0", "İ", "각"])
def test_long_texts_are_fast(unit: str, kernels: str) -> None:
    v = bert("▁a", "a", "aa", "▁水")
    n = 1_000_000 if kernels == "compiled" else 10_000
    ids = v.tokenize(unit * (n // len(unit)), add_special=False)
    assert len(ids) in (0, 1, n // 2, n)
