"""Plans are exact to the byte, before and after work. A model that fits is loaded; with one byte
less it is refused. What plans report."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from control_vectors import write_control
from matrix import combinations
from open_params import open_params
from planning import CONFIGURATIONS, N_DEEP_VOCAB, N_LAYER, SMALL, plan_of, sim, write_deep
from tiny_models import TINY, write_model

from lamella.alloc.buffer import BufferType, Usage
from lamella.base.errors import DoesNotFitError, OutOfMemoryError, PlacementError
from lamella.base.settings import NO_FUSION, STRICT
from lamella.graph import GGMLType, Op
from lamella.kernels.cpu import CpuDevice
from lamella.kernels.sim import SimDevice
from lamella.model.arch import open_architecture
from lamella.model.batch import Batch
from lamella.model.context import Context
from lamella.model.gguf import open_gguf
from lamella.model.kv_pages import PAGE_SIZE
from lamella.model.loader import load_model
from lamella.runtime import devices as lookup
from lamella.runtime.check import enforce
from lamella.runtime.fit import plan_model
from lamella.runtime.instance import unload
from lamella.runtime.open import load, open_instance
from lamella.runtime.plan import (
    MemoryPlan,
    ModelPlan,
    OverridePlan,
)

FILES = ("qwen3moe", "llama", "mixtral Q4_0", "qwen2 Q8_0")


@pytest.fixture(scope="module")
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    arch, _, type = request.param.partition(" ")
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_model(TINY[arch], path, GGMLType[type or "F32"])
    return path


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_deep(tmp_path_factory.mktemp("deep"))


def allocated(context: Context) -> dict[str, dict[Usage, int]]:
    """Bytes of all buffers by buffer type and usage, from their owners."""
    found: dict[str, dict[Usage, int]] = {}

    def add(buffers: Any, usage: Usage) -> None:
        for buffer in buffers:
            assert not buffer.freed and buffer.usage is usage
            if buffer.size:
                uses = found.setdefault(buffer.buft.name, dict.fromkeys(Usage, 0))
                uses[usage] += buffer.size

    scheduler = context._scheduler
    assert scheduler is not None
    add(context.model._buffers, Usage.WEIGHTS)
    add(context.kv.buffers, Usage.ANY)
    add(itertools.chain(*scheduler._galloc.buffers), Usage.COMPUTE)
    add((b.work for b in scheduler.backends if b.work is not None), Usage.WORK)
    return found


def used(context: Context) -> dict[str, int]:
    """Bytes in use by buffer type, as the buffer types count them."""
    bufts: set[BufferType] = set()
    for device in context.model.devices:
        host = device.host_buffer_type
        bufts |= {device.buffer_type, *device.extra_buffer_types, *((host,) if host else ())}
    return {buft.name: buft.used for buft in bufts if buft.used}


def planned(plan: ModelPlan) -> list[MemoryPlan]:
    return [m for device in plan.devices for m in device.memory]


def decode_all_kinds(context: Context) -> None:
    """Prompts, single tokens and several sequences, with and without outputs."""
    rng = np.random.default_rng(3)
    seqs = [context.pool.new_sequence() for _ in range(context.n_seq_max)]
    for lengths in ([7], [3, 1, 9], [1] * 4, [30] * 4, [90], [1]):
        batch = Batch()
        for seq, n in zip(seqs, lengths, strict=False):
            pos = seq.length
            context.append(seq, n)
            batch.add(rng.integers(0, context.n_vocab, n).tolist(), seq, pos, n_outputs=n % 3)
        context.decode(batch)
    for seq in seqs:
        seq.free()


def check_exact(context: Context, plan: ModelPlan) -> None:
    """Check that all memory is as planned, before and after work."""
    for works in (True, False):
        uses = allocated(context)
        assert {m.buffer_type: m.total for m in planned(plan)} == used(context)
        for m in planned(plan):
            found = uses[m.buffer_type]
            assert m.weights == found[Usage.WEIGHTS]
            assert m.kv == found[Usage.ANY]
            assert m.compute == found[Usage.COMPUTE]
            assert m.work == found[Usage.WORK]
        if works:
            decode_all_kinds(context)
    assert context.no_pipeline == plan.no_pipeline


@contextmanager
def opened(plan: ModelPlan) -> Iterator[Context]:
    """The context of a plan, in strict mode."""
    with STRICT.set(1):
        context = load(plan)
        assert isinstance(context, Context)
        try:
            yield context
        finally:
            unload(context)


# --- plans are exact ---


@pytest.mark.parametrize(("path", "name"), combinations(FILES, CONFIGURATIONS), indirect=["path"])
def test_a_plan_is_exact(path: Path, name: str) -> None:
    plan = plan_of(path, **CONFIGURATIONS[name])
    with opened(plan) as context:
        check_exact(context, plan)
    model = load_model(path, plan.placement)
    # without the plan's reserved sizes
    with STRICT.set(1), Context(model, plan.params.context) as context:
        check_exact(context, plan)
    model.free()


@pytest.mark.parametrize("devices", [("none",), ("sim:1GiB:2",)], ids=str)
def test_a_plan_is_exact_without_fusion(deep: Path, devices: Sequence[str]) -> None:
    with NO_FUSION.set(1):
        plan = plan_of(deep, devices=devices)
        with opened(plan) as context:
            check_exact(context, plan)


def test_a_plan_is_exact_with_a_control_vector(deep: Path, tmp_path: Path) -> None:
    with open_gguf(deep, header_only=True) as file:
        hp = open_architecture(file).hp
    vectors = {f"direction.{il}": np.ones(hp.n_embd, np.float32) for il in (1, hp.n_layer - 1)}
    steer = write_control(tmp_path / "steer.gguf", vectors)
    devices = ("sim:1GiB:2",)
    plan = plan_of(deep, devices=devices, n_gpu_layers=2, control_vector=(steer,))
    with opened(plan) as context:
        assert len(context.model.control.directions) == 2
        check_exact(context, plan)


def test_a_pipeline_needs_enough_memory(deep: Path) -> None:
    params: Mapping[str, Any] = {"n_gpu_layers": -1, "tensor_split": (1.0, 1.0)}
    roomy = plan_of(deep, devices=("sim:1GiB:2",), **params)
    assert not roomy.no_pipeline
    needed = max(device.needed for device in roomy.devices[:-1])
    exact = plan_of(deep, devices=(sim(needed, 2),), **params)
    assert not exact.no_pipeline and exact.fits
    tight = plan_of(deep, devices=(sim(needed - 1, 2),), **params)
    assert tight.no_pipeline == "the pipeline's compute buffers do not fit" and tight.fits
    with opened(tight) as context:
        uses = {m.buffer_type: m.total for m in planned(tight)}
        assert uses == used(context)
        assert context.no_pipeline == tight.no_pipeline
    # if it does not fit without a pipeline either, the shortfall is without a pipeline
    small = plan_of(deep, devices=("sim:1KiB:2",), **params)
    assert small.no_pipeline and not small.fits


# --- loading ---


@pytest.mark.parametrize("n_gpus", [1, 2])
def test_an_exact_fit_is_loaded_and_one_byte_less_is_refused(deep: Path, n_gpus: int) -> None:
    params: Mapping[str, Any] = {"n_gpu_layers": -1, "tensor_split": (1.0,) * n_gpus}
    roomy = plan_of(deep, devices=(sim(1 << 30, n_gpus),), **params)
    needed = max(device.needed for device in roomy.devices[:-1])
    exact = plan_of(deep, devices=(sim(needed, n_gpus),), **params)
    enforce(exact)
    with opened(exact) as context:
        check_exact(context, exact)
        assert min(d.memory()[0] for d in context.model.devices[:-1]) == 0
    # without a pipeline it needs less: no copies
    model = load_model(deep, exact.placement)
    with Context(model, exact.params.context, no_pipeline="turned off") as context:
        needed = max(d.buffer_type.used for d in context.model.devices[:-1])
        context.model.free()
    short = plan_of(deep, devices=(sim(needed - 1, n_gpus),), **params)
    lacking = [d.shortfall for d in short.devices[:-1]]
    assert max(lacking) > 0 and not short.fits
    if n_gpus == 1:
        assert lacking == [1]
    with pytest.raises(DoesNotFitError, match=r"SIM\d lacks .*; what may help: fewer layers") as e:
        open_instance(open_params(deep, devices=(sim(needed - 1, n_gpus),), **SMALL, **params))
    assert isinstance(e.value, OutOfMemoryError)
    assert [name for name, _, _ in e.value.short] == [d.name for d in short.devices if d.shortfall]
    with pytest.raises(OutOfMemoryError):  # loading would fail
        load(short)


def test_a_model_is_loaded_as_planned_if_free_memory_changes(
    deep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(deep, devices=("sim:1GiB:2",), fit_target=0)
    assert plan.n_gpu_layers == plan.n_layers
    memory = SimDevice.memory

    def less_on_first(device: SimDevice) -> tuple[int, int]:
        free, total = memory(device)
        return (free // 8 if device.name == "SIM0" else free), total

    monkeypatch.setattr(SimDevice, "memory", less_on_first)
    with opened(plan) as context:
        check_exact(context, plan)


def test_host_memory_that_is_too_small_is_refused(
    deep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = plan_of(deep).devices[0].needed
    for free, fits in ((needed, True), (needed - 1, False)):
        monkeypatch.setattr(CpuDevice, "memory", lambda _, free=free: (free, 1 << 40))
        plan = plan_of(deep)
        assert plan.fits is fits
        if not fits:
            with pytest.raises(DoesNotFitError, match="CPU lacks 1 bytes"):
                enforce(plan)


def test_the_shortfall_of_two_gpus_is_without_a_pipeline(deep: Path) -> None:
    params: Mapping[str, Any] = {"n_gpu_layers": -1, "tensor_split": (1.0, 1.0)}
    roomy = plan_of(deep, devices=("sim:1GiB:2",), **params)
    tight = plan_of(deep, devices=("sim:1KiB:2",), **params)
    for with_copies, without in zip(roomy.devices[:-1], tight.devices[:-1], strict=True):
        assert without.needed < with_copies.needed


# --- placement ---


@pytest.fixture
def picky(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulated device does not support RMS_NORM."""
    ops = frozenset(Op) - {Op.RMS_NORM}

    def found(_names: object, cpu: CpuDevice, _progress: object = None) -> list[SimDevice]:
        return [SimDevice("SIM0", ops=ops, compute=cpu.new_compute)]

    monkeypatch.setattr(lookup, "find_devices", found)


@pytest.mark.usefixtures("picky")
def test_strict_placement(deep: Path, caplog: pytest.LogCaptureFixture) -> None:
    params = open_params(deep, **SMALL)
    plan = plan_model(params)
    assert plan.fits and plan.displaced
    with pytest.raises(PlacementError, match="RMS_NORM nodes run on CPU, not on SIM0"):
        open_instance(params.change(placement="strict"))
    caplog.clear()
    enforce(plan_model(params.change(placement="auto")))
    assert not caplog.messages
    enforce(plan)
    assert len(caplog.messages) == len({d.kind for d in plan.displaced})
    assert "RMS_NORM" in caplog.text


def test_the_plan_reports_overrides(deep: Path) -> None:
    overrides = (("ffn_down", "CPU"), ("ffn_(down|up)", "SIM0"), ("nothing", "CPU"))
    plan = plan_of(deep, devices=("sim",), overrides=overrides)
    n_bytes = 4 * 64 * 96  # one matrix
    assert plan.overrides == (
        OverridePlan("ffn_down", "CPU", N_LAYER, N_LAYER * n_bytes),
        # without the weights of the first pattern
        OverridePlan("ffn_(down|up)", "SIM0", N_LAYER, N_LAYER * n_bytes),
        OverridePlan("nothing", "CPU", 0, 0),
    )
    assert plan.devices[-1].n_bytes_read == N_LAYER * n_bytes
    assert plan.n_gpu_layers == plan.n_layers


def test_bytes_per_token(deep: Path) -> None:
    plan = plan_of(deep, devices=("sim",), n_gpu_layers=3)
    gpu, cpu = plan.devices
    kv = 2 * 2 * 2 * 16  # bytes of F16 keys and values per layer and token
    assert (gpu.n_bytes_kv, cpu.n_bytes_kv) == (2 * kv, (N_LAYER - 2) * kv)  # and the output
    assert plan.n_bytes_kv == N_LAYER * kv
    n_pages = SMALL["n_ctx"] // PAGE_SIZE + 1
    assert (
        sum(m.kv for d in plan.devices for m in d.memory) == n_pages * PAGE_SIZE * plan.n_bytes_kv
    )
    embedding = plan.n_bytes - gpu.n_bytes_read - cpu.n_bytes_read
    assert embedding == 4 * 64 * N_DEEP_VOCAB
    elsewhere = plan_of(deep, devices=("sim",), kv_offload=False)
    assert [d.n_bytes_kv for d in elsewhere.devices] == [0, N_LAYER * kv]


def test_an_override_that_matches_nothing_is_logged(
    deep: Path, caplog: pytest.LogCaptureFixture
) -> None:
    enforce(plan_of(deep, overrides=(("ffn_dwon", "CPU"), ("ffn_up", "CPU"))))
    assert [r.message for r in caplog.records] == ["-ot: no weight matches 'ffn_dwon'"]
    caplog.clear()
    enforce(plan_of(deep, n_cpu_moe=-1))
    assert [r.message for r in caplog.records] == [
        "--cpu-moe and --n-cpu-moe have no effect: the model has no experts"
    ]
