"""Loads the vocabulary of a model file.

As llama.cpp's `load` (src/llama-vocab.cpp), but an invalid value is an error that names it.
Tests: tests/model/test_vocab_load.py, tests/model/test_vocab_files.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ...base.errors import ModelFileError, UnsupportedModelError
from ...base.log import get_logger
from ..gguf import Strings
from .bpe import BpeEncoder
from .metadata import VocabMetadata, key
from .none import NoEncoder
from .pieces import BYTES
from .plamo2 import Plamo2Encoder
from .rwkv import RwkvEncoder
from .special import special_tokens
from .spm import SpmEncoder
from .token_types import TokenType, TypeArray, ids_of_types
from .unigram import Normalization, UnigramEncoder
from .vocab import SpecialTokens, Vocab
from .wordpiece import WordPieceEncoder
from .words import PRE_TOKENIZERS

log = get_logger("vocab")


def load_vocab(metadata: VocabMetadata) -> Vocab:
    """Return the vocabulary of a model file.

    Raises:
        ModelFileError: a key is missing or has an invalid value.
        UnsupportedModelError: the kind of vocabulary or its pre-tokenizer is unknown.
    """
    kind = metadata.str(key("model"))
    if kind not in KINDS:
        names = ", ".join(f"{name!r} ({known.name})" for name, known in KINDS.items())
        raise UnsupportedModelError(f"{key('model')} is {kind!r}, supported vocabularies: {names}")
    if KINDS[kind].load is _load_none:
        return _load_none(metadata, Strings.of([]), np.empty(0, np.uint8))
    tokens = metadata.bytes_strings(key("tokens")).copy()
    if not tokens:
        raise ModelFileError(f"{key('tokens')} is empty")
    types = metadata.int_array(key("token_type"), None)
    if types is None:
        types = np.full(len(tokens), TokenType.NORMAL)
    _check_length("token_type", len(types), len(tokens))
    invalid = ~np.isin(types, list(TokenType))
    if invalid.any():
        id = int(invalid.argmax())
        raise ModelFileError(
            f"{key('token_type')}[{id}] is {types[id]}, must be one of "
            + ", ".join(f"{type.value} ({type.name})" for type in TokenType)
        )
    return KINDS[kind].load(metadata, tokens, types.astype(np.uint8))


def _scores(metadata: VocabMetadata, n_tokens: int) -> npt.NDArray[np.float32]:
    scores = metadata.floats(key("scores"), None)
    if scores is None:
        return np.zeros(n_tokens, np.float32)
    _check_length("scores", len(scores), n_tokens)
    if np.isnan(scores).any():
        raise ModelFileError(f"{key('scores')}[{np.isnan(scores).argmax()}] is not a number")
    return scores


def _check_bytes(tokens: Strings, types: TypeArray) -> None:
    for id in ids_of_types(types, TokenType.BYTE):
        if tokens[id] not in BYTES:
            raise ModelFileError(
                f"{key('tokens')}[{id}] is {tokens[id][:40]!r}, "
                "the text of a BYTE token must be from <0x00> to <0xFF>"
            )


def _load_spm(metadata: VocabMetadata, tokens: Strings, types: TypeArray) -> Vocab:
    scores = _scores(metadata, len(tokens))
    _check_bytes(tokens, types)
    default_ids = {"unknown": 0, "bos": 1, "eos": 2}
    special = special_tokens(metadata, tokens, types, default_ids=default_ids, add_bos=True)
    return Vocab(
        tokens,
        types,
        SpmEncoder(tokens, scores, types, special.unk),
        special,
        add_space_prefix=metadata.bool(key("add_space_prefix"), True),
    )


def _load_bpe(metadata: VocabMetadata, tokens: Strings, types: TypeArray) -> Vocab:
    return _bpe(metadata, tokens, types, metadata.str(key("pre"), ""))


def _load_gemma4(metadata: VocabMetadata, tokens: Strings, types: TypeArray) -> Vocab:
    return _bpe(metadata, tokens, types, "gemma4")


def _load_whitespace(metadata: VocabMetadata, tokens: Strings, types: TypeArray) -> Vocab:
    return _bpe(metadata, tokens, types, "whitespace")


def _bpe(metadata: VocabMetadata, tokens: Strings, types: TypeArray, name: str) -> Vocab:
    """Load a BPE vocabulary with the pre-tokenizer of this name, "" if the file has none."""
    if not name:
        log.warning("%s is missing: using the pre-tokenizer 'default'", key("pre"))
    pre = PRE_TOKENIZERS.get(name or "default")
    if pre is None:
        raise UnsupportedModelError(
            f"{key('pre')} is {name!r}, supported: {', '.join(sorted(PRE_TOKENIZERS))}"
        )
    # as in llama.cpp, Falcon's token 11 is BOS and EOS if the file has none
    default_ids = {"bos": 11, "eos": 11} if name.startswith("falcon") else {}
    has_bos = "bos" in default_ids or metadata.int(key("bos_token_id"), None) is not None
    add_bos = pre.add_bos and has_bos
    special = special_tokens(
        metadata, tokens, types, default_ids=default_ids, add_bos=add_bos, add_sep=pre.add_sep
    )
    if name == "gemma4" and special.bos is not None and not special.add_bos:
        log.warning("%s is false: Gemma 4 needs BOS, which is added", key("add_bos_token"))
        special = replace(special, add_bos=True)
    merges = metadata.bytes_strings(key("merges"))
    lowercase = metadata.bool(key("normalizer.lowercase"), False)
    encoder = BpeEncoder(tokens, types, merges, pre, lowercase=lowercase)
    return Vocab(tokens, types, encoder, special, add_space_prefix=False)


def _load_wordpiece(metadata: VocabMetadata, tokens: Strings, types: TypeArray) -> Vocab:
    texts = {"bos": b"[CLS]", "seperator": b"[SEP]", "eos": b"[SEP]", "unknown": b"[UNK]"}
    special = special_tokens(
        metadata,
        tokens,
        types,
        default_ids={name: tokens.index(text) for name, text in texts.items() if text in tokens},
        add_bos=True,
        add_eos=True,
    )
    lowercase = metadata.bool(key("normalizer.lowercase"), True)
    encoder = WordPieceEncoder(
        tokens,
        types,
        special.unk,
        lowercase=lowercase,
        strip_accents=metadata.bool(key("normalizer.strip_accents"), lowercase),
    )
    return Vocab(tokens, types, encoder, special, add_space_prefix=True)


def _load_unigram(metadata: VocabMetadata, tokens: Strings, types: TypeArray) -> Vocab:
    scores = _scores(metadata, len(tokens))
    _check_bytes(tokens, types)
    default_ids = {"padding": 0, "eos": 1, "unknown": 2}
    special = special_tokens(
        metadata, tokens, types, default_ids=default_ids, add_bos=False, add_eos=True
    )
    charsmap = metadata.int_array(key("precompiled_charsmap"), None)
    add_prefix = metadata.bool(key("add_space_prefix"), False)
    merge_spaces = metadata.bool(key("remove_extra_whitespaces"), False)
    normalization = Normalization(
        charsmap=b"" if charsmap is None else charsmap.astype(np.uint8).tobytes(),
        # Vocab adds a space before the text, which is merged with others
        add_prefix=add_prefix and merge_spaces,
        merge_spaces=merge_spaces,
    )
    encoder = UnigramEncoder(tokens, scores, types, special.unk, normalization)
    return Vocab(tokens, types, encoder, special, add_space_prefix=add_prefix)


def _load_rwkv(metadata: VocabMetadata, tokens: Strings, types: TypeArray) -> Vocab:
    special = special_tokens(metadata, tokens, types, default_ids={}, add_bos=False)
    encoder = RwkvEncoder(tokens, types, special.unk)
    return Vocab(tokens, types, encoder, special, add_space_prefix=False)


def _load_plamo2(metadata: VocabMetadata, tokens: Strings, types: TypeArray) -> Vocab:
    scores = _scores(metadata, len(tokens))
    _check_bytes(tokens, types)
    default_ids = {"unknown": 0, "bos": 1, "eos": 2, "padding": 3}
    special = special_tokens(metadata, tokens, types, default_ids=default_ids, add_bos=False)
    encoder = Plamo2Encoder(tokens, scores, types)
    return Vocab(tokens, types, encoder, special, add_space_prefix=False)


def _load_none(metadata: VocabMetadata, _tokens: Strings, _types: TypeArray) -> Vocab:
    size_key = f"{metadata.str('general.architecture')}.vocab_size"
    n_tokens = metadata.int(size_key, None)
    if n_tokens is None or not 0 < n_tokens <= _N_TOKENS_MAX:
        raise ModelFileError(
            f"{size_key} is {'missing' if n_tokens is None else n_tokens}, must be 1 to "
            f"{_N_TOKENS_MAX} as {key('model')} is {metadata.str(key('model'))!r}"
        )
    special = SpecialTokens(
        bos=None, eos=None, eot=None, unk=None, add_bos=False, add_eos=False, eog=frozenset()
    )
    places = np.zeros(n_tokens, np.int64)
    tokens = Strings(np.empty(0, np.uint8), places, places)
    types = np.full(n_tokens, TokenType.NORMAL, np.uint8)
    return Vocab(tokens, types, NoEncoder(n_tokens), special, add_space_prefix=False)


class VocabKind(NamedTuple):
    """A kind of vocabulary: its name, llama.cpp's LLAMA_VOCAB_TYPE_* number, and its loader."""

    name: str
    number: int
    load: Callable[[VocabMetadata, Strings, TypeArray], Vocab]


# by the value of `tokenizer.ggml.model`
KINDS: Final = {
    "llama": VocabKind("SPM", 1, _load_spm),
    "gpt2": VocabKind("BPE", 2, _load_bpe),
    "bert": VocabKind("WPM", 3, _load_wordpiece),
    "t5": VocabKind("UGM", 4, _load_unigram),
    "rwkv": VocabKind("RWKV", 5, _load_rwkv),
    "plamo2": VocabKind("PLaMo2", 6, _load_plamo2),
    "gemma4": VocabKind("BPE", 2, _load_gemma4),
    "whitespace": VocabKind("BPE", 2, _load_whitespace),
    "none": VocabKind("none", 0, _load_none),
    "no_vocab": VocabKind("none", 0, _load_none),
}
_N_TOKENS_MAX: Final = 1 << 24  # of a file without a vocabulary


def _check_length(name: str, n: int, n_tokens: int) -> None:
    if n != n_tokens:
        raise ModelFileError(f"{key(name)} has {n} elements for {n_tokens} tokens")
