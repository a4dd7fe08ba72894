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
        byte_encode: tokens consist of bytes; False: of characters, with U+2581 for a space.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False
    byte_encode: bool = True


_GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# tokenizer.json's (?i:...), without the long s (U+017F), which llama.cpp does not match either
_CONTRACTION: Final = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_SPACES: Final = r"\s*[\r\n]+|\s+(?!\S)|\s+"


def _gpt4(
    digits: str,
    line_ends: str = r"[\r\n]*",
    *,
    letters: str = r"\p{L}+",
    spaces: str = _SPACES,
) -> str:
    """Return the expression of GPT-4 (cl100k_base), which most later models use with variations.

    `digits` matches a number, `line_ends` the newlines that belong to preceding punctuation,
    `letters` those of a word, and `spaces` all others.
    """
    signs = rf" ?[^\s\p{{L}}\p{{N}}]+{line_ends}"
    return rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?{letters}|{digits}|{signs}|{spaces}"


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


_CJK: Final = r"[\x{4E00}-\x{9FA5}\x{3040}-\x{30FF}]+"


def _deepseek_3(spaces: str) -> str:
    """Return DeepSeek 3's expression for all but numbers and Chinese and Japanese text."""
    return (
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
        r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
        rf"| ?[\p{{P}}\p{{S}}]+{spaces}"
    )


# cased letters of Unicode 9
_CASED: Final = (
    r"[[\p{Lu}\p{Ll}\p{Lt}]&&[^\x{560}-\x{588}\x{10C7}-\x{10FF}\x{1C80}-\x{1C88}\x{2D00}-\x{2D2D}"
    r"\x{A790}-\x{A7FA}\x{AB30}-\x{AB68}\x{10570}-\x{105BC}\x{16E40}-\x{1DFFF}]]+"
)
_DEEPSEEK_LLM: Final = (
    r"[\r\n]",
    rf"\s?{_CASED}",
    r"\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+",
    r"\s+$",
    r"[\x{800}-\x{9FA5}\x{AC00}-\x{D7FF}]+",
    r"\p{N}+",
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

# groups of three digits from the right, as in 1,234,567
_THOUSANDS: Final = r"\d{1,3}(?=(?:\d{3})*\b)"
_ALL_THOUSANDS: Final = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"
# scripts that are written without spaces between words
_UNSPACED: Final = (
    r"[\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{F900}-\x{FAFF}\x{3040}-\x{30FF}\x{FF65}-\x{FF9F}"
    r"\x{2F00}-\x{2FDF}\x{0E40}-\x{0E7F}\x{0E80}-\x{0EFF}\x{1780}-\x{17FF}\x{1000}-\x{109F}"
    r"\x{AA60}-\x{AA7F}\x{A9E0}-\x{A9FF}\x{AC00}-\x{D7AF}\x{1100}-\x{11FF}]+"
)
_BLOOM: Final = r" ?[^(\s|.,!?\x{2026}\x{3002}\x{FF0C}\x{3001}\x{964}\x{6D4}\x{60C})]+"
# runs of spaces are cut into powers of two
_POWERS: Final = "|".join(
    (r"\s*[\r\n]+", *(rf"\s{{{1 << n}}}(?!\S)" for n in range(9, 1, -1)), r"\s{1,2}(?!\S)", r"\s")
)
_LINE_ENDS: Final = r"\s*[\r\n]|\s+(?!\S)|\s+"  # each newline is a word
_PHRASE: Final = r"(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+"

_LLAMA_3: Final = _gpt4(r"\p{N}{1,3}")
_QWEN_2: Final = _gpt4(r"\p{N}")
_GPT_4O: Final = _gpt4o(r"\p{N}{1,3}", _CONTRACTION + "?")

_NAMES: Final[Mapping[PreTokenizer, str]] = {
    PreTokenizer((_LLAMA_3,), ignore_merges=True, add_bos=True): (
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2"
    ),
    PreTokenizer((_LLAMA_3,)): "dbrx smaug-bpe chatglm-bpe",
    PreTokenizer((_LLAMA_3,), ignore_merges=True): "glm4 glm5",
    PreTokenizer((_gpt4(r"\p{N}{1,3}", spaces=_POWERS),)): "jais-2",
    PreTokenizer((_QWEN_2,)): (
        "qwen2 deepseek-r1-qwen stablelm2 megrez kormo f2llmv2 hunyuan solar-open grok-2"
    ),
    PreTokenizer((r"[^\n]+|\n+", _QWEN_2)): "laguna",
    PreTokenizer((_gpt4(r"\p{N}", line_ends=""),)): "seed-coder",
    PreTokenizer((_gpt4(r"\p{N}", spaces=_LINE_ENDS),)): "bailingmoe bailingmoe2",
    PreTokenizer((_gpt4(r"\p{N}", r"[\r\n/]?", letters=_PHRASE, spaces=_LINE_ENDS),)): "exaone-moe",
    PreTokenizer((r"\p{N}{1,3}", _gpt4(r"\p{N}+")), ignore_merges=True): "minicpm5",
    PreTokenizer((_gpt4o(r"\p{N}", ""),), ignore_merges=True, add_bos=True): "tekken",
    PreTokenizer((_GPT_4O,)): "gpt-4o llama4 kanana2 minimax-m2 talkie",
    PreTokenizer((_THOUSANDS, _GPT_4O)): "tiny_aya cohere2moe",
    PreTokenizer((_GPT2,)): (
        "gpt-2 phi-2 mpt olmo jais exaone4 gigachat a.x-4.0 mellum trillion granite-docling"
    ),
    PreTokenizer((r"\p{N}", _GPT2)): (
        "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2"
    ),
    PreTokenizer((_BLOOM,)): "bloom gpt3-finnish poro-chat",
    PreTokenizer((_BLOOM, r"\p{N}")): "viking",
    PreTokenizer((r"\p{N}{1,3}", _CJK, _deepseek_3(rf"[\r\n]*|{_SPACES}"))): (
        "deepseek-v3 hunyuan-dense joyai-llm hy_v4"
    ),
    PreTokenizer((_ALL_THOUSANDS, _UNSPACED, _deepseek_3(rf"[\r\n]*|{_SPACES}"))): "afmoe",
    PreTokenizer((r"\p{N}{1,3}", _CJK, _deepseek_3(r"|[\r\n]|\s+(?!\S)|\s+"), r"\p{N}")): (
        "spark2_5"
    ),
    PreTokenizer(_DEEPSEEK_LLM): "deepseek-llm",
    PreTokenizer(_DEEPSEEK_CODER): "deepseek-coder",
    PreTokenizer(_FALCON): "falcon",
    PreTokenizer(_DEFAULT): "default",
    PreTokenizer((), add_bos=True, byte_encode=False): "gemma4",
    PreTokenizer((), byte_encode=False): "sarvam-moe",
}

PRE_TOKENIZERS: Final[Mapping[str, PreTokenizer]] = MappingProxyType(
    {name: pre for pre, names in _NAMES.items() for name in names.split()}
)
"""The pre-tokenizers by `tokenizer.ggml.pre`."""
