"""Automatic choices of layers, experts and contexts are the most that fits."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from make_model import write_model as make_model
from open_params import open_params
from planning import CONFIGURATIONS, N_CTX, N_DEEP_VOCAB, N_LAYER, plan_of, sim, write_deep
from shapes import SHAPES
from tiny_models import TINY, write_model
from weight_types import Type

from lamella.base.errors import DoesNotFitError, RequestError
from lamella.base.units import size_text
from lamella.graph import Op
from lamella.kernels.cpu import CpuDevice
from lamella.kernels.sim import SimDevice
from lamella.model.gguf import open_gguf
from lamella.model.params import FIT_TARGET
from lamella.runtime import devices as lookup
from lamella.runtime import trial
from lamella.runtime.check import enforce
from lamella.runtime.fit import CTX_STEP, MIB, plan_model
from lamella.runtime.plan import (
    DevicePlan,
    MeasuredModel,
    ModelPlan,
    open_measured,
    plan_devices,
)


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_deep(tmp_path_factory.mktemp("deep"))


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that was trained with a long context."""
    path = tmp_path_factory.mktemp("long") / "long.gguf"
    write_model(replace(TINY["llama"], n_ctx=40000), path)
    return path


# --- as many layers as fit ---


def needed_by_layers(path: Path, devices: str, **params: Any) -> list[list[int]]:
    """Bytes on each device, with each number of layers there."""
    plan = plan_of(path, devices=(devices,), n_gpu_layers=0, **params)
    found = []
    for n in range(plan.n_layers + 1):
        plan = plan_of(path, devices=(devices,), n_gpu_layers=n, **params)
        assert plan.n_gpu_layers == n
        found.append([d.needed for d in plan.devices[:-1]])
    return found


@pytest.mark.parametrize(
    "shares", [None, pytest.param((3.0, 1.0), marks=pytest.mark.full), (1.0, 5.0)], ids=str
)
def test_as_many_layers_as_fit(deep: Path, shares: tuple[float, ...] | None) -> None:
    """The first of two devices needs less with more layers, when the second gets the output."""
    n_gpus = len(shares or "1")
    params: Mapping[str, Any] = {"tensor_split": shares, "fit_target": 0}
    # without a pipeline: the pipeline is turned off before layers leave
    needed = needed_by_layers(deep, sim(1 << 30, n_gpus), **params)
    sizes = sorted({n for row in needed[:-1] for n in row})
    if shares is None:
        sizes += [0, *(size - 1 for size in sizes if size), 1 << 29]
    for size in sizes:
        most = max(n for n, row in enumerate(needed[:-1]) if all(s <= size for s in row))
        plan = plan_of(deep, devices=(sim(max(size, 1), n_gpus),), **params)
        assert plan.fits
        assert plan.is_reduced is (plan.n_gpu_layers < plan.n_layers)
        if not plan.is_reduced:
            assert all("one after the other" in note for note in plan.notes)
        else:
            assert plan.n_gpu_layers == most
            assert plan.choice.startswith(f"{most} of {plan.n_layers} layers on SIM0")


def test_fit_target(deep: Path) -> None:
    needed = needed_by_layers(deep, "sim")
    n = len(needed) - 2
    for spare, chosen in ((0, n), (-1, n - 1)):
        memory = sim(needed[n][0] + (3 << 20) + spare)
        plan = plan_of(deep, devices=(memory,), fit_target=3)
        assert plan.n_gpu_layers == chosen
        assert plan.devices[0].free - plan.devices[0].needed >= 3 << 20
    assert plan_of(deep, devices=("sim:1000MiB",)).n_gpu_layers == 0  # 1 GiB by default
    assert plan_of(deep, devices=("sim:2GiB",)).n_gpu_layers == len(needed) - 1


def test_fit_targets_of_several_devices(deep: Path) -> None:
    params: Mapping[str, Any] = {"devices": ("sim:8MiB:2",), "tensor_split": (1.0, 1.0)}
    sizes = [d.needed for d in plan_of(deep, **params, fit_target=0).devices[:-1]]
    spare = [(8 << 20) - size >> 20 for size in sizes]
    for targets, fits in (
        (spare, True),
        ([spare[0], spare[1] + 1], False),
        ([spare[0] + 1, spare[1]], False),
        (min(spare), True),
        (max(spare) + 1, False),
        ([0], True),
        ([0, 0], True),
        (spare[:1], spare[0] <= spare[1]),
    ):
        plan = plan_of(deep, **params, fit_target=targets)
        assert (not plan.is_reduced) is fits, targets
    with pytest.raises(RequestError, match="fit_target has 3 sizes for 2 devices"):
        plan_of(deep, **params, fit_target=[1, 2, 3])
    for wrong in (-1, [1, -1], [], 0.5):
        with pytest.raises(RequestError, match=r"fit_target is .*: must be"):
            plan_of(deep, **params, fit_target=wrong)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if i % 4 == 1 else pytest.mark.full)
        for i, name in enumerate(CONFIGURATIONS)
    ],
)
def test_a_sketch_needs_no_more_than_the_plan(deep: Path, name: str) -> None:
    plan = plan_of(deep, **CONFIGURATIONS[name])
    with open_gguf(deep) as file:
        sketch = open_measured(file, plan.placement, plan.params.context, sketch=True)
    pairs = zip(plan_devices(sketch), plan.devices, strict=True)
    assert all(sketched.needed <= planned.needed for sketched, planned in pairs)


def test_a_sketch_that_is_too_small_does_not_change_the_plan(
    deep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(measured: MeasuredModel) -> Sequence[DevicePlan]:
        return [replace(device, memory=()) for device in plan_devices(measured)]

    monkeypatch.setattr(trial, "plan_devices", nothing)
    needed = needed_by_layers(deep, "sim")
    for n in (1, N_LAYER):
        plan = plan_of(deep, devices=(sim(needed[n][0]),), fit_target=0)
        assert (plan.n_gpu_layers, plan.fits) == (n, True)


@pytest.mark.parametrize("n", [0, 3, -1])
def test_a_given_number_of_layers_never_changes(deep: Path, n: int) -> None:
    plan = plan_of(deep, devices=("sim:1KiB",), n_gpu_layers=n)
    assert plan.n_gpu_layers == (plan.n_layers if n < 0 else n)
    assert plan.fits is (n == 0)
    assert not plan.notes and not plan.choice


# --- contexts ---


def test_context_sizes(deep: Path) -> None:
    def planned(n_ctx: int | None, free: int = 1 << 30, **params: Any) -> ModelPlan:
        options = {"n_gpu_layers": -1, "fit_target": 0, **params}
        return plan_of(deep, n_ctx=n_ctx, devices=(sim(free),), **options)

    assert planned(0).n_ctx == N_CTX == planned(0).n_ctx_train
    assert planned(768).n_ctx == 768
    whole, half = planned(0).devices[0].needed, planned(N_CTX // 2).devices[0].needed
    assert half < whole
    # it never gets smaller than requested, and not with -fit off
    for n_ctx, fit in ((0, False), (0, True), (N_CTX, True), (None, False)):
        plan = planned(n_ctx, half, fit=fit)
        assert (plan.n_ctx, plan.fits, plan.choice) == (N_CTX, False, "")
    assert planned(None, whole).n_ctx == N_CTX
    for free, n_ctx in ((half, N_CTX // 2), (half - 1, N_CTX // 2 - CTX_STEP)):
        plan = planned(None, free, fit_ctx=CTX_STEP)
        assert (plan.n_ctx, plan.fits, plan.is_reduced) == (n_ctx, True, True)
        start = f"context {n_ctx} of {N_CTX} trained, as {N_CTX} does not fit: -c 0 for all of it"
        assert plan.choice.startswith(start)


@pytest.mark.parametrize("fit_ctx", [CTX_STEP, 1000, 4096, 3 * N_CTX])
def test_the_context_is_never_smaller_than_fit_ctx(deep: Path, fit_ctx: int) -> None:
    """If not even the smallest context fits, the model is refused, with advice."""
    plan = plan_of(
        deep, n_ctx=None, devices=("sim:1024KiB",), n_gpu_layers=-1, fit_target=0, fit_ctx=fit_ctx
    )
    assert (plan.n_ctx, plan.fits) == (min(fit_ctx, N_CTX), False)
    assert "-c 0" not in plan.choice  # it needs even more
    with pytest.raises(
        DoesNotFitError, match=r"SIM0 lacks .*what may help: .*more memory for SIM0"
    ):
        enforce(plan)


def test_the_default_context_does_not_change_the_factors_of_rope(tmp_path: Path) -> None:
    """Otherwise the text would depend on free memory."""
    tiny = replace(
        TINY["llama"], arch="phi3", n_ctx=40000, rope={"scaling.original_context_length": 2048}
    )
    factors = {f"rope_factors_{kind}.weight": np.ones(8, np.float32) for kind in ("long", "short")}
    write_model(tiny, tmp_path / "m.gguf", replace=factors)
    plan = plan_of(tmp_path / "m.gguf", n_ctx=None, fit_ctx=4096)
    assert plan.n_ctx == 2048
    assert plan.choice.endswith("; short factors of rope, for contexts up to 2048")
    plan = plan_of(tmp_path / "m.gguf", n_ctx=2049)
    assert plan.choice == "long factors of rope, for contexts above 2048"


@pytest.mark.parametrize(("n_parallel", "n_ctx"), [(1, 8192), (3, 24576), (64, 40000)])
def test_the_default_context(long: Path, n_parallel: int, n_ctx: int) -> None:
    plan = plan_of(long, n_ctx=None, n_parallel=n_parallel)
    assert (plan.n_ctx, plan.n_ctx_train, plan.is_reduced) == (n_ctx, 40000, False)
    assert plan.params.context.n_ctx == n_ctx
    whole = plan_of(long, n_ctx=0, n_parallel=n_parallel)
    assert (whole.n_ctx, whole.choice) == (40000, "")
    if n_ctx == 40000:
        assert plan.choice == ""
    else:
        start, _, size = plan.choice.rpartition(", needs ")
        assert start == f"context {n_ctx} of 40000 trained: -c 0 for all of it"
        expected = size_text(whole.devices[0].needed).split()
        assert size.split()[1] == expected[1]
        assert float(size.split()[0]) == pytest.approx(float(expected[0]), rel=0.01)


def test_a_model_with_a_long_context_starts_with_little_memory(
    long: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    least, most = (plan_of(long, n_ctx=n, n_parallel=1).devices[0].needed for n in (4096, 8192))
    for free, n_ctx, fits in ((most, 8192, True), (least, 4096, True), (least - 1, 4096, False)):
        monkeypatch.setattr(CpuDevice, "memory", lambda _, free=free: (free, 1 << 40))
        plan = plan_of(long, n_ctx=None, n_parallel=1)
        assert (plan.n_ctx, plan.fits) == (n_ctx, fits)


def test_the_context_shrinks_before_layers_leave(deep: Path) -> None:
    floor = 4096

    def planned(free: int, **params: Any) -> ModelPlan:
        options = {"n_ctx": None, "fit_target": 0, **params}
        return plan_of(deep, devices=(sim(free),), **options)

    all_layers = [
        planned(1 << 30, n_ctx=n_ctx, n_gpu_layers=-1).devices[0].needed
        for n_ctx in (floor, floor + CTX_STEP)
    ]
    plan = planned(all_layers[1])
    assert (plan.n_ctx, plan.n_gpu_layers) == (floor + CTX_STEP, plan.n_layers)
    plan = planned(all_layers[0])
    assert (plan.n_ctx, plan.n_gpu_layers) == (floor, plan.n_layers)
    plan = planned(all_layers[0] - 1)
    assert plan.n_gpu_layers == plan.n_layers - 1
    # a layer less leaves room for a part of the context
    assert floor < plan.n_ctx < N_CTX
    more = {"n_ctx": plan.n_ctx + CTX_STEP, "n_gpu_layers": plan.n_gpu_layers}
    assert not planned(all_layers[0] - 1, **more).fits
    assert plan.choice.endswith(f"; {N_LAYER} of {N_LAYER + 1} layers on SIM0: more does not fit")
    assert plan.fits and plan.is_reduced


@pytest.mark.parametrize(
    ("shape", "free", "params", "n_ctx"),
    [
        ("1b", 4.3, {"n_parallel": 1}, 8192),
        ("1b", 4.3, {}, 32768),
        ("8b", 10, {"n_parallel": 1}, 8192),  # a laptop with 16 GB
        ("8b", 20, {"n_parallel": 1, "devices": ("sim:8GiB",)}, 8192),
    ],
)
def test_models_that_were_trained_with_long_contexts_fit(
    shape: str,
    free: float,
    params: Mapping[str, Any],
    n_ctx: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "header.gguf"
    sizes = replace(SHAPES[shape], n_ctx=131072)
    make_model(sizes, Type.Q4_0, path, header_only=True)
    monkeypatch.setattr(CpuDevice, "memory", lambda _: (int(free * 2**30), 1 << 40))
    plan = plan_model(open_params(path, **{"devices": ("none",), **params}))
    assert (plan.n_ctx, plan.fits, plan.is_reduced) == (n_ctx, True, False)
    assert plan.choice.startswith(f"context {n_ctx} of 131072 trained: -c 0 for all of it, needs ")
    if plan.placement.devices:
        assert plan.n_gpu_layers == plan.n_layers == 33


def test_experts_leave_before_the_context_shrinks(tmp_path: Path) -> None:
    path = tmp_path / "experts.gguf"
    write_model(replace(TINY["mixtral"], n_layer=2, n_ctx=N_CTX), path)

    def planned(free: int, **params: Any) -> ModelPlan:
        return plan_of(path, devices=(sim(free),), **{"n_ctx": None, "fit_target": 0, **params})

    needed = [planned(1 << 30, n_cpu_moe=n).devices[0].needed for n in range(3)]
    assert needed == sorted(needed, reverse=True) and needed[2] < needed[0]
    for n, size in enumerate(needed):
        plan = planned(size)
        assert (plan.params.placement.n_cpu_moe, plan.n_ctx, plan.fits) == (n, N_CTX, True)
        assert plan.n_gpu_layers == plan.n_layers
        said = f"experts of {n} of 2 layers on CPU: more does not fit"
        assert plan.choice == (said if n else "")
    # then the context shrinks, then layers leave
    plan = planned(needed[2] - 1)
    assert (plan.params.placement.n_cpu_moe, plan.n_gpu_layers) == (2, plan.n_layers)
    assert 4096 <= plan.n_ctx < N_CTX
    least = planned(1 << 30, n_cpu_moe=-1, n_ctx=4096).devices[0].needed
    plan = planned(least - 1)
    assert (plan.n_gpu_layers, plan.fits) == (plan.n_layers - 1, True)
    assert 4096 < plan.n_ctx <= N_CTX
    # values that are set do not change
    for given in ({"n_cpu_moe": 0}, {"overrides": (("ffn_gate_inp", "SIM0"),)}):
        plan = planned(needed[1], **given)
        assert (plan.params.placement.n_cpu_moe, plan.n_ctx < N_CTX) == (0, True)


def test_a_short_context_never_grows(tmp_path: Path) -> None:
    """The trained context is shorter than CTX_STEP."""
    path = tmp_path / "short.gguf"
    write_model(replace(TINY["llama"], n_ctx=CTX_STEP // 2), path)
    small = {"n_ctx": None, "devices": ("sim:1KiB",), "n_gpu_layers": -1}
    plan = plan_of(path, **small)
    assert plan.n_ctx == plan.n_ctx_train == CTX_STEP // 2 and not plan.fits


def test_layers_that_leave_the_gpu_must_fit_on_the_cpu(
    deep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The context also shrinks for the memory of the CPU."""
    none = plan_of(deep, n_ctx=N_CTX, devices=("none",)).devices[-1].needed
    monkeypatch.setattr(CpuDevice, "memory", lambda _: (none - 1, 1 << 40))
    plan = plan_of(deep, n_ctx=None, devices=("sim:1KiB",), fit_target=0)
    assert (plan.n_gpu_layers, plan.n_ctx, plan.fits) == (0, N_CTX - CTX_STEP, True)


def test_embeddings_leave_a_gpu_that_gathers_first(
    deep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def needed(**params: Any) -> int:
        return (
            plan_of(deep, **{"devices": ("sim",), "n_gpu_layers": -1, **params}).devices[0].needed
        )

    on_cpu, on_gpu = needed(), needed(embd_offload=True)
    assert on_gpu - on_cpu > N_DEEP_VOCAB * 64
    monkeypatch.setattr(SimDevice, "gathers", True)
    assert needed() == on_gpu
    assert needed(embd_offload=False) == needed(fit=False) == on_cpu
    for memory, taken in ((on_gpu, on_gpu), (on_gpu - 1, on_cpu), (on_cpu, on_cpu)):
        plan = plan_of(deep, devices=(sim(memory),), fit_target=0)
        assert (plan.devices[0].needed, plan.n_gpu_layers) == (taken, plan.n_layers)
        assert not plan.is_reduced and plan.choice == ""
    plan = plan_of(deep, devices=(sim(on_gpu - 1),), fit_target=0, embd_offload=True)
    assert plan.n_gpu_layers < plan.n_layers and plan.fits  # what is set never changes


def test_a_draft_model_has_its_own_choice_of_embeddings(
    deep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without room for both embeddings, those of the draft model leave the GPU, not its layers."""
    monkeypatch.setattr(SimDevice, "gathers", True)
    given = {"n_gpu_layers": -1, "draft_model": str(deep)}
    both = plan_of(deep, devices=("sim",), **given)
    assert both.draft is not None
    needed = both.devices[0].needed + both.draft.devices[0].needed + FIT_TARGET * MIB
    for lacking in (0, 1):
        small = plan_of(deep, devices=(sim(needed - lacking),), **given)
        assert small.draft is not None
        plans = (small, small.draft)
        assert all(plan.n_gpu_layers == plan.n_layers and plan.fits for plan in plans)
        found = [plan.params.placement.embd_offload for plan in plans]
        assert found == [True, not lacking]


@pytest.mark.parametrize("n", [None, -1])
def test_without_fit_nothing_changes(deep: Path, n: int | None) -> None:
    plan = plan_of(deep, n_ctx=None, devices=("sim:1KiB",), n_gpu_layers=n, fit=False)
    assert (plan.n_gpu_layers, plan.n_ctx, plan.fits) == (plan.n_layers, N_CTX, False)
    assert not plan.is_reduced


# --- regressions ---


def test_the_context_does_not_shrink_for_an_impossible_fit_target(deep: Path) -> None:
    needed = plan_of(deep, n_ctx=0, devices=("sim",), n_gpu_layers=-1).devices[0].needed
    small = (sim(needed),)  # less than the 1024 MiB of --fit-target
    plan = plan_of(deep, n_ctx=None, devices=small, n_gpu_layers=-1)
    assert (plan.n_ctx, plan.fits, plan.choice) == (N_CTX, True, "")
    plan = plan_of(deep, n_ctx=None, devices=small)  # no layer fits
    assert (plan.n_ctx, plan.n_gpu_layers, plan.fits) == (N_CTX, 0, True)
    assert plan.choice.endswith(
        "layers on SIM0: more does not fit (--fit-target keeps 1024 MiB free on each device)"
    )


def test_advice_has_only_what_can_help(deep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = plan_of(deep, n_ctx=N_CTX).devices[0].needed

    def advice(lacking: int) -> str:
        monkeypatch.setattr(CpuDevice, "memory", lambda _: (needed - lacking, 1 << 40))
        with pytest.raises(DoesNotFitError) as e:
            enforce(plan_of(deep, n_ctx=N_CTX))
        return e.value.advice

    some = advice(1 << 20)
    [n_ctx] = re.findall(r"a smaller context \(-c (\d+) saves 1.0\d MiB, enough\)", some)
    assert plan_of(deep, n_ctx=int(n_ctx)).fits
    assert re.search(r"q8_0 keys and values \(-ctk q8_0 -ctv q8_0 saves 1.4\d MiB, enough\)", some)
    assert plan_of(deep, n_ctx=N_CTX, type_k="q8_0", type_v="q8_0").fits
    assert re.search(r"a smaller quantization or model \(.* 1.00 MiB more memory for CPU$", some)
    some = advice(2 << 20)
    assert "enough" in some and "q8_0" not in some  # which saves less, and nothing adds to it
    some = advice(294 * 2**20 // 100)
    assert "-c 512 saves" in some and "q8_0" in some and "enough" not in some  # both together
    assert advice(needed - 1000) == f"{size_text(needed - 1000)} more memory for CPU"


def test_a_set_fit_target_that_is_impossible_is_reported(deep: Path) -> None:
    params: Mapping[str, Any] = {"devices": ("sim:64MiB",), "n_gpu_layers": -1}
    plan = plan_of(deep, n_ctx=None, **params, fit_target=[2048])
    note = "--fit-target 2048 is ignored: the model does not fit with that much memory free"
    assert (plan.fits, plan.notes) == (True, (note,))
    for target in (None, [1], [0]):  # the default is a wish
        assert not plan_of(deep, n_ctx=None, **params, fit_target=target).notes


def test_a_set_op_offload_never_changes(deep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(_names: object, cpu: CpuDevice, _progress: object = None) -> list[SimDevice]:
        ops = {Op.MUL_MAT}
        return [SimDevice("SIM0", memory=1000, offload_ops=ops, compute=cpu.new_compute)]

    monkeypatch.setattr(lookup, "find_devices", found)
    plan = plan_of(deep)
    assert (plan.n_gpu_layers, plan.placement.params.op_offload, plan.fits) == (0, False, True)
    assert plan.notes == ("SIM0 cannot run large batches for the CPU: op offload does not fit",)
    plan = plan_of(deep, op_offload=True)
    assert (plan.n_gpu_layers, plan.placement.params.op_offload, plan.fits) == (0, True, False)
    with pytest.raises(DoesNotFitError, match=r"SIM0 lacks .* \(--no-op-offload\)"):
        enforce(plan)
    plan = plan_of(deep, op_offload=False)
    assert (plan.fits, plan.notes) == (True, ())
