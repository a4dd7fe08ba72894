"""Typed access to metadata: values, and errors of missing or mistyped keys."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import constants
from gguf_files import Typed, build

from lamella.base.errors import ModelFileError
from lamella.model.gguf import Array, Metadata, open_gguf
from lamella.model.gguf.value_type import GGUF_DEFAULT_ALIGNMENT, GGUFValueType

CONTENT: dict[str, Any] = {
    "int": 5,
    "negative": -5,
    "huge": Typed(GGUFValueType.UINT64, 2**64 - 1),
    "float": 0.5,
    "double": Typed(GGUFValueType.FLOAT64, 0.1),
    "yes": True,
    "text": "héllo",
    "ints": [1, 2],
    "floats": [0.5, -0.25],
    "doubles": Typed(GGUFValueType.ARRAY, [0.1, 1e300], element=GGUFValueType.FLOAT64),
    "flags": [True, False],
    "strings": ["a", "ß"],
    "latin": b"caf\xe9",
    "latins": [b"tea", b"caf\xe9"],
    "none": Typed(GGUFValueType.ARRAY, [], element=GGUFValueType.STRING),
}


def metadata_of(tmp_path: Path, content: dict[str, Any], **options: Any) -> Metadata:
    path = tmp_path / "model.gguf"
    path.write_bytes(build(content, **options))
    with open_gguf(path) as file:
        return file.metadata  # stays readable after the file is closed


@pytest.fixture
def metadata(tmp_path: Path) -> Metadata:
    return metadata_of(tmp_path, CONTENT)


def test_typed_access(metadata: Metadata) -> None:
    assert metadata.int("int") == 5
    assert metadata.int("negative") == -5
    assert metadata.int("huge") == 2**64 - 1
    assert metadata.float("float") == 0.5
    assert metadata.float("double") == 0.1
    assert metadata.bool("yes") is True
    assert metadata.str("text") == "héllo"
    assert metadata.ints("ints") == [1, 2]
    assert metadata.strings("strings") == ["a", "ß"]
    assert metadata.strings("none") == []
    assert list(metadata.bytes_strings("latins")) == [b"tea", b"caf\xe9"]


def test_floats_are_float32(metadata: Metadata) -> None:
    assert metadata.floats("floats").dtype == np.float32
    assert metadata.floats("floats").tolist() == [0.5, -0.25]
    assert metadata.floats("doubles").dtype == np.float32
    assert metadata.floats("doubles").tolist() == [np.float32(0.1), np.inf]


def test_arrays_have_the_host_s_byte_order(tmp_path: Path) -> None:
    metadata = metadata_of(tmp_path, CONTENT, byte_order=">")
    for key in ("ints", "floats", "doubles"):
        array = metadata[key]
        assert isinstance(array, Array)
        assert array.numbers().dtype.isnative
    assert metadata.floats("floats").dtype.isnative


def test_defaults_are_for_missing_keys_only(metadata: Metadata) -> None:
    assert metadata.int("missing", None) is None
    assert metadata.str("missing", "x") == "x"
    assert metadata.bool("missing", False) is False
    assert metadata.float("missing", 1.0) == 1.0
    assert metadata.ints("missing", None) is None
    assert metadata.floats("missing", None) is None
    assert metadata.strings("missing", []) == []
    assert metadata.bytes_strings("missing", None) is None
    assert metadata.int("int", None) == 5
    with pytest.raises(ModelFileError):
        metadata.int("text", None)


@pytest.mark.parametrize(
    ("get", "message"),
    [
        (lambda m: m.int("float"), "'float' is the FLOAT32 0.5, must be an integer"),
        (lambda m: m.int("yes"), "'yes' is the BOOL True, must be an integer"),
        (lambda m: m.int("ints"), "'ints' is an array of 2 x UINT32, must be an integer"),
        (lambda m: m.float("int"), "'int' is the UINT32 5, must be a float"),
        (lambda m: m.bool("int"), "'int' is the UINT32 5, must be a bool"),
        (lambda m: m.str("negative"), "'negative' is the INT32 -5, must be a string"),
        (lambda m: m.str("strings"), "'strings' is an array of 2 x STRING, must be a string"),
        (lambda m: m.ints("int"), "'int' is the UINT32 5, must be an array of integers"),
        (lambda m: m.ints("flags"), "an array of 2 x BOOL, must be an array of integers"),
        (lambda m: m.ints("floats"), "an array of 2 x FLOAT32, must be an array of integers"),
        (lambda m: m.floats("ints"), "an array of 2 x UINT32, must be an array of floats"),
        (lambda m: m.strings("text"), "is the STRING 'héllo', must be an array of strings"),
        (lambda m: m.bytes_strings("ints"), "of 2 x UINT32, must be an array of strings"),
        (lambda m: m.int("gone"), "metadata key 'gone' is missing, must be an integer"),
        (lambda m: m.strings("gone"), "key 'gone' is missing, must be an array of strings"),
        (lambda m: m.strings("latins"), r"metadata key 'latins'[1] is not UTF-8: b'caf\xe9'"),
        (lambda m: m.str("latin"), r"is not UTF-8: b'caf\xe9'"),
        (lambda m: m["latin"], r"is not UTF-8: b'caf\xe9'"),
    ],
)
def test_messages_for_missing_and_mistyped_keys(
    metadata: Metadata, get: Callable[[Metadata], object], message: str
) -> None:
    with pytest.raises(ModelFileError) as e:
        get(metadata)
    assert message in str(e.value)
    assert "model.gguf: metadata key '" in str(e.value)


def test_messages_cut_long_texts(tmp_path: Path) -> None:
    metadata = metadata_of(tmp_path, {"template": "x" * 10_000})
    with pytest.raises(ModelFileError, match="the STRING 'xxx") as e:
        metadata.int("template")
    assert len(str(e.value)) < 400


def test_metadata_is_a_mapping(metadata: Metadata) -> None:
    assert len(metadata) == len(CONTENT)
    assert list(metadata) == list(CONTENT)
    assert "latin" in metadata  # does not decode the value
    assert "missing" not in metadata
    assert metadata.get("missing") is None
    assert metadata["int"] == 5
    with pytest.raises(KeyError):
        metadata["missing"]
    with pytest.raises(KeyError):
        metadata.value_type("missing")
    assert metadata.value_type("huge") is GGUFValueType.UINT64


def test_an_array_has_type_and_length_before_it_is_decoded(metadata: Metadata) -> None:
    array = metadata["latins"]
    assert isinstance(array, Array)
    assert (array.type, len(array)) == (GGUFValueType.STRING, 2)
    assert repr(array) == "<Array of 2 x STRING>"
    first, second = array.bytes_strings(), array.bytes_strings()
    assert list(first) == list(second)  # reading does not move the cursor
    flags = metadata["flags"]
    assert isinstance(flags, Array)
    assert list(flags) == list(flags) == [True, False]


def test_types_of_values_are_those_of_gguf() -> None:
    theirs = {t.name: int(t) for t in constants.GGUFValueType}
    assert {t.name: int(t) for t in GGUFValueType} == theirs
    assert constants.GGUF_DEFAULT_ALIGNMENT == GGUF_DEFAULT_ALIGNMENT
