"""Invalid metadata of every architecture: a file is accepted, or refused with a clear error.

The keys are all that the architecture reads, absent ones included. The cases are the same in every
run: a sample of all values of all keys.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from arch_goldens import EMBEDDINGS, GOLDENS
from gguf_files import Typed, layout

from lamella.base.errors import ModelFileError, UnsupportedModelError
from lamella.model.arch import open_architecture
from lamella.model.file_weights import find_weights
from lamella.model.gguf import Array, GGUFFile, Metadata, open_gguf
from lamella.model.gguf.value_type import GGUFValueType
from lamella.model.keys import Keys

ARRAY, I64, F64 = GGUFValueType.ARRAY, GGUFValueType.INT64, GGUFValueType.FLOAT64
N_CASES, N_CASES_FULL = 5, 9  # for each architecture, of each kind
INTS = (0, 1, 3, -1, -(2**31), 2**31 - 1, 2**31, 2**63 - 1, 1000)
FLOATS = (0.0, -1.0, 1e-300, 1e38, 1e300, float("inf"), float("nan"))
VALUES = [
    Typed(GGUFValueType.STRING, "wide"),
    Typed(GGUFValueType.BOOL, True),
    *(Typed(I64, value) for value in INTS),
    *(Typed(F64, value) for value in FLOATS),
    *(Typed(ARRAY, [value] * n, element=I64) for value in (0, 1, -1, 2**40) for n in (0, 1, 600)),
    *(Typed(ARRAY, [value] * 600, element=F64) for value in (0.0, 1e300, float("nan"))),
]


def architectures() -> dict[str, Path]:
    """Return a golden model of each architecture."""
    found: dict[str, Path] = {}
    for path in (*GOLDENS.values(), *EMBEDDINGS.values()):
        with open_gguf(path) as file:
            found.setdefault(file.metadata.str("general.architecture"), path)
    return found


def stored(metadata: Metadata) -> dict[str, Typed]:
    """Return the values of a file but for texts."""
    found = {}
    for key, value in metadata.items():
        if not isinstance(value, Array):
            found[key] = Typed(metadata.value_type(key), value)
        elif value.type not in (GGUFValueType.STRING, ARRAY):
            found[key] = Typed(ARRAY, list(value), element=value.type)
    return found


def accepts(file: GGUFFile) -> bool:
    """True if a file is accepted; an error must be one of a model's file."""
    try:
        arch = open_architecture(file)
        find_weights(file, arch.weights(), arch.ignores)
        arch.notes(100)
        arch.describe(100)
    except (ModelFileError, UnsupportedModelError) as e:
        assert ".gguf: " in str(e) and len(str(e)) < 5000  # noqa: PT017  # an error is optional
        return False
    return True


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The keys that architectures have asked for, in full."""
    found: set[str] = set()
    full = Keys.full

    def recorded(self: Keys, key: str) -> str:
        found.add(full(self, key))
        return full(self, key)

    monkeypatch.setattr(Keys, "full", recorded)
    return found


@pytest.mark.parametrize("name", architectures())
def test_invalid_metadata(
    name: str, read: set[str], tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    n_cases = N_CASES_FULL if pytestconfig.getoption("--full") else N_CASES
    rng, path = random.Random(name), tmp_path / "keys.gguf"
    with open_gguf(architectures()[name]) as file:
        good = stored(file.metadata)
        assert accepts(file)
        keys = sorted(key for key in read if "[" not in key)
        missing = [{k: v for k, v in good.items() if k != key} for key in keys if key in good]
        changed = [{**good, key: value} for key in keys for value in VALUES]
        spoiled = [{**good, key: value} for key, value in _near(good, keys)]
        results = []
        for metadata in (c for cs in (missing, changed, spoiled) for c in _some(rng, cs, n_cases)):
            path.write_bytes(layout(metadata).data)
            with open_gguf(path, header_only=True) as other:
                file.metadata = other.metadata
                results.append(accepts(file))
    assert not all(results)


def _near(good: dict[str, Typed], keys: list[str]) -> Iterator[tuple[str, Typed]]:
    """Yield arrays of the file that are too short, or have an invalid element."""
    for key in keys:
        if key in good and good[key].type is ARRAY and good[key].value:
            value = good[key]
            yield key, replace(value, value=value.value[:-1])
            is_float = value.element is GGUFValueType.FLOAT32
            last, element = (float("nan"), F64) if is_float else (2**40, I64)
            yield key, Typed(ARRAY, [*value.value[:-1], last], element=element)


def _some(rng: random.Random, cases: list[dict[str, Typed]], n: int) -> list[dict[str, Typed]]:
    return rng.sample(cases, min(n, len(cases)))
