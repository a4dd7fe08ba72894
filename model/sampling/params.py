"""What a request may ask of sampling: names, defaults and limits of llama-server, checked.

Knows no vocabulary: that the ids of `logit_bias` exist is checked by the Sampler.
Tested by tests/model/test_sampling_params.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from reprlib import repr as shortened
from typing import Final, NamedTuple, TypeVar

import numpy as np

from ...base.errors import RequestError

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
_ALIASES: Final = {name: name for name in DEFAULT_SAMPLERS} | {
    "topk": "top_k",
    "topp": "top_p",
    "nucleus": "top_p",
    "minp": "min_p",
    "typ": "typ_p",
    "typical": "typ_p",
    "typical_p": "typ_p",
    "temp": "temperature",
}
_ABSENT_LETTERS: Final = {"a": "adaptive_p", "i": "infill"}
_ABSENT: Final = frozenset({*_ABSENT_LETTERS.values(), "mirostat"})

DEFAULT_DRY_BASE: Final = 1.75
N_SAMPLERS_MAX: Final = 64  # each costs time at every token
N_BREAKERS_MAX: Final = 128  # each is looked up in the whole vocabulary
_INT32_MAX: Final = 2**31 - 1
_FLOAT_MAX: Final = float(np.finfo(np.float32).max)

N = TypeVar("N", int, float)


class Limits(NamedTuple):
    """The least and the largest value; `clamp`: others are moved there instead of refused."""

    low: float = -_FLOAT_MAX
    high: float = _FLOAT_MAX
    clamp: bool = False


# tools/server/server-schema.cpp: set_limits clamps, set_hard_limits refuses
_COUNT: Final = Limits(0, _INT32_MAX)
_SHARE: Final = Limits(0, 1, clamp=True)
_INTEGERS: Final = {
    "seed": Limits(-math.inf, math.inf),
    "top_k": _COUNT._replace(clamp=True),
    "repeat_last_n": _COUNT,
    "dry_allowed_length": _COUNT,
    "dry_penalty_last_n": _COUNT,
    "min_keep": _COUNT,
}
_NUMBERS: Final = {
    "temperature": Limits(low=0, clamp=True),
    "dynatemp_range": Limits(),
    "dynatemp_exponent": Limits(),
    "top_p": _SHARE,
    "min_p": _SHARE,
    "typical_p": Limits(),
    "top_n_sigma": Limits(),
    "xtc_probability": _SHARE,
    "xtc_threshold": _SHARE,
    "repeat_penalty": Limits(low=float(np.finfo(np.float32).tiny)),  # 0 would make logits infinite
    "presence_penalty": Limits(),
    "frequency_penalty": Limits(),
    "dry_multiplier": Limits(),
    "dry_base": Limits(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """The sampling fields of one request (llama.cpp: common_params_sampling, server-schema.cpp).

    Raises RequestError, naming field, value and what is allowed, for a wrong type, a number that
    no finite 32-bit float holds, a value outside hard limits or an unknown sampler. `top_k`,
    `top_p`, `min_p`, `temperature` and XTC's two are clamped instead, and a `dry_base` below 1
    becomes the default, as in llama-server.
    """

    seed: int = -1  # modulo 2**32; -1 (2**32 - 1): random
    temperature: float = 0.8  # 0: greedy
    dynatemp_range: float = 0.0  # above 0: temperature -+ range, by the entropy
    dynatemp_exponent: float = 1.0
    top_k: int = 40  # 0: off
    top_p: float = 0.95  # 1: off
    min_p: float = 0.05  # 0: off
    typical_p: float = 1.0  # 1: off
    top_n_sigma: float = -1.0  # up to 0: off
    xtc_probability: float = 0.0  # 0: off
    xtc_threshold: float = 0.1  # above 0.5: off
    repeat_last_n: int = 64  # tokens that the three penalties look back; 0: off
    repeat_penalty: float = 1.0  # 1: off
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    dry_multiplier: float = 0.0  # 0: off
    dry_base: float = DEFAULT_DRY_BASE
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = 64
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    min_keep: int = 0  # candidates that top_p, min_p, typ_p and xtc must leave
    logit_bias: tuple[tuple[int, float], ...] = ()  # -inf (or False) bans a token
    samplers: tuple[str, ...] = DEFAULT_SAMPLERS

    def __post_init__(self) -> None:
        for name, limits in _INTEGERS.items():
            self._set(name, _limited(name, _integer(name, getattr(self, name)), limits))
        for name, limits in _NUMBERS.items():
            self._set(name, _limited(name, _number(name, getattr(self, name)), limits))
        if self.dry_base < 1:
            self._set("dry_base", DEFAULT_DRY_BASE)
        self._set("dry_sequence_breakers", _breakers(self.dry_sequence_breakers))
        self._set("logit_bias", _biases(self.logit_bias))
        names = _strings("samplers", self.samplers, N_SAMPLERS_MAX)
        self._set("samplers", tuple(_sampler(name) for name in names))

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)


def samplers_from_chars(chars: str) -> tuple[str, ...]:
    """The samplers that `--sampler-seq` (or a string as `samplers`) names by letters.

    Raises RequestError for a letter that stands for no sampler.
    """
    for char in chars:
        if char in _ABSENT_LETTERS:
            raise _absent(_ABSENT_LETTERS[char])
        if char not in _LETTERS:
            letters = ", ".join(f"{c} ({name})" for c, name in _LETTERS.items())
            raise _refused("samplers", char, f"the letters {letters}")
    return tuple(_LETTERS[char] for char in chars)


def _sampler(name: str) -> str:
    known = name.replace("-", "_")
    if known in _ABSENT:
        raise _absent(name)
    if known not in _ALIASES:
        raise _refused("samplers", name, ", ".join(DEFAULT_SAMPLERS))
    return _ALIASES[known]


def _integer(name: str, value: object) -> int:
    if isinstance(value, float) and value.is_integer():
        return int(value)  # JSON has one kind of number: 40.0 is 40
    if isinstance(value, bool) or not isinstance(value, int):
        raise _refused(name, value, "an integer")
    return value


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _refused(name, value, "a number")
    if not -_FLOAT_MAX <= value <= _FLOAT_MAX:  # NaN, too
        raise _refused(name, value, "a finite 32-bit number")
    return float(value)


def _limited(name: str, value: N, limits: Limits) -> N:
    if limits.low <= value <= limits.high:
        return value
    if not limits.clamp:
        raise _refused(name, value, f"{limits.low:.10g} to {limits.high:.10g}")
    return type(value)(limits.low if value < limits.low else limits.high)


def _biases(value: object) -> tuple[tuple[int, float], ...]:
    if not isinstance(value, list | tuple):
        raise _refused("logit_bias", value, "pairs of a token and its bias")
    return tuple(_bias(pair) for pair in value)


def _bias(pair: object) -> tuple[int, float]:
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        raise _refused("logit_bias", pair, "pairs of a token and its bias")
    token, bias = pair
    if bias is False or bias == -math.inf:
        return _integer("logit_bias", token), -math.inf
    return _integer("logit_bias", token), _number("logit_bias", bias)


def _breakers(value: object) -> tuple[str, ...]:
    breakers = _strings("dry_sequence_breakers", value, N_BREAKERS_MAX)
    if "" in breakers:
        raise _refused("dry_sequence_breakers", "", "strings that are not empty")
    return breakers


def _strings(name: str, value: object, n_max: int) -> tuple[str, ...]:
    strings = tuple(value) if isinstance(value, list | tuple) else None
    if strings is None or not _all_strings(strings) or len(strings) > n_max:
        raise _refused(name, value, f"a list of at most {n_max} strings")
    return strings


def _all_strings(values: Iterable[object]) -> bool:
    return all(isinstance(value, str) for value in values)


def _refused(name: str, value: object, allowed: str) -> RequestError:
    return RequestError(f"{name} is {shortened(value)}, allowed: {allowed}")


def _absent(name: str) -> RequestError:
    have = ", ".join(DEFAULT_SAMPLERS)
    return RequestError(f"samplers: {name} is a sampler that Lamella does not have; it has {have}")
