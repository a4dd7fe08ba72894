"""Pre-tokenizers: split a text into words, which a BPE vocabulary then merges separately.

A pre-tokenizer has a name, `tokenizer.ggml.pre`, and regular expressions that are applied one after
the other. Each match is a word, and so is each text between matches. The names and flags are those
of llama.cpp (src/llama-vocab.cpp, `load` and `llm_tokenizer_bpe`). The expressions are those of the
models' tokenizer.json. llama.cpp's words differ for

- code points that are new in Unicode 16,
- capital letters within words (tekken, gpt-4o, granite-embed-multi-97m, kimi-k2, tiny_aya, youtu),
- spaces outside of ASCII (deepseek-llm, deepseek-coder), and digits outside of ASCII (superbpe),
- signs or spaces before numbers (afmoe).

Tests: tests/model/test_vocab_words.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """A pre-tokenizer and its related flags.

    llama.cpp's `clean_spaces` is missing: it removes spaces from detokenized text.

    Attributes:
        patterns: regular expressions in Oniguruma's syntax, see regex/syntax.py.
        ignore_merges: a word that is a token becomes this token without merges.
        add_bos: default of `add_bos_token`.
        add_sep: default of `add_sep_token`.
        byte_encode: tokens consist of characters that stand for bytes; False: of plain characters.
        escape_spaces: a space is U+2581 in tokens.
        skip_unknown: characters without tokens, such as spaces, are skipped.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False
    add_sep: bool = False
    byte_encode: bool = True
    escape_spaces: bool = False
    skip_unknown: bool = False


_GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# tokenizer.json's (?i:...), without the long s (U+017F), which llama.cpp does not match either
_CONTRACTION: Final = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_SPACES: Final = r"\s*[\r\n]+|\s+(?!\S)|\s+"


def _gpt4(
    digits: str,
    line_ends: str = r"[\r\n]*",
    *,
    contraction: str = _CONTRACTION + "|",
    letters: str = r"\p{L}+",
    signs: str = r"[^\s\p{L}\p{N}]+",
    spaces: str = _SPACES,
) -> str:
    """Return the expression of GPT-4 (cl100k_base), which most later models use with variations.

    `digits` matches a number, `line_ends` the newlines that belong to preceding punctuation,
    `letters` those of a word, `signs` punctuation, and `spaces` all others.
    """
    words = rf"{contraction}[^\r\n\p{{L}}\p{{N}}]?{letters}"
    return rf"{words}|{digits}| ?{signs}{line_ends}|{spaces}"


def _gpt4o(
    digits: str, contraction: str, line_ends: str = r"[\r\n/]*", *, scripts: str = ""
) -> str:
    """Return the expression of GPT-4o (o200k_base): a word ends before a capital letter.

    `scripts` limits the letters of words.
    """
    upper = rf"[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}{scripts}]"
    lower = rf"[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}{scripts}]"
    before = r"[^\r\n\p{L}\p{N}]?"
    words = (
        rf"{before}{upper}*{lower}+{contraction}",
        rf"{before}{upper}+{lower}*{contraction}",
    )
    signs = rf" ?[^\s\p{{L}}\p{{N}}]+{line_ends}"
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
    r"[[\p{Lu}\p{Ll}\p{Lt}]&&[^\x{560}-\x{588}\x{10C7}-\x{10FF}\x{1C80}-\x{1C8A}\x{2D00}-\x{2D2D}"
    r"\x{A790}-\x{A7FA}\x{AB30}-\x{AB68}\x{10570}-\x{105BC}\x{10D50}-\x{10D85}\x{16E40}-\x{1DFFF}]]+"
)
_DEEPSEEK_LLM: Final = (
    r"[\r\n]",
    rf"\s?{_CASED}",
    r"\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+",
    r"\s+\z",
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
_THOUSANDS: Final = r"\d{1,3}(?=(?:\d{3})*(?!\w))"
_SUPER_THOUSANDS: Final = r"\p{N}+?(?=(?:\d{3})+(?!\d))"
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
_CHAMELEON: Final = (
    "<sentinel:[0-9]+>",
    "IMGIMG[A-I]{1,4}Z",  # a token of an image
    r"[\t\n]|    |  ",
    r"\p{N}",
    r"[\p{P}!-/:-@\[-`{-~]",
    _GPT2,
)
# Korean, full-width punctuation, Bopomofo, Chinese and Japanese
_YOUTU: Final = (
    r"[\x{AC00}-\x{D7A3}\x{3131}-\x{318E}]+"
    r"|[\x{FF01}\x{2026}\x{201C}\x{201D}\x{2018}\x{2019}\x{2014}\x{FF1A}\x{FF1B}\x{FF0C}"
    r"\x{3001}-\x{303F}\x{FE30}-\x{FE4F}]+"
    rf"|[\x{{3105}}-\x{{312F}}]+|{_CJK}"
)
_PHRASE: Final = r"(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+"

_LINES: Final = r"[^\n]+|\n+"

_LLAMA_3: Final = _gpt4(r"\p{N}{1,3}")
_QWEN_2: Final = _gpt4(r"\p{N}")
_QWEN_3_5: Final = _gpt4(r"\p{N}", letters=r"[\p{L}\p{M}]+", signs=r"[^\s\p{L}\p{M}\p{N}]+")
_GPT_4O: Final = _gpt4o(r"\p{N}{1,3}", _CONTRACTION + "?")
_KIMI_K2: Final = r"\p{Han}+|" + _gpt4o(
    r"\p{N}{1,3}", _CONTRACTION + "?", r"[\r\n]*", scripts=r"&&[^\p{Han}]"
)

# Each pre-tokenizer with its names, and for each name the model on huggingface.co whose rules they
# are; "" if llama.cpp (conversion/base.py) states none.
_NAMES: Final[Mapping[PreTokenizer, Mapping[str, str]]] = {
    PreTokenizer((_LLAMA_3,), ignore_merges=True, add_bos=True): {
        "llama-bpe": "meta-llama/Meta-Llama-3-8B",
        "llama3": "",
        "llama-v3": "",
        "falcon3": "tiiuae/Falcon3-7B-Base",
        "falcon-h1": "tiiuae/Falcon-H1-0.5B-Base",
        "pixtral": "mistral-community/pixtral-12b",
        "midm-2.0": "K-intelligence/Midm-2.0-Base-Instruct",
        "lfm2": "LiquidAI/LFM2.5-8B-A1B",
        "jina-v5-nano": "jinaai/jina-embeddings-v5-text-nano",
    },
    PreTokenizer((_LLAMA_3,)): {
        "dbrx": "databricks/dbrx-base",
        "smaug-bpe": "abacusai/Smaug-Llama-3-70B-Instruct",
        "chatglm-bpe": "THUDM/glm-4-9b-chat",
    },
    PreTokenizer((_LLAMA_3,), ignore_merges=True): {
        "glm4": "THUDM/glm-4-9b-hf",
        "glm5": "",
    },
    PreTokenizer((_gpt4(r"\p{N}{1,3}", spaces=_POWERS),)): {
        "jais-2": "inceptionai/Jais-2-8B-Chat",
    },
    PreTokenizer((_QWEN_2,)): {
        "qwen2": "Qwen/Qwen1.5-7B",
        "deepseek-r1-qwen": "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B",
        "stablelm2": "stabilityai/stablelm-2-zephyr-1_6b",
        "megrez": "Infinigence/Megrez-3B-Instruct",
        "kormo": "KORMo-Team/KORMo-tokenizer",
        "f2llmv2": "codefuse-ai/F2LLM-v2-4B",
        "hunyuan": "tencent/Hunyuan-A13B-Instruct",
        "solar-open": "upstage/Solar-Open-100B",
        "grok-2": "alvarobartt/grok-2-tokenizer",
    },
    PreTokenizer((_QWEN_3_5,)): {
        "qwen35": "Qwen/Qwen3.5-9B-Instruct",
    },
    PreTokenizer((_gpt4(r"\p{N}", contraction=""),)): {
        "ufakzeka": "ufakai/ufakzeka-1",
    },
    PreTokenizer((_LINES, _QWEN_2)): {
        "laguna": "poolside/Laguna-XS.2",
    },
    PreTokenizer((_gpt4(r"\p{N}", line_ends=""),)): {
        "seed-coder": "ByteDance-Seed/Seed-Coder-8B-Base",
    },
    PreTokenizer((_gpt4(r"\p{N}", spaces=_LINE_ENDS),)): {
        "bailingmoe": "inclusionAI/Ling-lite",
        "bailingmoe2": "inclusionAI/Ling-mini-base-2.0",
        "llada-moe": "inclusionAI/LLaDA-MoE-7B-A1B-Base",
    },
    PreTokenizer((_gpt4(r"\p{N}", r"[\r\n/]?", letters=_PHRASE, spaces=_LINE_ENDS),)): {
        "exaone-moe": "LGAI-EXAONE/K-EXAONE-236B-A23B",
    },
    PreTokenizer((r"\p{N}{1,3}", _gpt4(r"\p{N}+")), ignore_merges=True): {
        "minicpm5": "openbmb/MiniCPM5-1B",
    },
    PreTokenizer((_gpt4o(r"\p{N}", ""),), ignore_merges=True, add_bos=True): {
        "tekken": "mistralai/Mistral-Nemo-Base-2407",
    },
    PreTokenizer((_GPT_4O,)): {
        "gpt-4o": "Xenova/gpt-4o",
        "llama4": "meta-llama/Llama-4-Scout-17B-16E-Instruct",
        "kanana2": "kakaocorp/kanana-2-30b-a3b-instruct-2601",
        "minimax-m2": "MiniMaxAI/MiniMax-M2",
        "talkie": "lewtun/talkie-1930-13b-it-hf",
    },
    PreTokenizer((_GPT_4O,), ignore_merges=True): {
        "granite-embed-multi-97m": "ibm-granite/granite-embedding-97m-multilingual-r2",
    },
    PreTokenizer((_THOUSANDS, _GPT_4O)): {
        "tiny_aya": "CohereLabs/tiny-aya-base",
        "cohere2moe": "CohereLabs/North-Mini-Code-1.0",
    },
    PreTokenizer((_YOUTU, _gpt4o(r"\p{N}", _CONTRACTION + "?")), ignore_merges=True): {
        "youtu": "tencent/Youtu-LLM-2B",
    },
    PreTokenizer((_KIMI_K2,)): {
        "kimi-k2": "moonshotai/Kimi-K2-Base",
    },
    PreTokenizer((_GPT2,)): {
        "gpt-2": "openai-community/gpt2",
        "phi-2": "microsoft/phi-2",
        "mpt": "mosaicml/mpt-7b",
        "olmo": "allenai/OLMo-1.7-7B-hf",
        "jais": "core42/jais-13b",
        "exaone4": "LGAI-EXAONE/EXAONE-4.0-32B",
        "gigachat": "ai-sage/GigaChat-20B-A3B-instruct",
        "a.x-4.0": "skt/A.X-4.0",
        "mellum": "JetBrains/Mellum-4b-base",
        "trillion": "trillionlabs/Trillion-7B-preview",
        "granite-docling": "ibm-granite/granite-docling-258M",
        "modern-bert": "answerdotai/ModernBERT-base",
        "jina-v2-es": "jinaai/jina-embeddings-v2-base-es",
        "jina-v2-de": "jinaai/jina-embeddings-v2-base-de",
        "jina-es": "",
        "jina-de": "",
    },
    PreTokenizer((_GPT2,), add_sep=True): {
        "roberta-bpe": "sentence-transformers/stsb-roberta-base",
        "jina-v1-en": "jinaai/jina-reranker-v1-tiny-en",
        "jina-v2-code": "jinaai/jina-embeddings-v2-base-code",
    },
    PreTokenizer((r"\p{N}", _GPT2)): {
        "smollm": "HuggingFaceTB/SmolLM-135M",
        "starcoder": "bigcode/starcoder2-3b",
        "refact": "smallcloudai/Refact-1_6-base",
        "command-r": "CohereForAI/c4ai-command-r-v01",
        "codeshell": "WisdomShell/CodeShell-7B",
        "exaone": "LGAI-EXAONE/EXAONE-3.0-7.8B-Instruct",
        "minerva-7b": "sapienzanlp/Minerva-7B-base-v1.0",
        "mellum2": "JetBrains/Mellum2-12B-A2.5B-Base",
    },
    PreTokenizer(_CHAMELEON, add_bos=True): {
        "chameleon": "facebook/chameleon-7b",
    },
    PreTokenizer((r"\p{N}+", _SUPER_THOUSANDS)): {
        "superbpe": "UW/OLMo2-8B-SuperBPE-t180k",
    },
    PreTokenizer((_BLOOM,)): {
        "bloom": "bigscience/bloom",
        "gpt3-finnish": "TurkuNLP/gpt3-finnish-small",
        "poro-chat": "LumiOpen/Poro-34B-chat",
    },
    PreTokenizer((_BLOOM, r"\p{N}")): {
        "viking": "LumiOpen/Viking-7B",
    },
    PreTokenizer((r"\p{N}{1,3}", _CJK, _deepseek_3(rf"[\r\n]*|{_SPACES}"))): {
        "deepseek-v3": "deepseek-ai/DeepSeek-V3",
        "hunyuan-dense": "tencent/Hunyuan-4B-Instruct",
        "joyai-llm": "jdopensource/JoyAI-LLM-Flash",
        "hy_v4": "tencent/Hy4-preview",
    },
    PreTokenizer((_ALL_THOUSANDS, _UNSPACED, _deepseek_3(rf"[\r\n]*|{_SPACES}"))): {
        "afmoe": "arcee-ai/Trinity-Tokenizer",
    },
    PreTokenizer((r"\p{N}{1,3}", _CJK, _deepseek_3(r"|[\r\n]|\s+(?!\S)|\s+"), r"\p{N}")): {
        "spark2_5": "XHToken/Spark-X2.5-1.7B",
    },
    PreTokenizer(_DEEPSEEK_LLM): {
        "deepseek-llm": "deepseek-ai/deepseek-llm-7b-base",
    },
    PreTokenizer(_DEEPSEEK_CODER): {
        "deepseek-coder": "deepseek-ai/deepseek-coder-6.7b-base",
    },
    PreTokenizer(_FALCON): {
        "falcon": "tiiuae/falcon-7b",
    },
    PreTokenizer(_DEFAULT): {
        "default": "",
    },
    PreTokenizer((_LINES,), add_bos=True, byte_encode=False, escape_spaces=True): {
        "gemma4": "danish-foundation-models/DFM-Mimir",
        "granite-embed-multi-311m": "ibm-granite/granite-embedding-311m-multilingual-r2",
    },
    PreTokenizer((_LINES,), byte_encode=False, escape_spaces=True): {
        "sarvam-moe": "sarvamai/sarvam-30b",
    },
    PreTokenizer((r"\S+",), byte_encode=False, skip_unknown=True): {
        "whitespace": "jinaai/jina-embeddings-v2-base-zh",
    },
}

PRE_TOKENIZERS: Final[Mapping[str, PreTokenizer]] = MappingProxyType(
    {name: pre for pre, names in _NAMES.items() for name in names}
)
"""The pre-tokenizers by `tokenizer.ggml.pre`."""
