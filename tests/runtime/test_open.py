"""Opening a model: errors before the weights are read, and the properties of an instance."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from open_params import open_params
from tiny_models import TINY, write_model

from lamella.base.errors import LamellaError, ModelFileError, RequestError, UnsupportedModelError
from lamella.graph import GGMLType
from lamella.kernels import devices
from lamella.kernels.cpu import CpuDevice
from lamella.kernels.cuda.registry import CudaRegistry
from lamella.model.params import PlacementParams
from lamella.runtime import devices as lookup
from lamella.runtime import fit
from lamella.runtime.open import open_instance, open_model, opened
from lamella.runtime.plan import ModelPlan


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "tiny.gguf"
    write_model(TINY["llama-tied"], file, GGMLType.Q8_0)
    return file


@pytest.mark.parametrize(
    ("params", "complaint"),
    [
        ({"n_ctx": -1}, r"n_ctx is -1: must be 0 to"),
        ({"n_ctx": "x"}, "n_ctx is 'x': must be a whole number"),
        ({"n_batch": 0}, r"n_batch is 0: must be 1 to"),
        ({"n_ubatch": 1.5}, r"n_ubatch is 1\.5: must be a whole number"),
        ({"n_parallel": 0}, r"n_parallel is 0: must be 1 to 1024"),
        ({"n_threads": 0}, r"n_threads is 0: must be 1 to 512"),
        ({"n_threads_batch": 513}, r"n_threads_batch is 513: must be 1 to 512"),
        ({"poll": 101}, r"poll is 101: must be 0 to 100"),
        ({"n_gpu_layers": "all"}, "n_gpu_layers is 'all': must be a whole number"),
        ({"devices": "sim"}, "devices is 'sim': must be a list of names"),
        ({"devices": ["gpu"]}, "unknown device 'gpu'"),
        ({"split_mode": "row"}, "split_mode is 'row': must be one of layer, none"),
        ({"main_gpu": -1}, r"main_gpu is -1: must be 0 to"),
        (
            {"devices": ["sim"], "split_mode": "none", "main_gpu": 1},
            r"main_gpu is 1: there are 0 \(SIM0\)$",
        ),
        ({"type_k": "q9"}, "type_k is 'q9': must be one of f16, bf16, f32, q8_0"),
        ({"chat_template": "{% if %}"}, "line 1"),
    ],
)
def test_errors_come_before_the_weights_are_read(
    path: Path, params: dict[str, Any], complaint: str
) -> None:
    def on_load(done: int, total: int) -> None:
        raise AssertionError("weights were read")

    with pytest.raises(LamellaError, match=complaint) as caught:
        open_instance(open_params(path, **params), on_load=on_load)
    assert not isinstance(caught.value, ModelFileError)


def test_the_error_of_an_unsupported_vocabulary_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "bpe.gguf"
    write_model(TINY["llama"], file)
    key = b"tokenizer.ggml.model" + (8).to_bytes(4, "little") + (5).to_bytes(8, "little")
    file.write_bytes(file.read_bytes().replace(key + b"llama", key + b"bloom"))

    def on_load(done: int, total: int) -> None:
        raise AssertionError("weights were read")

    with pytest.raises(UnsupportedModelError, match=r"bpe\.gguf: .*'bloom'"):
        open_instance(open_params(file), on_load=on_load)


def test_the_caller_chooses_the_plan(path: Path) -> None:
    made: list[ModelPlan] = []

    def admit(plan_now: Callable[[], ModelPlan]) -> ModelPlan:
        made.extend(plan_now() for _ in range(2))
        return made[0]

    instance = open_model(open_params(path), admit=admit)
    instance.worker.close()
    assert instance.plan is made[0]
    assert made[0] is not made[1]


@pytest.mark.parametrize("names", [("none",), ("sim",)])
def test_metadata_does_not_depend_on_devices(path: Path, names: tuple[str, ...]) -> None:
    with open_instance(open_params(path, devices=names)) as instance:
        assert instance.alias == "tiny"
        assert instance.meta["ftype"] == "Q8_0"
        assert instance.meta["n_ctx_train"] == instance.n_ctx == 256
        assert instance.meta["n_params"] == 80192
        assert 0 < int(instance.meta["size"]) < path.stat().st_size


def test_split_mode_none_uses_the_main_gpu(path: Path) -> None:
    how: dict[str, Any] = {"devices": ("sim:1GiB:3",), "n_gpu_layers": -1, "n_ctx": 64}
    for mode, expected in (("layer", ["SIM0", "SIM1", "SIM2"]), ("none", ["SIM1"])):
        params = open_params(path, **how, split_mode=mode, main_gpu=1)
        with open_instance(params) as opened:
            assert [d.name for d in opened.context.model.devices] == [*expected, "CPU"]


@pytest.mark.parametrize(
    ("names", "logged"), [((), ["CUDA is not used: no driver"]), (("none",), []), (("sim",), [])]
)
def test_why_no_gpu_is_used(
    path: Path,
    names: tuple[str, ...],
    logged: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(devices, "find_cuda", lambda: CudaRegistry((), "no driver"))
    with (
        caplog.at_level(logging.INFO, "lamella"),
        open_instance(open_params(path, n_ctx=64, devices=names)),
    ):
        assert caplog.messages == logged


def test_a_late_error_closes_everything(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []

    def fail(*_: object, **__: object) -> None:
        raise RequestError("no engine")

    monkeypatch.setattr("lamella.runtime.open.Engine", fail)
    for method in ("model.context.Context.close", "model.loader.LoadedModel.free"):
        monkeypatch.setattr(f"lamella.{method}", lambda self: closed.append(type(self).__name__))
    with pytest.raises(RequestError, match="no engine"):
        open_instance(open_params(path))
    assert closed == ["Context", "LoadedModel"]


@pytest.mark.parametrize(
    ("given", "used", "warns"),
    [
        ({}, (4, 4), False),
        ({"n_threads": 2}, (2, 2), False),
        ({"n_threads": 2, "n_threads_batch": 5}, (2, 5), False),
        ({"n_threads_batch": 1}, (4, 1), False),
        ({"n_threads": 8}, (8, 8), False),
        ({"n_threads": 9}, (8, 8), True),
        ({"n_threads": 2, "n_threads_batch": 99}, (2, 8), True),
    ],
)
def test_threads(
    given: dict[str, Any],
    used: tuple[int, int],
    warns: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(lookup, "default_threads", lambda: 4)
    monkeypatch.setattr(lookup, "usable_cpus", lambda: 8)
    assert lookup._threads(PlacementParams(**given)) == used
    most = max(given.values(), default=0)
    expected = (
        [f"{most} threads were requested, but only 8 can run at once: using 8"] if warns else []
    )
    assert [r.message for r in caplog.records] == expected


def test_threads_and_polling_reach_the_cpu(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "usable_cpus", lambda: 3)
    params = open_params(path, n_ctx=64, n_threads=1, n_threads_batch=3, poll=7)
    with open_instance(params) as opened:
        cpu = opened.context.model.devices[-1]
        assert isinstance(cpu, CpuDevice)
        assert (cpu.n_threads, cpu.poll) == (3, 7)
        assert opened.params.placement.n_threads == 1
        assert opened.params.placement.n_threads_batch == 3


@pytest.mark.parametrize("draft", [{"draft_model": "tiny.gguf"}, {"draft_mtp": True}])
def test_a_context_without_requests_has_no_draft_model(
    path: Path,
    draft: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Not even room for one: what follows is measured alone."""
    monkeypatch.chdir(path.parent)
    plans = list[ModelPlan]()

    def plan_model(*args: Any) -> ModelPlan:
        plans.append(fit.plan_model(*args))
        return plans[-1]

    monkeypatch.setattr("lamella.runtime.open.plan_model", plan_model)
    (name,) = draft
    with caplog.at_level(logging.WARNING), opened(open_params(path, devices=("none",), **draft)):
        pass
    assert [plan.draft for plan in plans] == [None]
    assert caplog.messages == [f"{name}: nothing is guessed here: no draft model is loaded"]
