"""Metadata of a vocabulary: defaults, invalid values, and tokens that end a generation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from vocab_makers import (
    BYTE_TOKENS,
    CTRL,
    HEAD,
    USER,
    DictMetadata,
    N,
    Token,
    bpe,
    metadata,
    normal,
    vocab,
)

from lamella.base.errors import ModelFileError, RequestError, UnsupportedModelError
from lamella.model.vocab import Vocab, load_vocab

A = len(HEAD) + len(BYTE_TOKENS)  # the id of the first token that a test adds


def test_default_values_of_an_spm_file() -> None:
    v = vocab(*normal("▁a", "a", "▁"), scores=None)
    assert (v.bos, v.eos, v.unk, v.eot) == (1, 2, 0, None)
    assert (v.add_bos, v.add_eos, v.add_space_prefix) == (True, False, True)
    assert v.tokenize("a") == [1, A]


def test_without_types_all_tokens_are_normal() -> None:
    v = vocab(*normal("a"), token_type=None)
    assert v.piece(1) == b"<s>"
    assert v.piece(3 + 10) == b"<0x0A>"
    assert v.piece(2) == b""  # the text "</s>" ends generations, which makes it a control token


def test_special_ids_of_the_file() -> None:
    tokens: list[Token] = [("<a>", 0, CTRL), ("<b>", 0, CTRL), ("<c>", 0, CTRL), ("<d>", 0, CTRL)]
    v = vocab(
        *tokens,
        bos_token_id=A,
        eos_token_id=A + 1,
        eot_token_id=A + 2,
        unknown_token_id=A + 3,
        eom_token_id=A + 3,
    )
    assert (v.bos, v.eos, v.eot, v.unk) == (A, A + 1, A + 2, A + 3)
    assert v.eog == {2, A + 1, A + 2, A + 3}  # 2 is "</s>"


def test_a_tag_of_html_ends_no_generation_of_gemma_4() -> None:
    tokens = [("</s>", 0, N), ("<turn|>", 0, N), ("<|tool_response>", 0, N)]
    v = load_vocab(metadata(tokens, add_bos_token=False, eos_token_id=1, unknown_token_id=0))
    assert v.eog == {1, 2}
    assert v.piece(0) == b"</s>"


@pytest.mark.parametrize("pair", [("<|return|>", "<|call|>"), ("<|flush|>", "<|calls|>")])
def test_the_end_of_a_message_does_not_end_a_turn_of_several(pair: tuple[str, str]) -> None:
    """<|end|> ends the analysis of gpt-oss, and its answer follows."""
    v = vocab(("<|end|>", 0, CTRL), *((text, 0, CTRL) for text in pair))
    assert v.eog == {2, A + 1, A + 2}
    alone = vocab(("<|end|>", 0, CTRL), (pair[0], 0, CTRL))
    assert alone.eog == {2, A, A + 1}


def test_default_ids_outside_the_vocabulary_are_ignored() -> None:
    v = load_vocab(metadata([("a", 0, N)], add_bos_token=False, unknown_token_id=0))
    assert (v.bos, v.eos, v.unk, v.eog) == (None, None, 0, frozenset())
    assert v.tokenize("aa", add_special=True) == [
        0,
        0,
        0,
    ]  # the space prefix is an unknown character


@pytest.mark.parametrize("text", ["<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>"])
@pytest.mark.parametrize("type", [N, USER, CTRL])
def test_the_end_of_a_turn_is_found_by_its_text(text: str, type: int) -> None:
    v = vocab((text, 0, type))
    assert v.eot == A
    assert v.eog == {2, A}
    assert v.piece(A) == b""  # a control token, although the file has another type
    assert v.tokenize(text, parse_special=True) == [1, A]
    assert A not in v.tokenize(text)


def test_end_tokens_are_found_by_text_and_by_id() -> None:
    v = vocab(("<x>", 0, CTRL), ("<|im_end|>", 0, CTRL), ("<|fim_pad|>", 0, N), eot_token_id=A)
    assert v.eot == A
    assert v.eog == {2, A, A + 1, A + 2}
    assert v.piece(A + 2) == b""


def test_the_first_of_equal_texts_is_found() -> None:
    v = vocab(("<|im_end|>", 0, CTRL), ("<|im_end|>", 0, CTRL))
    assert v.eot == A
    assert v.eog == {2, A}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model": None}, "model is missing"),
        ({"tokens": None}, "tokens is missing"),
        ({"tokens": []}, "tokens is empty"),
        ({"scores": np.zeros(2, np.float32)}, r"scores has 2 elements for 259 tokens"),
        ({"scores": np.full(A, math.nan, np.float32)}, r"scores\[0\] is not a number"),
        ({"token_type": [1] * (A + 1)}, r"token_type has 260 elements for 259 tokens"),
        ({"token_type": [1] * (A - 1) + [7]}, r"token_type\[258\] is 7, .* 1 \(NORMAL\)"),
        ({"token_type": [1] * (A - 1) + [-1]}, r"token_type\[258\] is -1"),
        ({"token_type": [1, 6] + [1] * (A - 2)}, r"tokens\[1\] is b'<s>', .* <0x00> to <0xFF>"),
        ({"bos_token_id": A}, "bos_token_id is 259, must be 0 to 258"),
        ({"eos_token_id": -1}, "eos_token_id is -1"),
        ({"eot_token_id": 2**32 - 1}, "eot_token_id is 4294967295"),
        ({"unknown_token_id": A}, "unknown_token_id is 259"),
    ],
)
def test_invalid_metadata(values: dict[str, object], message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        vocab(**values)


def test_a_token_to_add_must_exist() -> None:
    with pytest.raises(
        ModelFileError, match="add_bos_token is true, but the vocabulary has no BOS"
    ):
        load_vocab(metadata([("a", 0, N)]))
    with pytest.raises(ModelFileError, match="add_eos_token"):
        load_vocab(metadata([("a", 0, N), ("b", 0, N)], add_eos_token=True))


def test_other_kinds_of_vocabularies_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match=r"'abc', supported .*: 'llama' .*, 'gpt2'"):
        vocab(model="abc")


def test_default_values_of_a_bpe_file() -> None:
    v = bpe("a b", token_type=None)
    assert (v.bos, v.eos, v.unk, v.eot, v.eog) == (None, None, None, None, frozenset())
    assert (v.add_bos, v.add_eos, v.add_space_prefix) == (False, False, False)
    assert v.tokenize("ab") == [256]


def test_the_pre_tokenizer_sets_the_default_of_add_bos() -> None:
    more: list[Token] = [("<|begin|>", 0, CTRL)]
    values: dict[str, object] = {"bos_token_id": 256}
    assert bpe(more=more, pre="llama-bpe", **values).tokenize("a") == [256, ord("a")]
    assert bpe(more=more, pre="qwen2", **values).tokenize("a") == [ord("a")]
    assert bpe(more=more, pre="qwen2", add_bos_token=True, **values).tokenize("a")[0] == 256
    assert bpe(pre="llama-bpe").tokenize("a") == [ord("a")]  # the vocabulary has no BOS
    with pytest.raises(
        ModelFileError, match="add_bos_token is true, but the vocabulary has no BOS"
    ):
        bpe(pre="llama-bpe", add_bos_token=True)


def test_roberta_s_pairs_have_a_separator_by_default() -> None:
    more: list[Token] = [("</s>", 0, CTRL)]
    v = bpe(more=more, pre="roberta-bpe", seperator_token_id=256)
    assert (v.eos, v.sep, v.add_eos, v.add_sep) == (256, 256, False, True)
    assert not bpe(more=more, pre="roberta-bpe").add_sep
    assert not bpe(more=more, pre="gpt-2", seperator_token_id=256).add_sep


def test_falcon_has_default_bos_and_eos() -> None:
    v = bpe(pre="falcon3")
    assert (v.bos, v.eos) == (11, 11)
    assert v.eog == {11}
    assert v.tokenize("a") == [11, ord("a")]


@pytest.mark.parametrize("text", ["<|fim_prefix|>", "<fim_suffix>", "<|fim_middle|>"])
def test_fill_in_the_middle_tokens_are_in_no_text(text: str) -> None:
    v = bpe(more=[(text, 0, USER)])
    assert v.tokenize(f"a{text}", parse_special=True) == [ord("a"), 256]
    assert 256 not in v.tokenize(f"a{text}")
    assert v.piece(256) == b""
    assert v.eog == frozenset()


def test_the_ends_of_a_turn_are_found_in_bpe_files() -> None:
    v = bpe(more=[("<|im_end|>", 0, N), ("<|endoftext|>", 0, CTRL)], pre="qwen2", eos_token_id=257)
    assert (v.eos, v.eot) == (257, 256)
    assert v.eog == {256, 257}
    assert v.tokenize("<|im_end|>", parse_special=True) == [256]


def test_an_unknown_pre_tokenizer_is_named() -> None:
    with pytest.raises(UnsupportedModelError, match=r"pre is 'kimi-k9', .* llama-bpe, .* qwen2, "):
        bpe(pre="kimi-k9")


def test_a_file_without_a_pre_tokenizer_uses_the_default_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert len(bpe("1 2", "12 3", pre=None).tokenize("12345")) == 3
    assert "tokenizer.ggml.pre is missing: using the pre-tokenizer 'default'" in caplog.text


def test_a_bpe_file_needs_its_merges() -> None:
    with pytest.raises(ModelFileError, match="merges is missing"):
        bpe(merges=None)


def test_files_may_have_duplicate_and_empty_tokens() -> None:
    v: Vocab = vocab(*normal("▁a", "", "▁a", ""), ("<s>", 0, CTRL), ("<s>", 0, N))
    assert v.n_tokens == A + 6
    assert v.tokenize("a<s>", parse_special=True)[:2] == [1, A]
    assert v.piece(A + 1) == b""
    assert v.piece(A + 2) == b" a"


@pytest.mark.parametrize("model", ["none", "no_vocab"])
def test_a_model_without_a_vocabulary_takes_ids_only(model: str) -> None:
    values = {"model": model, "general.architecture": "llama", "llama.vocab_size": 9}
    v = load_vocab(DictMetadata(values))
    assert (v.n_tokens, v.bos, v.eos, v.eog) == (9, None, None, frozenset())
    assert v.detokenize([0, 8]) == ""
    assert v.tokenize("") == []
    with pytest.raises(RequestError, match="no vocabulary: send token ids"):
        v.tokenize("a")
    with pytest.raises(RequestError, match="0 to 8"):
        v.detokenize([9])
    for size in (None, 0, 2**40):
        with pytest.raises(ModelFileError, match=r"llama.vocab_size is .*, must be 1 to"):
            load_vocab(DictMetadata(values | {"llama.vocab_size": size}))


@pytest.mark.parametrize(("arch", "space"), [("nomic-bert-moe", []), ("llama", [A + 1])])
def test_the_mask_of_encoders_removes_spaces_before_it(arch: str, space: list[int]) -> None:
    tokens: list[Token] = [("<mask>", 0, CTRL), *normal("▁", "a"), ("<a>", 0, USER)]
    keys = {"general.architecture": arch, "add_space_prefix": False, "add_bos_token": False}
    v = vocab(*tokens, **keys)
    mask, a = A, A + 2
    ids = v.tokenize("a \n<mask> <mask>a <a>", parse_special=True)
    newline = [] if not space else [A + 1, 3 + 10]
    assert ids == [a, *newline, mask, *space, mask, a, A + 1, A + 3]
    assert v.tokenize(" <mask>", parse_special=True) == [*space, mask]
    assert v.tokenize("", parse_special=True) == []
    assert v.tokenize("<mask> a", parse_special=True) == [mask, A + 1, a]


def test_phi_3_s_special_tokens_remove_spaces_after_them() -> None:
    tokens: list[Token] = [("<|user|>", 0, CTRL), ("<|endoftext|>", 0, CTRL), *normal("▁", "a")]
    keys = {"add_space_prefix": False, "add_bos_token": False}
    user, end, space, a = range(A, A + 4)
    text = "<|user|>\n a<|endoftext|> a</s>\u3000<s> a <|user|> "
    ids = [user, a, end, space, a, 2, 1, space, a, space, user]
    for name in ("Phi-3.5-mini", "microsoft phi3"):
        v = vocab(*tokens, **keys, **{"general.name": name})
        assert v.tokenize(text, parse_special=True) == ids
    other = vocab(*tokens, **keys, **{"general.name": "Phi-4"})
    assert other.tokenize("<|user|> a", parse_special=True) == [user, space, a]


def test_gemma_4_always_has_bos(caplog: pytest.LogCaptureFixture) -> None:
    tokens: list[Token] = [("<bos>", 0, CTRL), *normal("▁", "a"), *BYTE_TOKENS]
    values: dict[str, object] = {"model": "gemma4", "merges": [], "scores": None}
    v = load_vocab(metadata(tokens, **values, bos_token_id=0, add_bos_token=False))
    assert v.tokenize("a") == [0, 2]
    assert "add_bos_token is false: Gemma 4 needs BOS" in caplog.text
    assert load_vocab(metadata(tokens, **values, add_bos_token=False)).tokenize("a") == [2]


def test_tokens_that_the_file_forbids_to_generate() -> None:
    assert vocab(*normal("a")).suppressed == frozenset()
    ids = np.array([-1, 5, A, A + 1, 5], np.int32)
    assert vocab(*normal("a"), suppress_tokens=ids).suppressed == {5, A}


def test_tokens_to_fill_in_a_middle() -> None:
    texts = ["<|fim_prefix|>", "<fim_suffix>", "<MID>", "<|repo_name|>", "<|file_sep|>", "other"]
    tokens = [(text, 0, N) for text in texts]
    fill = vocab(*tokens).fill
    first = fill.prefix
    assert first is not None and fill.is_complete
    assert fill == tuple(range(first, first + 5))
    assert vocab(*tokens, fim_mid_token_id=first + 5).fill.middle == first + 5
    assert vocab(*tokens, middle_token_id=first + 5).fill.middle == first + 5
    assert not vocab(*tokens[1:]).fill.is_complete
    with pytest.raises(ModelFileError, match="fim_pre_token_id is 10000"):
        vocab(*tokens, fim_pre_token_id=10000)
