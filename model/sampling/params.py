"""Sampling parameters of a request, with llama-server's names, defaults and limits.

Knows no vocabulary: the Sampler checks the ids of `logit_bias`.
Tested by tests/model/test_sampling_params.py.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeVar

import numpy as np

from ...base.options import FLOAT_MAX, Options, Shortcut, option, real, refused, whole

# order and letters (`--sampler-seq`): common_sampler_type_to_chr in llama.cpp's common/sampling.cpp
_LETTERS: Final = {
    "e": "penalties",
    "d": "dry",
    "s": "top_n_sigma",
    "k": "top_k",
    "y": "typ_p",
    "p": "top_p",
    "m": "min_p",
    "x": "xtc",
    "t": "temperature",
}
DEFAULT_SAMPLERS: Final = tuple(_LETTERS.values())
# only if they are named
_MORE_LETTERS: Final = {"a": "adaptive_p", "i": "infill"}
_ALL_LETTERS: Final = _LETTERS | _MORE_LETTERS
SAMPLERS: Final = tuple(_ALL_LETTERS.values())
_ALIASES: Final = {name: name for name in SAMPLERS} | {
    "topk": "top_k",
    "topp": "top_p",
    "nucleus": "top_p",
    "minp": "min_p",
    "typ": "typ_p",
    "typical": "typ_p",
    "typical_p": "typ_p",
    "temp": "temperature",
}

DEFAULT_DRY_BASE: Final = 1.75
N_SAMPLERS_MAX: Final = 64  # each sampler takes time for every token
N_BIASES_MAX: Final = 65536  # also after their texts are tokenized
N_BREAKERS_MAX: Final = 128  # each breaker is searched in the whole vocabulary
DECAY_MAX: Final = 0.99  # of adaptive_p
_INT32_MAX: Final = 2**31 - 1

_Key = TypeVar("_Key")


def parse_samplers(text: str) -> tuple[str, ...]:
    """Return the names of a semicolon-separated list."""
    return tuple(text.split(";"))


def parse_bias(text: str) -> tuple[tuple[int, float], ...]:
    """Return the one pair of TOKEN+BIAS or TOKEN-BIAS."""
    match = re.fullmatch(r"(\d+)([+-](?:\d+\.?\d*|inf))", text)
    if match is None:
        raise ValueError(f"{text!r}: must be like 15043+1 or 15043-inf")
    return ((int(match[1]), float(match[2])),)


def token_of_key(key: _Key) -> _Key | int:
    """The token that a key of `logit_bias` names: an id, which JSON writes as a text, or a text."""
    if isinstance(key, str) and key.isascii() and key.isdigit():
        return int(key[:20])  # more digits are no token either
    return key


def number(default: float, *flags: str, help: str, low: float = -FLOAT_MAX) -> Any:
    """Declare a float32 of at least `low`. Others are refused (llama-server's set_hard_limits)."""
    return option(default, *flags, help=help, low=low, high=FLOAT_MAX)


def share(default: float, *flags: str, help: str) -> Any:
    """Declare a number in 0..1. Others are clamped (llama-server's set_limits)."""
    return option(default, *flags, help=help, low=0, high=1, clamp=True)


def count(default: int, *flags: str, help: str, clamp: bool = False) -> Any:
    """Declare an integer that is not negative."""
    return option(default, *flags, help=help, low=0, high=_INT32_MAX, clamp=clamp)


def _sampler(name: str) -> str:
    known = name.replace("-", "_")
    if known not in _ALIASES:
        raise refused("samplers", name, f"one of {', '.join(SAMPLERS)}")
    return _ALIASES[known]


def _dry_base(name: str, value: object) -> float:
    base = real(name, value)
    return base if base >= 1 else DEFAULT_DRY_BASE


def _biases(name: str, value: object) -> tuple[tuple[int, float], ...]:
    if not isinstance(value, list | tuple):
        raise refused(name, value, "pairs of a token and its bias")
    return tuple(_bias(name, pair) for pair in value)


def _bias(name: str, pair: object) -> tuple[int, float]:
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        raise refused(name, pair, "pairs of a token and its bias")
    token, bias = pair
    banned = bias is False or bias == -math.inf
    return whole(name, token), -math.inf if banned else real(name, bias)


def _breakers(name: str, value: object) -> tuple[str, ...]:
    breakers = _strings(name, value, N_BREAKERS_MAX)
    if "" in breakers:
        raise refused(name, "", "strings that are not empty")
    return breakers


def _samplers(name: str, value: object) -> tuple[str, ...]:
    return tuple(_sampler(text) for text in _strings(name, value, N_SAMPLERS_MAX))


def _strings(name: str, value: object, n_max: int) -> tuple[str, ...]:
    strings = tuple(value) if isinstance(value, list | tuple) else None
    if (
        strings is None
        or len(strings) > n_max
        or not all(isinstance(value, str) for value in strings)
    ):
        raise refused(name, value, f"a list of at most {n_max} strings")
    return strings


def samplers_from_chars(chars: str) -> tuple[str, ...]:
    """Return the samplers for the letters of `--sampler-seq` (or of a string as `samplers`).

    Raises RequestError for an unknown letter.
    """
    for char in chars:
        if char not in _ALL_LETTERS:
            letters = ", ".join(f"{c} ({name})" for c, name in _ALL_LETTERS.items())
            raise refused("samplers", char, f"the letters {letters}")
    return tuple(_ALL_LETTERS[char] for char in chars)


def parse_breaker(text: str) -> tuple[str, ...]:
    """Return the one text of `--dry-sequence-breaker`, with an escaped newline or tab replaced;
    nothing for `none`."""
    return () if text == "none" else (text.replace("\\n", "\n").replace("\\t", "\t"),)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams(Options):
    """The sampling fields of one request (llama.cpp: common_params_sampling, server-schema.cpp).

    Numbers outside of their limits are clamped or refused as in llama-server
    (tools/server/server-schema.cpp: set_limits clamps, set_hard_limits refuses). A `dry_base` below
    1 becomes the default.

    Raises:
        RequestError: a wrong type, a number that is not a finite float32, a value outside of hard
            limits, or an unknown sampler. Names the field, the value and the valid values.
    """

    title: ClassVar[str] = "sampling"
    description: ClassVar[str | None] = (
        "The model's file may recommend other defaults than those shown."
    )

    seed: int = option(
        -1, "-s", "--seed", help="seed of the random numbers; -1: a random seed"
    )  # modulo 2**32
    temperature: float = option(
        0.8,
        *("--temp", "--temperature"),
        low=0,
        high=FLOAT_MAX,
        clamp=True,
        help="randomness; 0: always the most likely token",
    )
    top_k: int = count(40, "--top-k", help="only the K most likely tokens; 0: all", clamp=True)
    top_p: float = share(
        0.95, "--top-p", help="only the most likely tokens up to this total probability; 1: all"
    )
    min_p: float = share(
        0.05, "--min-p", help="minimum probability relative to the most likely token; 0: all"
    )
    typical_p: float = number(
        1.0, "--typical", "--typical-p", help="locally typical sampling; 1: off"
    )
    top_n_sigma: float = number(
        -1.0,
        *("--top-nsigma", "--top-n-sigma"),
        help="only logits within N standard deviations of the largest; -1: off",
    )
    xtc_probability: float = share(
        0.0, "--xtc-probability", help="probability that XTC excludes top choices; 0: off"
    )
    xtc_threshold: float = share(
        0.1, "--xtc-threshold", help="minimum probability of a top choice of XTC; above 0.5: off"
    )
    dynatemp_range: float = number(
        0.0, "--dynatemp-range", help="range of dynamic temperature, by entropy; 0: off"
    )
    dynatemp_exponent: float = number(
        1.0, "--dynatemp-exp", help="exponent of entropy in dynamic temperature"
    )
    repeat_last_n: int = count(
        64, "--repeat-last-n", help="number of last tokens that penalties apply to; 0: off"
    )
    repeat_penalty: float = number(
        1.0,
        "--repeat-penalty",
        low=float(np.finfo(np.float32).tiny),  # 0 would make logits infinite
        help="penalty for repeated tokens; 1: off",
    )
    presence_penalty: float = number(
        0.0, "--presence-penalty", help="penalty for tokens that occurred before; 0: off"
    )
    frequency_penalty: float = number(
        0.0, "--frequency-penalty", help="penalty for each earlier occurrence of a token; 0: off"
    )
    dry_multiplier: float = number(
        0.0, "--dry-multiplier", help="strength of DRY, a penalty for repeated sequences; 0: off"
    )
    dry_base: float = option(
        DEFAULT_DRY_BASE,
        "--dry-base",
        check=_dry_base,
        help="growth of DRY's penalty with a sequence's length",
    )
    dry_allowed_length: int = count(
        2, "--dry-allowed-length", help="shortest repeated sequence that DRY penalizes"
    )
    dry_penalty_last_n: int = count(
        64, "--dry-penalty-last-n", help="number of last tokens that DRY searches; 0: off"
    )
    dry_sequence_breakers: tuple[str, ...] = option(
        ("\n", ":", '"', "*"),
        "--dry-sequence-breaker",
        parse=parse_breaker,
        check=_breakers,
        repeats=True,
        metavar="TEXT",
        help="a text that ends a repeated sequence, instead of the default ones; may be repeated; "
        "none: no text",
        default_text=r"\n : \" *",
    )
    mirostat: int = option(
        0,
        "--mirostat",
        low=0,
        high=2,
        help="version of Mirostat, which replaces all samplers but the temperature; 0: off",
    )
    mirostat_eta: float = number(0.1, "--mirostat-lr", help="learning rate of Mirostat")
    mirostat_tau: float = number(
        5.0, "--mirostat-ent", help="surprise of a token, in bits, that Mirostat aims at"
    )
    adaptive_target: float = number(
        -1.0,
        "--adaptive-target",
        help="probability that adaptive_p prefers, if --samplers names it; below 0: off",
    )
    adaptive_decay: float = option(
        0.9,
        "--adaptive-decay",
        low=0,
        high=DECAY_MAX,
        clamp=True,
        help="weight of earlier tokens in adaptive_p",
    )
    min_keep: int = count(0, help="minimum number of candidates after top_p, min_p, typ_p and xtc")
    logit_bias: tuple[tuple[int, float], ...] = option(
        (),
        *("-l", "--logit-bias"),
        parse=parse_bias,
        check=_biases,
        repeats=True,
        metavar="ID+BIAS",
        help="add to a token's logit, like 15043+1; 15043-inf bans the token",
        default_text="",
    )  # -inf (or False) bans a token
    samplers: tuple[str, ...] = option(
        DEFAULT_SAMPLERS,
        "--samplers",
        parse=parse_samplers,
        check=_samplers,
        metavar="A;B",
        help="samplers, in order",
        default_text=";".join(DEFAULT_SAMPLERS),
        shortcuts=(
            Shortcut(
                ("--sampler-seq", "--sampling-seq"),
                None,
                "samplers as letters, like kpmt",
                parse=samplers_from_chars,
                metavar="LETTERS",
            ),
        ),
    )

    @property
    def penalizes(self) -> bool:
        """True if a penalty has an effect on tokens of its window."""
        return self.repeat_penalty != 1 or self.frequency_penalty != 0 or self.presence_penalty != 0
