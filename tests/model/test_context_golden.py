"""Models from outside the repository against their goldens, on the CPU and a simulated GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from golden_data import STORIES, TINY, check_golden, golden_cases, model_path
from matrix import combinations, first

from lamella.base.settings import NO_JIT
from lamella.graph import GGMLType
from lamella.kernels.cpu import CpuDevice
from lamella.kernels.devices import find_devices
from lamella.model.batch import Batch
from lamella.model.context import Context
from lamella.model.loader import load_model
from lamella.model.params import ContextParams, PlacementParams
from lamella.model.placement import Placement


@contextmanager
def opened(
    name: str, n_gpu_layers: int = 0, *, repack: bool = True, **params: object
) -> Iterator[Context]:
    """Open a context of a model with `n_gpu_layers` on a simulated GPU."""
    type = GGMLType.F32 if name in TINY else GGMLType.F16
    defaults: dict[str, object] = {"type_k": type, "type_v": type}
    cpu = CpuDevice(repack=repack)
    devices = tuple(find_devices(["sim"] if n_gpu_layers else [], cpu))
    model = load_model(
        model_path(name),
        Placement(cpu=cpu, devices=devices, params=PlacementParams(n_gpu_layers=n_gpu_layers)),
    )
    try:
        with Context(model, ContextParams(**{**defaults, **params})) as context:  # type: ignore[arg-type]
            yield context
    finally:
        model.free()


def logits_of(context: Context, tokens: list[int]) -> np.ndarray:
    seq = context.pool.new_sequence()
    context.append(seq, len(tokens))
    batch = Batch()
    batch.add(tokens, seq, 0, n_outputs=len(tokens))
    try:
        return context.decode(batch)
    finally:
        seq.free()


def greedy(context: Context, prompt: list[int], n: int) -> list[int]:
    """Return `n` greedy tokens after a prompt, decoded one at a time."""
    seq = context.pool.new_sequence()
    tokens, found = prompt, list[int]()
    while len(found) < n:
        pos = seq.length
        context.append(seq, len(tokens))
        batch = Batch()
        batch.add(tokens, seq, pos, n_outputs=1)
        tokens = [int(context.decode(batch)[0].argmax())]
        found += tokens
    seq.free()
    return found


@pytest.mark.parametrize(("name", "n_gpu_layers"), combinations([*STORIES, *TINY], [0, 1, 3, 99]))
def test_logits_and_greedy_tokens(name: str, n_gpu_layers: int) -> None:
    cases = golden_cases(name)
    with opened(name, n_gpu_layers) as context:
        for case in cases:
            check_golden(name, case, logits_of(context, case["prompt_tokens"]))
            if name not in ("stories260K-Q8_0", "stories260K-Q4_0"):
                expected = case["greedy_tokens"]
                assert greedy(context, case["prompt_tokens"], len(expected)) == expected


@pytest.mark.parametrize("name", ["stories260K-F32", "tiny-qwen3moe"])
def test_the_numpy_twins_return_the_same_tokens(name: str) -> None:
    case = golden_cases(name)[0]
    with NO_JIT.set(1), opened(name) as context:
        check_golden(name, case, logits_of(context, case["prompt_tokens"]))
        assert greedy(context, case["prompt_tokens"], 8) == case["greedy_tokens"][:8]


@pytest.mark.parametrize("n_gpu_layers", first(3, (0, 3, 6, 1, 2, 4, 5)))
def test_bits_do_not_depend_on_the_split_of_layers(n_gpu_layers: int) -> None:
    # without repacking, as a simulated GPU does not repack
    tokens = golden_cases("stories260K-F32")[1]["prompt_tokens"]
    with opened("stories260K-F32", repack=False) as context:
        alone = logits_of(context, tokens)
    with opened("stories260K-F32", n_gpu_layers, repack=False) as context:
        assert logits_of(context, tokens).tobytes() == alone.tobytes()
