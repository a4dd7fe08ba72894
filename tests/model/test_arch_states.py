"""Layers that no golden model has, against a forward pass in NumPy with 64-bit floats.

And their bits in batches, in chunks, and on two devices.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from arch_bits import check_bits
from arch_goldens import log_softmax
from arch_run import Runner
from state_forward import Bamba, FalconMamba, Forward, KimiLinear, NemotronH, PLaMo2
from state_models import COMMON, KEYS, MORE, write_state_model

from lamella.base.errors import ModelFileError
from lamella.kernels.sim import SimDevice
from lamella.model.arch import open_architecture
from lamella.model.gguf import open_gguf
from lamella.model.layer_memory import Kind, Window
from lamella.model.loader import load_model
from lamella.model.placement import Placement
from lamella.sched import DeviceType

TOKENS = [1, *(5 + i * 11 % 200 for i in range(23))]
FORWARDS: Final[dict[str, type[Forward]]] = {
    "mamba": FalconMamba,
    "granitehybrid": Bamba,
    "nemotron_h_moe": NemotronH,
    "plamo2": PLaMo2,
    "kimi-linear": KimiLinear,
}


@pytest.mark.parametrize("arch", FORWARDS)
def test_log_probabilities(arch: str, tmp_path: Path) -> None:
    check(arch, MORE.get(arch) or KEYS[arch], tmp_path / "tiny.gguf")


@pytest.mark.parametrize("n_rot", [4, 16])
def test_bamba_rotates_heads_or_parts_of_them(n_rot: int, tmp_path: Path) -> None:
    keys = MORE["granitehybrid"] | {"rope.dimension_count": n_rot}
    check("granitehybrid", keys, tmp_path / "tiny.gguf")


def test_lfm2_may_have_a_window(tmp_path: Path) -> None:
    write_state_model("lfm2", tmp_path / "m.gguf", KEYS["lfm2"] | {"attention.sliding_window": 7})
    with open_gguf(tmp_path / "m.gguf") as file:
        arch = open_architecture(file)
    kinds = [(layer.kind, layer.window) for layer in arch.hp.memory]
    assert kinds == [(Kind.STATE, None), (Kind.WINDOW, Window(7)), (Kind.STATE, None)]
    assert arch.notes(n_ctx=64) == []


def check(arch: str, keys: dict[str, Any], path: Path) -> None:
    """Compare the log-probabilities of a model with these keys with those of its forward pass."""
    write_state_model(arch, path, keys)
    forward = FORWARDS[arch](path, {**COMMON, **keys})
    expected = log_softmax(forward.logits(TOKENS).astype(np.float32))
    runner = Runner(load_model(path, Placement(cpu=SimDevice("CPU", DeviceType.CPU))))
    try:
        found = log_softmax(runner.prompt(TOKENS, chunk=7))
    finally:
        runner.close()
    assert np.abs(found - expected).max() < 1e-4


@pytest.mark.parametrize("arch", FORWARDS)
def test_bits_depend_neither_on_the_batch_nor_on_the_split(arch: str, tmp_path: Path) -> None:
    path, keys = tmp_path / "tiny.gguf", MORE.get(arch) or KEYS[arch]
    write_state_model(arch, path, keys)
    check_bits(path, keys, TOKENS)


@pytest.mark.parametrize(
    ("arch", "keys", "named"),
    [
        ("kimi-linear", {"kda.head_dim": None}, "kimi-linear.kda.head_dim"),
        ("kimi-linear", {"attention.key_length_mla": None}, "key_length_mla is absent: files wi"),
        ("kimi-linear", {"attention.head_count_kv": [0, 2, 0]}, "head_count_kv is 2: must be 1"),
        ("plamo2", {"ssm.group_count": 2}, "plamo2.ssm.group_count is 2: must be 0 or 1"),
        ("plamo2", {"ssm.time_step_rank": 5}, "time_step_rank is 5: must divide the inner size 96"),
    ],
)
def test_what_is_refused(arch: str, keys: dict[str, Any], named: str, tmp_path: Path) -> None:
    merged = {key: value for key, value in (KEYS[arch] | keys).items() if value is not None}
    with pytest.raises(ModelFileError, match=named):
        write_state_model(arch, tmp_path / "tiny.gguf", merged)
