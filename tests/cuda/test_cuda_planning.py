"""Plans of models on a GPU are exact: an emulated GPU counts every allocated byte."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from cuda_grid import GridGpu
from gpus import Gpus, emulated_gpus, leaves_nothing
from model_files import ModelFiles
from open_params import open_params

from lamella.alloc import Buffer
from lamella.base.settings import STRICT
from lamella.kernels import devices
from lamella.kernels.cuda.device import CudaDevice
from lamella.model.batch import Batch
from lamella.model.context import Context
from lamella.model.loader import load_model
from lamella.runtime.fit import plan_model
from lamella.runtime.plan import ModelPlan

pytestmark = pytest.mark.timeout(900)

SMALL: Mapping[str, Any] = {"n_ctx": 256, "n_ubatch": 40, "n_parallel": 3, "n_threads": 2}

CONFIGURATIONS: Mapping[str, Mapping[str, Any]] = {
    "all layers": {},
    "some layers": {"n_gpu_layers": 2},
    "no layers, large batches": {"n_gpu_layers": 0},
    "no op offload": {"n_gpu_layers": 2, "op_offload": False},
    "keys on the CPU": {"kv_offload": False},
    "embeddings on the CPU": {"embd_offload": False},
    "q8_0 keys": {"type_k": "q8_0", "type_v": "q8_0"},
    "weights in pinned memory": {"overrides": (("ffn", "CUDA_Host"),)},
    "two GPUs": {"devices": ("CUDA0", "CUDA1")},
    "two GPUs and the CPU": {"devices": ("CUDA0", "CUDA1"), "n_gpu_layers": 3},
}
# with --full alone: others have all of it
PARTS: Final = ("two GPUs", "all layers")


@pytest.fixture(scope="module")
def gpus() -> Iterator[Gpus]:
    """Emulated GPUs, even with --cuda: a real driver rounds allocations."""
    with emulated_gpus() as found:
        yield found


@pytest.fixture(autouse=True)
def found(gpus: Gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """Find the test's devices by name."""
    monkeypatch.setattr(devices, "find_cuda", lambda: gpus.registry)


def plan_of(path: Path, **params: Any) -> ModelPlan:
    options = {"devices": ("CUDA0",), "n_gpu_layers": -1, **SMALL, **params}
    return plan_model(open_params(path, **options))


def grid(gpus: Gpus) -> Sequence[GridGpu]:
    found = [device.gpu for device in gpus.devices]
    assert all(isinstance(gpu, GridGpu) for gpu in found)
    return found  # type: ignore[return-value]


def check_exact(gpus: Gpus, plan: ModelPlan) -> None:
    """Check that the drivers have allocated exactly the plan's bytes."""
    by_name = {device.name: device.needed for device in plan.devices[:-1]}
    for gpu in grid(gpus):
        assert gpu.device_memory.used == by_name.get(gpu.info.name, 0)
    cpu = plan.devices[-1]
    pinned = sum(m.total for m in cpu.memory if m.buffer_type.endswith("_Host"))
    assert sum(gpu.host_memory.used for gpu in grid(gpus)) == pinned


def decode_all_kinds(context: Context) -> None:
    rng = np.random.default_rng(5)
    seqs = [context.pool.new_sequence() for _ in range(context.n_seq_max)]
    for lengths in ([1], [50], [3, 1, 9], [1] * 3):  # 50 are 40 and 10
        for n_outputs in (0, 1):
            batch = Batch()
            for seq, n in zip(seqs, lengths, strict=False):
                pos = seq.length
                context.append(seq, n)
                batch.add(rng.integers(0, context.n_vocab, n).tolist(), seq, pos, n_outputs)
            context.decode_rows(batch)
        for seq in seqs:
            seq.truncate(0)
    for seq in seqs:
        seq.free()


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.full if n in PARTS else ()) for n in CONFIGURATIONS],
)
def test_a_plan_is_exact(gpus: Gpus, files: ModelFiles, name: str) -> None:
    path = files.random("deep", "Q4_0")
    for gpu in grid(gpus):
        assert not gpu.device_memory.used and not gpu.host_memory.used
    plan = plan_of(path, **CONFIGURATIONS[name])
    check_exact(gpus, _nothing(plan))
    model = load_model(path, plan.placement)
    try:
        with STRICT.set(1), Context(model, plan.params.context, reserved=plan.reserved) as context:
            check_exact(gpus, plan)
            decode_all_kinds(context)
            check_exact(gpus, plan)
    finally:
        model.free()


def _nothing(plan: ModelPlan) -> ModelPlan:
    """The plan without memory: making a plan allocates none."""
    return replace(plan, devices=tuple(replace(d, memory=()) for d in plan.devices))


def test_a_part_of_the_memory_is_left_to_the_driver(gpus: Gpus, files: ModelFiles) -> None:
    path, gpu = files.random("deep", "Q4_0"), gpus.first
    needed = plan_of(path, embd_offload=True).devices[0].needed
    for missing in (0, 16):  # buffers are multiples of 16 bytes
        filler = taken(gpu, needed + gpu.driver_margin - missing)
        plan = plan_of(path, embd_offload=True)
        filler.free()
        assert plan.devices[0].margin == gpu.driver_margin
        assert plan.devices[0].shortfall == missing
        assert plan.fits is (missing == 0)


def taken(gpu: CudaDevice, n_free: int) -> Buffer:
    """Allocate memory so that `n_free` bytes are left."""
    return gpu.buffer_type.alloc_buffer(gpu.memory()[0] - n_free)


def test_a_gpu_without_free_memory_is_not_used(gpus: Gpus, files: ModelFiles) -> None:
    """Not even for large batches: copies of their weights would need memory."""
    path, gpu = files.random("deep", "Q4_0"), gpus.first
    auto: Mapping[str, Any] = {"n_gpu_layers": None, "fit_target": 0}
    none = plan_of(path, n_gpu_layers=0).devices[0].needed
    assert none > 0
    filler = taken(gpu, none + gpu.driver_margin)
    plan = plan_of(path, **auto)
    filler.free()
    assert (plan.n_gpu_layers, plan.devices[0].needed) == (0, none)
    filler = taken(gpu, none + gpu.driver_margin - 1)
    plan = plan_of(path, **auto)
    filler.free()
    assert [d.name for d in plan.devices] == ["CPU"]
    assert not plan.placement.params.op_offload
    assert "cannot run large batches for the CPU" in plan.notes[0]
    assert not any(m.buffer_type == "CUDA_Host" for m in plan.devices[0].memory)


def test_bandwidth_is_measured_and_leaves_nothing(gpus: Gpus) -> None:
    gpu = gpus.first
    with leaves_nothing(gpu):
        n_events = grid(gpus)[0].live["events"]
        assert gpu.bandwidth(1) > 0
        filler = taken(gpu, 1 << 16)
        assert gpu.bandwidth(1) > 0
        filler.free()
        assert grid(gpus)[0].live["events"] == n_events
