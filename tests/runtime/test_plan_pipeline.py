"""Plans of contexts whose devices compute as a pipeline: their memory, and when it is off."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from open_params import open_params
from tiny_models import N_VOCAB, TINY, Tiny, write_model

from lamella.base.settings import STRICT
from lamella.graph import GGMLType
from lamella.model.batch import Batch
from lamella.model.context import Context
from lamella.model.gguf import open_gguf
from lamella.runtime.check import enforce
from lamella.runtime.fit import plan_model
from lamella.runtime.instance import unload
from lamella.runtime.open import load
from lamella.runtime.params import OpenParams
from lamella.runtime.plan import ModelPlan, open_measured

TEXT: list[int] = np.random.default_rng(11).integers(0, N_VOCAB, 200).tolist()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_model(Tiny(arch="llama", n_layer=3), path)
    return path


PLANS: Mapping[str, Mapping[str, Any]] = {
    "two": {"devices": ("sim:1GiB:2",)},
    "three": {"devices": ("sim:1GiB:3",), "tensor_split": (1.0, 2.0, 1.0)},
    "one has all": {"devices": ("sim:1GiB:2",), "tensor_split": (1.0, 0.0)},
    "large ubatches": {"devices": ("sim:1GiB:2",), "n_ubatch": 512, "n_parallel": 7},
    "off": {"devices": ("sim:1GiB:2",), "kv_offload": False},
}


def params_of(path: Path, **changes: Any) -> OpenParams:
    params = {"n_ctx": 512, "n_ubatch": 64, "n_threads": 1, "n_gpu_layers": -1, "fit_target": 0}
    return open_params(path, **{**params, **changes})


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("type", [GGMLType.F32, GGMLType.Q8_0], ids=lambda t: t.name)
def test_plans_are_exact(tmp_path: Path, name: str, type: GGMLType) -> None:
    path = tmp_path / "tiny.gguf"
    write_model(TINY["mixtral"], path, type)
    plan = plan_model(params_of(path, **PLANS[name]))
    assert (plan.no_pipeline == "") is (name != "off")
    assert_exact(plan)


def assert_exact(plan: ModelPlan) -> None:
    """Compare a plan with the allocated memory, before and after prompts of several ubatches."""
    with STRICT.set(1):
        context = load(plan)
        assert isinstance(context, Context)
        try:
            for _ in range(2):
                planned = {d.name: d.needed for d in plan.devices[:-1]}
                used = {d.name: d.buffer_type.used for d in plan.placement.devices}
                assert planned == {name: n for name, n in used.items() if n}
                assert context.no_pipeline == plan.no_pipeline
                seq = context.pool.new_sequence()
                for n, n_outputs in ((200, 0), (70, 1), (1, 1), (64, 3)):
                    context.append(seq, n)
                    batch = Batch()
                    batch.add(TEXT[:n], seq, seq.length - n, n_outputs)
                    context.decode(batch)
                seq.free()
        finally:
            unload(context)


def test_a_plan_disables_the_pipeline_if_it_does_not_fit(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The context does the same. With one byte more, the pipeline is on."""

    def plan_with(memory: int, **changes: str) -> ModelPlan:
        return plan_model(params_of(path, devices=(f"sim:{memory / 1024!r}KiB:2",), **changes))

    enough = max(d.needed for d in plan_with(1 << 30).devices[:-1])
    assert plan_with(enough).no_pipeline == ""
    plan = plan_with(enough - 1, placement="strict")
    assert plan.no_pipeline == "the pipeline's compute buffers do not fit"
    with caplog.at_level(logging.WARNING, "lamella"):
        enforce(plan)
    assert (
        "ubatches run one after the other: the pipeline's compute buffers do not fit" in caplog.text
    )
    assert_exact(plan)


def test_a_plan_counts_the_copies(path: Path) -> None:
    """There are four copies of the inputs on every device that reads them."""
    plan = plan_model(params_of(path, devices=("sim:1GiB:2",)))
    for off, n_copies in (("", 4), ("it was turned off", 1)):
        with open_gguf(path, header_only=True) as file:
            measured = open_measured(file, plan.placement, plan.params.context, no_pipeline=off)
        scheduled = measured.context.plan_graph(64, 1)
        assert {len(copies) for copies in scheduled.copies.values()} == {n_copies}
