"""Sampling parameters that a file recommends: valid and invalid values."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from tiny_models import TINY, write_model

from lamella.model.gguf import open_gguf
from lamella.model.sampling import recommended_sampling


def recommended(path: Path, **values: Any) -> dict[str, Any]:
    metadata = {f"general.sampling.{key}": value for key, value in values.items()}
    write_model(TINY["llama"], path, metadata=metadata)
    with open_gguf(path) as file:
        return recommended_sampling(file.metadata)


def test_all_keys(tmp_path: Path) -> None:
    numbers = {"temp": 0.6, "top_p": 0.9, "min_p": 0.1, "xtc_probability": 0.5}
    numbers |= {"xtc_threshold": 0.2, "penalty_repeat": 1.1, "top_k": 20, "penalty_last_n": 5}
    found = recommended(tmp_path / "m.gguf", **numbers, sequence="top_k;temperature", mirostat=2)
    assert found == {
        "temperature": 0.6,  # the shortest decimal value, not 0.6000000238
        "top_p": 0.9,
        "min_p": 0.1,
        "xtc_probability": 0.5,
        "xtc_threshold": 0.2,
        "repeat_penalty": 1.1,
        "top_k": 20,
        "repeat_last_n": 5,
        "samplers": ("top_k", "temperature"),
        "mirostat": 2,
    }


def test_most_files_recommend_nothing(tmp_path: Path) -> None:
    assert recommended(tmp_path / "m.gguf") == {}


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("temp", "hot", "general.sampling.temp is ignored: temperature is 'hot'"),
        ("temp", float("nan"), "temperature is nan"),
        ("top_k", [1, 2], "top_k is "),
        ("sequence", "top_k;magic", "samplers is 'magic'"),
        ("sequence", 7, "samplers is 7"),
        ("mirostat", 3, "general.sampling.mirostat is ignored: mirostat is 3"),
    ],
)
def test_invalid_values_are_omitted_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, key: str, value: object, message: str
) -> None:
    with caplog.at_level(logging.WARNING, "lamella"):
        found = recommended(tmp_path / "m.gguf", top_p=0.5, **{key: value})
    assert found == {"top_p": 0.5}
    assert message in caplog.text
