"""The options of speculation, with llama-server's flags.

Knows no sources. Tested by tests/runtime/test_draft_params.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Final

from ..base.errors import RequestError
from ..base.options import Options, Shortcut, option, parse_number, refused

N_GUESSES_MAX: Final = 63  # a step of 64 tokens
N_GRAM_MAX: Final = 32


class SpecType(StrEnum):
    """Where guesses come from."""

    NONE = "none"
    AUTO = "auto"  # a draft model or a block, if there is one, else n-grams
    NGRAM_SIMPLE = "ngram-simple"
    NGRAM_MOD = "ngram-mod"
    DRAFT_SIMPLE = "draft-simple"
    DRAFT_MTP = "draft-mtp"


_SYNONYMS: Final = {"ngram-map-k": SpecType.NGRAM_SIMPLE}
_REFUSED: Final = {
    "draft-eagle3": "a head trained for it; use -md with a small model of the same vocabulary",
    "draft-dflash": "a head trained for it; use -md with a small model of the same vocabulary",
    "draft-dspark": "a head trained for it; use -md with a small model of the same vocabulary",
    "ngram-map-k4v": "use ngram-simple",
    "ngram-cache": "use ngram-mod, whose table needs no file",
}


def parse_types(text: str) -> tuple[SpecType, ...]:
    """Return the types of a comma-separated list. Raises ValueError: lists the names."""
    found = tuple(dict.fromkeys(_spec_type(name.strip()) for name in text.split(",")))
    if SpecType.NONE in found and len(found) > 1:
        raise ValueError(f"{text!r}: none cannot be combined with other types")
    return found


def _check_types(name: str, value: object) -> tuple[SpecType, ...]:
    if isinstance(value, list | tuple) and all(isinstance(one, str) for one in value):
        value = ",".join(value)
    if not isinstance(value, str):
        raise refused(name, value, "a name or several, separated by commas")
    try:
        return parse_types(value)
    except ValueError as e:
        raise RequestError(f"{name}: {e}") from None


def _spec_type(name: str) -> SpecType:
    if name in _REFUSED:
        raise ValueError(f"{name} is not supported: {_REFUSED[name]}")
    if name not in _SYNONYMS and name not in list(SpecType):
        raise ValueError(f"{name!r} is not one of {', '.join(SpecType)}")
    return _SYNONYMS.get(name) or SpecType(name)


def _check_rates(name: str, value: object) -> tuple[float, ...]:
    """Return probabilities. Raises RequestError: one is not 0 to 1, or there are too many."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise refused(name, value, "a list of probabilities")
    for rate in value:
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate <= 1:
            raise refused(name, rate, "0 to 1")
    if len(value) > N_GUESSES_MAX:
        raise refused(name, len(value), f"at most {N_GUESSES_MAX} rates")
    return tuple(map(float, value))


def parse_rates(text: str) -> tuple[float, ...]:
    """Return the numbers of a comma-separated list."""
    try:
        return tuple(parse_number(float, part.strip()) for part in text.split(","))
    except ValueError:
        raise ValueError(f"{text!r}: must be numbers like 0.9,0.8") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeParams(Options):
    """Guesses of tokens that one step checks. They never change a text."""

    title: ClassVar[str] = "speculation"

    spec_type: tuple[SpecType, ...] = option(
        (SpecType.AUTO,),
        "--spec-type",
        metavar="TYPE,...",
        parse=parse_types,
        check=_check_types,
        help="where guesses of the next tokens come from: ngram-simple: the text itself; "
        "ngram-mod: also other texts of the same client; draft-simple: the model of -md; "
        "draft-mtp: a block of the model's own file, see --mtp; none; "
        "auto: draft-simple or draft-mtp if they are loaded, and ngram-simple",
        default_text="auto",
    )
    spec_n_max: int = option(
        7,
        *("--spec-draft-n-max", "--draft-max", "--draft", "--draft-n"),
        low=0,
        high=N_GUESSES_MAX,
        help="most tokens to guess for a step; fewer where that is measured to be faster",
    )
    spec_n_min: int = option(
        0,
        *("--spec-draft-n-min", "--draft-min", "--draft-n-min"),
        low=0,
        high=N_GUESSES_MAX,
        help="fewer guesses than this are not checked",
    )
    spec_p_min: float = option(
        0.0,
        *("--spec-draft-p-min", "--draft-p-min"),
        metavar="P",
        low=0,
        high=1,
        help="a draft model stops at a token of less probability",
    )
    spec_ngram_size: int = option(
        3,
        "--spec-ngram-simple-size-n",
        low=1,
        high=N_GRAM_MAX,
        help="tokens that must occur again for a guess of ngram-simple",
        shortcuts=(
            Shortcut(
                ("--spec-ngram-size-n", "--spec-ngram-map-k-size-n"),
                None,
                "as --spec-ngram-simple-size-n",
                lambda text: parse_number(int, text),
            ),
        ),
    )
    spec_ngram_match: int = option(
        8,
        "--spec-ngram-mod-n-match",
        low=1,
        high=N_GRAM_MAX,
        help="tokens that must occur again for a guess of ngram-mod",
    )
    spec_synth_rates: tuple[float, ...] = option(
        (),
        "--spec-synth-rates",
        metavar="P,...",
        parse=parse_rates,
        check=_check_rates,
        default_text="none",
        help="for benchmarks only: each guess is taken with this probability after those before "
        "it, right or wrong, so texts have no meaning",
    )

    def __post_init__(self) -> None:
        Options.__post_init__(self)
        if self.is_on and self.spec_n_min > self.spec_n_max:
            raise RequestError(
                f"spec_n_min is {self.spec_n_min}: must be at most spec_n_max, {self.spec_n_max}"
            )

    @property
    def is_on(self) -> bool:
        """True if tokens may be guessed."""
        return self.spec_n_max > 0 and SpecType.NONE not in self.spec_type

    def uses(self, model: SpecType) -> bool:
        """True if a model of this type may guess."""
        if self.spec_synth_rates:
            return False
        return self.is_on and not {model, SpecType.AUTO}.isdisjoint(self.spec_type)
