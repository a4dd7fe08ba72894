"""Pre-tokenizers: split a text into words, which a BPE vocabulary then merges separately.

A pre-tokenizer has a name, `tokenizer.ggml.pre`, and regular expressions that are applied one after
the other. Each match is a word, and so is each text between matches. The names and flags are
llama.cpp's (src/llama-vocab.cpp, `load` and `llm_tokenizer_bpe`). The expressions are those of the
models' tokenizer.json, of which llama.cpp has approximations for tekken and gpt-4o. The table has
the names used by models of the supported architectures. Tests: tests/model/test_vocab_words.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """A pre-tokenizer and its related flags.

    Attributes:
        patterns: regular expressions in Oniguruma's syntax.
        ignore_merges: a word that is a token becomes this token without merges.
        add_bos: default of `add_bos_token`.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False


_GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# tokenizer.json's (?i:...), without the long s (U+017F), which llama.cpp does not match either
_CONTRACTION: Final = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_SPACES: Final = r"\s*[\r\n]+|\s+(?!\S)|\s+"


def _gpt4(digits: str, line_ends: str = r"[\r\n]*") -> str:
    """Return the expression of GPT-4 (cl100k_base), which most later models use with variations.

    `digits` matches a number, `line_ends` the newlines that belong to preceding punctuation.
    """
    signs = rf" ?[^\s\p{{L}}\p{{N}}]+{line_ends}"
    return rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}|{signs}|{_SPACES}"


def _gpt4o(digits: str, contraction: str) -> str:
    """Return the expression of GPT-4o (o200k_base): a word ends before a capital letter."""
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    before = r"[^\r\n\p{L}\p{N}]?"
    words = (
        rf"{before}{upper}*{lower}+{contraction}",
        rf"{before}{upper}+{lower}*{contraction}",
    )
    signs = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
    return "|".join((*words, digits, signs, _SPACES))


_DEEPSEEK_3: Final = (
    r"\p{N}{1,3}",
    r"[\x{4E00}-\x{9FA5}\x{3040}-\x{30FF}]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}",
)
_DEEPSEEK_CODER: Final = (
    r"[\r\n]",
    r"\s?\p{L}+",
    r"\s?\p{P}+",
    r"[\x{800}-\x{9FA5}\x{AC00}-\x{D7FF}]+",
    r"\p{N}",
)
_FALCON: Final = (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")
_DEFAULT: Final = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")

_LLAMA_3: Final = _gpt4(r"\p{N}{1,3}")
_QWEN_2: Final = _gpt4(r"\p{N}")

_NAMES: Final[Mapping[PreTokenizer, str]] = {
    PreTokenizer((_LLAMA_3,), ignore_merges=True, add_bos=True): (
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2"
    ),
    PreTokenizer((_LLAMA_3,)): "dbrx smaug-bpe glm4 chatglm-bpe",
    PreTokenizer((_QWEN_2,)): (
        "qwen2 deepseek-r1-qwen stablelm2 megrez kormo f2llmv2 hunyuan solar-open grok-2"
    ),
    PreTokenizer((_gpt4(r"\p{N}", line_ends=""),)): "seed-coder",
    PreTokenizer((r"\p{N}{1,3}", _gpt4(r"\p{N}+")), ignore_merges=True): "minicpm5",
    PreTokenizer((_gpt4o(r"\p{N}", ""),), ignore_merges=True, add_bos=True): "tekken",
    PreTokenizer((_gpt4o(r"\p{N}{1,3}", _CONTRACTION + "?"),)): "gpt-4o llama4 kanana2",
    PreTokenizer((_GPT2,)): (
        "gpt-2 phi-2 mpt olmo jais exaone4 gigachat a.x-4.0 mellum trillion granite-docling"
    ),
    PreTokenizer((r"\p{N}", _GPT2)): (
        "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2"
    ),
    PreTokenizer(_DEEPSEEK_3): "deepseek-v3 hunyuan-dense joyai-llm",
    PreTokenizer(_DEEPSEEK_CODER): "deepseek-coder",
    PreTokenizer(_FALCON): "falcon",
    PreTokenizer(_DEFAULT): "default",
}

PRE_TOKENIZERS: Final[Mapping[str, PreTokenizer]] = MappingProxyType(
    {name: pre for pre, names in _NAMES.items() for name in names.split()}
)
"""The pre-tokenizers by `tokenizer.ggml.pre`."""
