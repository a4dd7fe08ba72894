"""Finds the special tokens of a vocabulary: by the file's ids, else by their texts.

As llama.cpp's `load` (src/llama-vocab.cpp). Knows no encoding of text.
Tests: tests/model/test_vocab_load.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Final

import numpy as np
import numpy.typing as npt

from ...base.errors import ModelFileError
from ..gguf import Strings
from .metadata import VocabMetadata, key
from .table import TextIndex
from .token_types import TokenType, TypeArray, ids_of_types
from .vocab import FillTokens, SpecialTokens

# texts by which llama.cpp finds tokens without ids in the file
_TEXTS: Final = {
    "eot": [
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "<\uff5cend▁of▁sentence\uff5c>",
        "<end_of_utterance>",
    ],
    "eom": ["<|eom_id|>"],
    "fim_pad": ["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"],
    "fim_rep": ["<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"],
    "fim_sep": ["<|file_sep|>"],
}
# names in the file's keys, spelled as in GGUF
_NAMES: Final = ("bos", "eos", "unknown", "cls", "seperator", "padding", "mask")
# files of encoders may name these tokens in BERT's words only
_ENCODER_NAMES: Final = {"bos": "cls", "eos": "seperator"}
# tokens of fill-in-the-middle prompts, which become control tokens
_FILL_TEXTS: Final = {
    "fim_pre": [
        *("<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<\uff5cfim▁begin\uff5c>", "<PRE>"),
        *("▁<PRE>", "<|code_prefix|>", "<|prefix|>"),
    ],
    "fim_suf": [
        *("<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<\uff5cfim▁hole\uff5c>", "<SUF>"),
        *("▁<SUF>", "<|code_suffix|>", "<|suffix|>"),
    ],
    "fim_mid": [
        *("<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<\uff5cfim▁end\uff5c>", "<MID>"),
        *("▁<MID>", "<|code_middle|>", "<|middle|>"),
    ],
}
# older names of their keys in the file
_OLD_FILL: Final = {"fim_pre": "prefix", "fim_suf": "suffix", "fim_mid": "middle"}
# tokens that end a generation, in addition to those of the file's ids
_EOG_TEXTS: Final = [
    *_TEXTS["eot"],
    *_TEXTS["eom"],
    "</s>",
    "<eos>",
    "[EOS]",
    "<|return|>",
    "<|call|>",
    "<|calls|>",
    "<|flush|>",
    "<turn|>",
    "<|tool_response>",
    "[e~[",
]
# in these formats <|end|> ends one message of a turn, and a token of each pair ends the turn
# (harmony of gpt-oss, Solar Open)
_MESSAGE_END: Final = b"<|end|>"
_TURN_ENDS: Final = ((b"<|return|>", b"<|call|>"), (b"<|flush|>", b"<|calls|>"))
# Gemma 4 and PLaMo 2 have these tokens, and "</s>" is a tag of HTML there
_NOT_SPM_ENDS: Final = {b"<|tool_response>", b"<|plamo:eos|>"}

# in tokenizer.json of RoBERTa, XLM-RoBERTa and ModernBERT these have `lstrip`
_MASK_TEXTS: Final = (b"<mask>", b"[MASK]")
# all special tokens of Phi-3 but these have `rstrip`
_PHI3_OTHERS: Final = (b"<unk>", b"<s>", b"<|endoftext|>")


def special_tokens(
    metadata: VocabMetadata,
    tokens: Strings,
    types: npt.NDArray[np.uint8],
    *,
    default_ids: Mapping[str, int],
    add_bos: bool,
    add_eos: bool = False,
    add_sep: bool = False,
) -> SpecialTokens:
    """Return the special tokens. Tokens found by their texts become control tokens in `types`.

    Args:
        metadata: the file's metadata.
        tokens: the texts of the tokens.
        types: a `TokenType` for each token; changed.
        default_ids: ids by names as in the file's keys, for tokens without an id in the file. An id
            outside of the vocabulary is ignored.
        add_bos: default of `add_bos_token`.
        add_eos: default of `add_eos_token`.
        add_sep: default of `add_sep_token` if the vocabulary has SEP.

    Raises:
        ModelFileError: an id is outside the vocabulary, or a token to add does not exist.
    """
    ids = _ids_by_name(metadata, len(tokens), default_ids)
    id_of = _known_ids(tokens)
    for name, texts in _TEXTS.items():
        found = _ids_of(texts, id_of)
        if ids[name] is None and found:
            ids[name] = found[0]
            types[found[0]] = TokenType.CONTROL
    types[_ids_of(chain(*_FILL_TEXTS.values()), id_of)] = TokenType.CONTROL
    ends = _ending_tokens(ids, id_of, tokens, types)
    lstrip, rstrip = _stripping_tokens(metadata, id_of, types)
    special = SpecialTokens(
        bos=ids["bos"],
        eos=ids["eos"],
        eot=ids["eot"],
        unk=ids["unknown"],
        add_bos=metadata.bool(key("add_bos_token"), add_bos),
        add_eos=metadata.bool(key("add_eos_token"), add_eos),
        eog=ends,
        sep=ids["seperator"],
        pad=ids["padding"],
        mask=ids["mask"],
        add_sep=metadata.bool(key("add_sep_token"), add_sep and ids["seperator"] is not None),
        lstrip=lstrip,
        rstrip=rstrip,
        suppressed=_suppressed_tokens(metadata, len(tokens)),
        fill=_fill_tokens(metadata, ids, id_of, len(tokens)),
    )
    _check_added(special)
    return special


def _ids_by_name(
    metadata: VocabMetadata, n_tokens: int, default_ids: Mapping[str, int]
) -> dict[str, int | None]:
    """Return the ids that the file states, or the defaults."""
    ids = {name: _stated_id(metadata, name, n_tokens) for name in (*_NAMES, *_TEXTS)}
    for name, other in _ENCODER_NAMES.items():
        if ids[name] is None:
            ids[name] = ids[other]
    for name, id in default_ids.items():
        if ids[name] is None and id < n_tokens:
            ids[name] = id
    return ids


def _fill_tokens(
    metadata: VocabMetadata,
    ids: Mapping[str, int | None],
    id_of: Mapping[bytes, int],
    n_tokens: int,
) -> FillTokens:
    """Return the tokens of fill-in-the-middle prompts: those that the file states, else by text."""
    found: dict[str, int | None] = {}
    for name, texts in _FILL_TEXTS.items():
        stated = (_stated_id(metadata, key, n_tokens) for key in (name, _OLD_FILL[name]))
        every = [id for id in stated if id is not None] or _ids_of(texts, id_of)
        found[name] = every[0] if every else None
    return FillTokens(
        prefix=found["fim_pre"],
        suffix=found["fim_suf"],
        middle=found["fim_mid"],
        repo=ids["fim_rep"],
        file=ids["fim_sep"],
    )


def _ending_tokens(
    ids: Mapping[str, int | None], id_of: Mapping[bytes, int], tokens: Strings, types: TypeArray
) -> frozenset[int]:
    """Return the tokens that end a generation. Those found by their texts become control tokens."""
    ends = _ids_of(_EOG_TEXTS, id_of)
    if not _NOT_SPM_ENDS.isdisjoint(id_of):
        ends = [id for id in ends if tokens[id] != b"</s>"]
    types[ends] = TokenType.CONTROL
    ends += [id for id in map(ids.get, ("eos", *_TEXTS)) if id is not None]
    if any(set(pair) <= set(id_of) for pair in _TURN_ENDS):
        ends = [id for id in ends if tokens[id] != _MESSAGE_END]
    return frozenset(ends)


def _check_added(special: SpecialTokens) -> None:
    """Check that the tokens to add exist."""
    adds = {
        "bos": (special.add_bos, special.bos),
        "eos": (special.add_eos, special.eos),
        "sep": (special.add_sep, special.sep),
    }
    for name, (add, id) in adds.items():
        if add and id is None:
            raise ModelFileError(
                f"{key(f'add_{name}_token')} is true, but the vocabulary has no {name.upper()}"
            )


def _ids_of(texts: Iterable[str], id_of: Mapping[bytes, int]) -> list[int]:
    """Return the ids of the texts that are tokens."""
    return [id_of[text.encode()] for text in texts if text.encode() in id_of]


def _stripping_tokens(
    metadata: VocabMetadata, id_of: Mapping[bytes, int], types: TypeArray
) -> tuple[frozenset[int], frozenset[int]]:
    """Return the tokens that remove spaces before them, and those that remove spaces after them.

    GGUF files do not have this flag of tokenizer.json, so names decide, as in llama.cpp.
    """
    masks: list[int] = []
    if "bert" in metadata.str("general.architecture", ""):
        masks = [id_of[text] for text in _MASK_TEXTS if text in id_of]
    name = metadata.str("general.name", "").lower()
    if "phi-3" not in name and "phi3" not in name:
        return frozenset(masks), frozenset()
    kinds = (TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNKNOWN)
    other = {id_of.get(text) for text in _PHI3_OTHERS}
    return frozenset(masks), frozenset(ids_of_types(types, *kinds)) - other


def _suppressed_tokens(metadata: VocabMetadata, n_tokens: int) -> frozenset[int]:
    """Return the tokens that the file forbids to generate, without ids outside the vocabulary."""
    ids = metadata.int_array(key("suppress_tokens"), None)
    return frozenset() if ids is None else frozenset(ids[(ids >= 0) & (ids < n_tokens)].tolist())


def _known_ids(tokens: Strings) -> dict[bytes, int]:
    """Return the ids of the tokens whose texts have a meaning here, the first of equal ones."""
    index = TextIndex(tokens)
    texts = {text.encode() for text in chain(*_TEXTS.values(), *_FILL_TEXTS.values(), _EOG_TEXTS)}
    texts |= {_MESSAGE_END, *chain(*_TURN_ENDS), *_NOT_SPM_ENDS, *_MASK_TEXTS, *_PHI3_OTHERS}
    found = {text: index.find(text) for text in texts}
    return {text: id for text, id in found.items() if id is not None}


def _stated_id(metadata: VocabMetadata, name: str, n_tokens: int) -> int | None:
    full_name = key(f"{name}_token_id")
    id = metadata.int(full_name, None)
    if id is not None and not 0 <= id < n_tokens:
        raise ModelFileError(f"{full_name} is {id}, must be 0 to {n_tokens - 1}")
    return id
