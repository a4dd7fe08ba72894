"""Architectures without a golden model compute what they computed when they met a reference."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from arch_goldens import EMBEDDINGS, GOLDENS
from arch_pins import FILE, results, write_pin
from tiny_models import TINY

from lamella.model.arch import ARCHITECTURES
from lamella.model.gguf import open_gguf

PINS = json.loads(FILE.read_text())


@pytest.mark.parametrize("name", PINS)
def test_results(name: str, tmp_path: Path) -> None:
    write_pin(PINS[name], tmp_path / "m.gguf")
    actual = results(tmp_path / "m.gguf")
    np.testing.assert_allclose(actual, PINS[name]["results"], atol=2e-3)


def test_every_architecture_has_a_model() -> None:
    if not GOLDENS:
        pytest.skip("no golden data")
    found = {tiny.arch for tiny in TINY.values()} | {pin["arch"] for pin in PINS.values()}
    for path in (*GOLDENS.values(), *EMBEDDINGS.values()):
        with open_gguf(path) as file:
            found.add(file.metadata.str("general.architecture"))
    assert sorted(set(ARCHITECTURES) - found) == []
