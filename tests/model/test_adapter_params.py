"""The options of LoRA adapters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lamella.base.errors import RequestError
from lamella.model.adapter_params import AdapterParams, check_scales, parse_scaled


@pytest.mark.parametrize(
    ("value", "files"),
    [
        ((), ()),
        ("a.gguf", (("a.gguf", 1.0),)),
        (Path("a.gguf"), (("a.gguf", 1.0),)),
        (["a.gguf", ("b.gguf", 0.5), [Path("c"), 2]], (("a.gguf", 1.0), ("b.gguf", 0.5), ("c", 2))),
    ],
)
def test_files(value: Any, files: object) -> None:
    assert AdapterParams(lora=value).lora == files


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (7, "lora is 7: must be a list of at most 256 files"),
        (["a"] * 257, "must be a list of at most 256 files"),
        ([7], "lora is 7: must be a file, or a pair"),
        ([("a", 1, 2)], "must be a file, or a pair"),
        ([("a", "x")], "the scale of a is 'x': must be a number"),
        ([("a", float("nan"))], "the scale of a is nan: must be a finite 32-bit number"),
    ],
)
def test_invalid_files(value: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        AdapterParams(lora=value)


def test_scaled_files() -> None:
    assert parse_scaled("a.gguf:0.5,C:\\b.gguf:-2") == (("a.gguf", 0.5), ("C:\\b.gguf", -2.0))
    for text in ("a.gguf", ":1", "a.gguf:", "a.gguf:x"):
        with pytest.raises(ValueError, match=r"must be like|is not a number"):
            parse_scaled(text)


def test_scales_of_a_request() -> None:
    given = [{"id": 3, "scale": 0.5}, {"scale": -1, "id": 0}]
    assert check_scales("lora", given) == ((0, -1.0), (3, 0.5))
    assert check_scales("lora", ((0, -1.0), (3, 0.5))) == ((0, -1.0), (3, 0.5))
    assert check_scales("lora", []) == ()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"id": 0, "scale": 1}, r"lora is .*: must be a list like"),
        ("0:1", r"lora is '0:1': must be a list like"),
        ([7], r"lora\[0\] is 7: must be an object like"),
        ([{"id": 0}], r"lora\[0\] is .*: must be an object like"),
        ([{"id": 0, "scale": 1, "x": 1}], r"lora\[0\] is .*: must be an object like"),
        ([{"id": "0", "scale": 1}], r"lora\[0\].id is '0': must be a whole number"),
        ([{"id": True, "scale": 1}], r"lora\[0\].id is True: must be a whole number"),
        ([{"id": 0, "scale": "1"}], r"lora\[0\].scale is '1': must be a number"),
        ([{"id": 0, "scale": 1e39}], r"lora\[0\].scale is 1e\+39: must be a finite 32-bit number"),
        ([{"id": 0, "scale": 1}] * 2, r"lora\[1\].id is 0, as that of an earlier element"),
        ([{"id": i, "scale": 1} for i in range(257)], "lora has 257 elements: at most 256"),
    ],
)
def test_invalid_scales(value: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        check_scales("lora", value)
