"""Long and short factors of rope: the size of the context chooses them, and is limited by them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from arch_run import Runner
from tiny_models import Tiny, write_model

from lamella.kernels.sim import SimDevice
from lamella.model.arch import Architecture, open_architecture
from lamella.model.gguf import open_gguf
from lamella.model.loader import load_model
from lamella.model.placement import Placement
from lamella.sched import DeviceType

F32Array = npt.NDArray[np.float32]
SHORT, LONG = (np.linspace(1, end, 8, dtype=np.float32) for end in (2, 9))
N_CTX_ORIG = 64
TINY = Tiny(arch="phi3", rope={"scaling.original_context_length": N_CTX_ORIG})


def written(path: Path, short: F32Array = SHORT, long: F32Array = LONG) -> Path:
    factors = {"rope_factors_short.weight": short, "rope_factors_long.weight": long}
    write_model(TINY, path, replace=factors)
    return path


def logits(path: Path, n_ctx: int) -> F32Array:
    model = load_model(path, Placement(cpu=SimDevice("CPU", DeviceType.CPU)))
    runner = Runner(model, n_ctx)
    found = runner.prompt(range(9))
    runner.close()
    return found


def arch_of(path: Path) -> Architecture:
    with open_gguf(path) as file:
        return open_architecture(file)


@pytest.mark.parametrize(("n_ctx", "used"), [(N_CTX_ORIG, SHORT), (N_CTX_ORIG + 1, LONG)])
def test_the_context_chooses_the_factors(n_ctx: int, used: F32Array, tmp_path: Path) -> None:
    both = logits(written(tmp_path / "both.gguf"), n_ctx)
    assert np.array_equal(both, logits(written(tmp_path / "one.gguf", used, used), n_ctx))


def test_the_default_context_uses_the_short_factors(tmp_path: Path) -> None:
    arch = arch_of(written(tmp_path / "m.gguf"))
    assert arch.max_default_ctx() == N_CTX_ORIG
    assert arch.describe(64) == "short factors of rope, for contexts up to 64"
    assert arch.describe(65) == "long factors of rope, for contexts above 64"


def test_a_file_without_factors(tmp_path: Path) -> None:
    write_model(TINY, tmp_path / "m.gguf")
    arch = arch_of(tmp_path / "m.gguf")
    assert (arch.max_default_ctx(), arch.describe(256)) == (None, "")
