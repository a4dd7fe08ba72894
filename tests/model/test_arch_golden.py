"""Every architecture against golden models, with NumPy's kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from arch_goldens import FOLDER, GOLDENS, cases_of, check_case
from arch_run import Runner
from matrix import first

from lamella.base.errors import RequestError
from lamella.kernels.sim import SimDevice
from lamella.model.arch import open_architecture
from lamella.model.context import Context
from lamella.model.gguf import open_gguf
from lamella.model.kv_sequence import KVSequence
from lamella.model.loader import load_model
from lamella.model.params import ContextParams, PlacementParams
from lamella.model.placement import Placement
from lamella.sched import DeviceType

Open = Callable[[Path, int, int], Runner]


@pytest.fixture
def opened() -> Iterator[Open]:
    """Open models on the CPU and a simulated GPU, and close them afterwards."""
    runners: list[Runner] = []

    def start(path: Path, n_gpu_layers: int, n_ctx: int) -> Runner:
        devices = (SimDevice("SIM0"),) if n_gpu_layers else ()
        cpu = SimDevice("CPU", DeviceType.CPU)
        params = PlacementParams(n_gpu_layers=n_gpu_layers)
        placement = Placement(cpu=cpu, devices=devices, params=params)
        runners.append(Runner(load_model(path, placement), n_ctx))
        return runners[-1]

    yield start
    for runner in runners:
        runner.close()


def test_golden_models_are_there() -> None:
    if not FOLDER.exists():
        pytest.skip(f"no golden data: {FOLDER} is absent")
    assert len(GOLDENS) > 0


@pytest.mark.parametrize("name", first(5, GOLDENS))
def test_log_probabilities(name: str, opened: Open) -> None:
    for case in cases_of(GOLDENS[name]):
        tokens = case["prompt_tokens"]
        runner = opened(GOLDENS[name], 0, case.get("n_ctx", len(tokens)))
        check_case(name, case, runner.prompt(tokens))


@pytest.mark.parametrize("name", GOLDENS)
def test_all_keys_are_read(name: str) -> None:
    with open_gguf(GOLDENS[name]) as file:
        assert open_architecture(file).notes(n_ctx=512) == []


@pytest.mark.parametrize("name", first(5, GOLDENS))
def test_chunks_and_devices_do_not_change_bits(name: str, opened: Open) -> None:
    case = cases_of(GOLDENS[name])[:2][-1]
    tokens, n_ctx = case["prompt_tokens"][:64], case.get("n_ctx", 64)
    whole = opened(GOLDENS[name], 0, n_ctx).prompt(tokens)
    assert np.array_equal(opened(GOLDENS[name], 2, n_ctx).prompt(tokens, chunk=17), whole)


def test_a_sequence_has_at_most_the_positions_of_the_model() -> None:
    """GPT-2 has learned embeddings of 512 positions."""
    if "tiny-gpt2" not in GOLDENS:
        pytest.skip("no golden data of gpt2")
    model = load_model(GOLDENS["tiny-gpt2"], Placement(cpu=SimDevice("CPU", DeviceType.CPU)))
    with Context(model, ContextParams(n_ctx=1024, n_parallel=2)) as context:
        assert (context.n_ctx, context.n_ctx_seq) == (1024, 512)
        assert "at most 512" in model.arch.notes(1024)[0]
        sequence = KVSequence(context.pool)
        context.append(sequence, 512)
        with pytest.raises(RequestError, match=r"513 tokens.*512 positions"):
            context.append(sequence, 1)
    model.free()
