"""Layers that no golden model has, against a forward pass in NumPy with 64-bit floats.

And their bits in batches, in chunks, and on two devices.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pytest
from arch_goldens import log_softmax
from arch_run import Runner
from placed import placed
from state_forward import Bamba, FalconMamba, Forward, KimiLinear, NemotronH, PLaMo2
from state_models import COMMON, KEYS, MORE, write_state_model

from lamella.kernels.cpu import CpuDevice
from lamella.kernels.devices import find_devices
from lamella.kernels.sim import SimDevice
from lamella.model.batch import Batch
from lamella.model.context import Context
from lamella.model.loader import load_model
from lamella.model.params import ContextParams
from lamella.model.placement import Placement, moe_overrides
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


@contextmanager
def opened(path: Path, n_gpu_layers: int = 0, *, cpu_moe: bool = False) -> Iterator[Context]:
    """Open a context on the CPU, with layers on a simulated GPU."""
    cpu = CpuDevice(repack=False)  # as a simulated GPU does not
    devices = tuple(find_devices(["sim"] if n_gpu_layers else [], cpu))
    overrides = moe_overrides(n_gpu_layers, -1, cpu.buffer_type) if cpu_moe else ()
    with (
        load_model(path, placed(cpu, devices, overrides, n_gpu_layers=n_gpu_layers)) as model,
        Context(model, ContextParams(n_ctx=128, n_parallel=2)) as context,
    ):
        yield context


def logits(context: Context, *cuts: int) -> npt.NDArray[np.float32]:
    """Return the logits after each of TOKENS. With cuts, another sequence is in the batches."""
    seq, other = context.pool.new_sequence(), context.pool.new_sequence()
    context.append(seq, len(TOKENS))
    context.append(other, len(TOKENS))
    rows, n = [], len(TOKENS)
    for begin, end in zip((0, *cuts), (*cuts, n), strict=True):
        batch = Batch()
        if cuts:
            batch.add(TOKENS[n - end : n - begin], other, begin)
        batch.add(TOKENS[begin:end], seq, begin, n_outputs=end - begin)
        rows.append(context.decode(batch).copy())
    return np.concatenate(rows)


@pytest.mark.parametrize("arch", FORWARDS)
def test_bits_depend_neither_on_the_batch_nor_on_the_split(arch: str, tmp_path: Path) -> None:
    path, keys = tmp_path / "tiny.gguf", MORE.get(arch) or KEYS[arch]
    write_state_model(arch, path, keys)
    with opened(path) as context:
        alone = logits(context)
    with opened(path, 2) as context:
        assert logits(context, 5, 6, 19).tobytes() == alone.tobytes()
    if "expert_count" in keys:
        with opened(path, keys["block_count"] + 1, cpu_moe=True) as context:
            assert logits(context, 11).tobytes() == alone.tobytes()
