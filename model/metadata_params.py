"""Options that replace values of a model file's metadata.

Knows the names of the keys; model/hparams.py reads and checks their values.
Tested by tests/model/test_metadata_params.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Final

from ..base.errors import RequestError
from ..base.options import FLOAT_MAX, Options, option, parse_number, refused, truth
from .gguf.metadata import Scalar
from .params import INT32_MAX

TYPES: Final[Mapping[str, Callable[[str], Scalar]]] = {
    "int": partial(parse_number, int),
    "float": partial(parse_number, float),
    "bool": truth,
    "str": str,
}
FILE: Final = "the file's"


def parse_metadata(text: str) -> tuple[tuple[str, Scalar], ...]:
    """Return the pairs of a comma-separated list of KEY=TYPE:VALUE."""
    return tuple(_override(item) for item in text.split(","))


def _override(item: str) -> tuple[str, Scalar]:
    key, _, rest = item.partition("=")
    kind, colon, value = rest.partition(":")
    if not (key and colon and kind in TYPES):
        raise ValueError(
            f"{item!r}: must be like llama.context_length=int:4096, with a type of "
            f"{', '.join(TYPES)}"
        )
    try:
        return key, TYPES[kind](value)
    except ValueError:
        raise ValueError(f"{item!r}: {value!r} is not a value of type {kind}") from None


def _check_overrides(name: str, value: object) -> tuple[tuple[str, Scalar], ...]:
    pairs = value.items() if isinstance(value, Mapping) else value
    try:
        found = tuple((key, scalar) for key, scalar in pairs)  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        raise refused(name, value, "keys and values") from None
    for key, scalar in found:
        if not isinstance(key, str) or not isinstance(scalar, bool | int | float | str):
            raise RequestError(f"{name}: {key!r} is {scalar!r}: must be a number, a bool or a text")
    return found


def _number(*flags: str, help: str) -> float | None:
    """Declare a number; a negative one is the file's value, as in llama.cpp."""
    declared: float | None = option(
        None, *flags, low=-1, high=FLOAT_MAX, help=help, default_text=FILE
    )
    return declared


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataParams(Options):
    """Values that replace those of the file's metadata."""

    title: ClassVar[str] = "metadata"

    override_kv: tuple[tuple[str, Scalar], ...] = option(
        (),
        "--override-kv",
        parse=parse_metadata,
        check=_check_overrides,
        repeats=True,
        metavar="KEY=TYPE:VALUE,...",
        help="replace metadata of the file, like llama.context_length=int:4096; types: "
        f"{', '.join(TYPES)}; may be repeated",
        default_text="",
    )
    rope_scaling: str | None = option(
        None,
        "--rope-scaling",
        choices=("none", "linear", "yarn"),
        env="ROPE_SCALING_TYPE",
        metavar="TYPE",
        help="how positions are scaled beyond the trained context: none, linear or yarn",
        default_text=FILE,
    )
    rope_scale: float | None = _number("--rope-scale", help="factor of the context's extension")
    rope_freq_base: float | None = _number("--rope-freq-base", help="base frequency of RoPE")
    rope_freq_scale: float | None = _number("--rope-freq-scale", help="1 / --rope-scale")
    yarn_orig_ctx: int | None = option(
        None,
        "--yarn-orig-ctx",
        low=0,
        high=INT32_MAX,
        help="YaRN: the trained context; 0: the file's",
        default_text=FILE,
    )
    yarn_ext_factor: float | None = _number(
        "--yarn-ext-factor", help="YaRN: share of extrapolation"
    )
    yarn_attn_factor: float | None = _number(
        "--yarn-attn-factor", help="YaRN: factor of attention's scores"
    )
    yarn_beta_slow: float | None = _number(
        "--yarn-beta-slow", help="YaRN: rotations below which a frequency is interpolated"
    )
    yarn_beta_fast: float | None = _number(
        "--yarn-beta-fast", help="YaRN: rotations above which a frequency is not changed"
    )


def metadata_overrides(params: MetadataParams) -> dict[str, Scalar]:
    """Return the values that replace those of the file, by key.

    A key with a dot at its start follows the architecture's name.
    """
    scale = params.rope_scale
    if params.rope_freq_scale is not None and params.rope_freq_scale > 0:
        scale = 1 / params.rope_freq_scale
    given: dict[str, Scalar] = {}
    if params.rope_scaling is not None:
        given[".rope.scaling.type"] = params.rope_scaling
    above_zero = {
        ".rope.scaling.factor": scale,
        ".rope.freq_base": params.rope_freq_base,
        ".rope.scaling.original_context_length": params.yarn_orig_ctx,
    }
    given |= {key: v for key, v in above_zero.items() if v is not None and v > 0}
    from_zero = {
        ".rope.scaling.yarn_ext_factor": params.yarn_ext_factor,
        ".rope.scaling.attn_factor": params.yarn_attn_factor,
        ".rope.scaling.yarn_beta_slow": params.yarn_beta_slow,
        ".rope.scaling.yarn_beta_fast": params.yarn_beta_fast,
    }
    given |= {key: v for key, v in from_zero.items() if v is not None and v >= 0}
    return given | dict(params.override_kv)
