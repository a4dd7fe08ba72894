"""The options of LoRA adapters and control vectors: those that are loaded, and the scales of
adapters in a request.

Names are llama-server's. Knows no files. Tested by tests/model/test_adapter_params.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from os import PathLike, fspath
from typing import Any, ClassVar, Final

from ..base.errors import RequestError
from ..base.options import Options, Shortcut, option, parse_number, real, refused, whole
from .params import parse_names

N_ADAPTERS_MAX: Final = 256

Scales = tuple[tuple[int, float], ...]  # numbers of adapters with their scales


def parse_scaled(text: str) -> tuple[tuple[str, float], ...]:
    """Return the files and scales of a comma-separated list of FILE:SCALE."""
    return tuple(_scaled(item) for item in parse_names(text))


def _scaled(item: str) -> tuple[str, float]:
    path, found, scale = item.rpartition(":")
    if not (path and found):
        raise ValueError(f"{item!r}: must be like adapter.gguf:0.5, a file and its scale")
    return path, parse_number(float, scale)


def _check_files(name: str, value: Any) -> tuple[tuple[str, float], ...]:
    items = [value] if isinstance(value, str | PathLike) else value
    if not isinstance(items, Sequence) or len(items) > N_ADAPTERS_MAX:
        raise refused(name, value, f"a list of at most {N_ADAPTERS_MAX} files")
    return tuple(_file(name, item) for item in items)


def _file(name: str, item: Any) -> tuple[str, float]:
    if isinstance(item, str | PathLike):
        return fspath(item), 1.0
    if isinstance(item, Sequence) and len(item) == 2 and isinstance(item[0], str | PathLike):
        return fspath(item[0]), real(f"the scale of {fspath(item[0])}", item[1])
    raise refused(name, item, 'a file, or a pair like ("adapter.gguf", 0.5)')


def _check_range(name: str, value: Any) -> tuple[int, int] | None:
    if value is None:
        return None
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise refused(name, value, "the first and the last layer")
    return whole(name, value[0]), whole(name, value[1])


def check_scales(name: str, value: Any) -> Scales:
    """Return pairs of an adapter's number and its scale, of [{"id": 0, "scale": 0.5}, ...] or of
    such pairs, in the order of the numbers.

    Raises:
        RequestError: names the element.
    """
    if not isinstance(value, list | tuple):
        raise refused(name, value, 'a list like [{"id": 0, "scale": 0.5}]')
    if len(value) > N_ADAPTERS_MAX:
        raise RequestError(f"{name} has {len(value)} elements: at most {N_ADAPTERS_MAX} are valid")
    found: dict[int, float] = {}
    for i, item in enumerate(value):
        id, scale = _pair(f"{name}[{i}]", item)
        if id in found:
            raise RequestError(f"{name}[{i}].id is {id}, as that of an earlier element")
        found[id] = scale
    return tuple(sorted(found.items()))


def _pair(name: str, item: Any) -> tuple[int, float]:
    if isinstance(item, Mapping):
        if item.keys() != {"id", "scale"}:
            raise refused(name, item, 'an object like {"id": 0, "scale": 0.5}')
        item = item["id"], item["scale"]
    if not isinstance(item, list | tuple) or len(item) != 2:
        raise refused(name, item, 'an object like {"id": 0, "scale": 0.5}')
    return whole(f"{name}.id", item[0]), real(f"{name}.scale", item[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterParams(Options):
    """The LoRA adapters and control vectors of a model."""

    title: ClassVar[str] = "adapters"

    lora: Sequence[tuple[str, float]] = option(
        (),
        "--lora",
        parse=parse_names,
        check=_check_files,
        repeats=True,
        metavar="FILE,...",
        help="LoRA adapters (GGUF), with scale 1 for requests that set none; may be repeated",
        default_text="",
        shortcuts=(
            Shortcut(
                ("--lora-scaled",),
                None,
                "LoRA adapters with other scales; may be repeated",
                parse_scaled,
                "FILE:SCALE,...",
            ),
        ),
    )
    lora_init_without_apply: bool = option(
        False,
        "--lora-init-without-apply",
        help="load the adapters with scale 0: only requests that set scales use them",
    )
    control_vector: Sequence[tuple[str, float]] = option(
        (),
        "--control-vector",
        parse=parse_names,
        check=_check_files,
        repeats=True,
        metavar="FILE,...",
        help="control vectors (GGUF) that steer all texts; several are added up; may be repeated",
        default_text="",
        shortcuts=(
            Shortcut(
                ("--control-vector-scaled",),
                None,
                "control vectors with other scales; may be repeated",
                parse_scaled,
                "FILE:SCALE,...",
            ),
        ),
    )
    control_vector_layer_range: tuple[int, int] | None = option(
        None,
        "--control-vector-layer-range",
        parse=partial(parse_number, int),
        check=_check_range,
        metavar="START END",
        help="the first and the last layer that control vectors steer",
        default_text="all but the first layer of the model",
    )
