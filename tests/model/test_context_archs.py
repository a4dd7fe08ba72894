"""Golden models of all architectures in a context, with the compiled kernels of the CPU.

Ubatches are short, so that layers with windows give pages back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import pytest
from arch_goldens import GOLDENS, LIMITS, cases_of, check_case

from lamella.graph import GGMLType
from lamella.kernels.cpu import CpuDevice
from lamella.kernels.devices import find_devices
from lamella.model.batch import Batch
from lamella.model.context import Context
from lamella.model.kv_sequence import KVSequence
from lamella.model.loader import load_model
from lamella.model.params import ContextParams, PlacementParams
from lamella.model.placement import Placement

F32Array = npt.NDArray[np.float32]

# a model for each structure; others differ from one of these in numbers and names. --full: also
# those that combine parts of others
STRUCTURES = [
    pytest.param(f"tiny-{name}", marks=marks)
    for marks, names in (
        ((), ("apertus", "cohere2", "gemma4", "gemma4moe", "glm4moe", "gpt-oss", "gpt2", "llama4")),
        ((), ("minimax-m2", "deepseek2")),
        (pytest.mark.full, ("exaone4", "gemma2", "glm4", "granitemoe-shared", "mistral3", "olmo3")),
        (pytest.mark.full, ("phi3", "qwen2moe", "mistral4")),
    )
    for name in names
    if f"tiny-{name}" in GOLDENS
]
N_NEW = 8  # greedy tokens


@contextmanager
def opened(
    name: str, n_gpu_layers: int = 0, *, n_ctx: int = 512, repack: bool = True
) -> Iterator[Context]:
    """Open a context of a golden model with `n_gpu_layers` on a simulated GPU."""
    cpu = CpuDevice(repack=repack)
    devices = tuple(find_devices(["sim"] if n_gpu_layers else [], cpu))
    params = PlacementParams(n_gpu_layers=n_gpu_layers)
    model = load_model(GOLDENS[name], Placement(cpu=cpu, devices=devices, params=params))
    f32 = GGMLType.F32
    try:
        sizes = ContextParams(
            n_ctx=n_ctx, n_ubatch=48, n_parallel=2, swa_prefix=0, type_k=f32, type_v=f32
        )
        with Context(model, sizes) as context:
            yield context
    finally:
        model.free()


def logits_of(context: Context, seq: KVSequence, tokens: list[int]) -> F32Array:
    """Decode the next tokens of a sequence. Return the logits after each."""
    pos = seq.length
    context.append(seq, len(tokens))
    batch = Batch()
    batch.add(tokens, seq, pos, n_outputs=len(tokens))
    return context.decode(batch)


@pytest.mark.parametrize("name", GOLDENS)
def test_log_probabilities_and_greedy_tokens(name: str, pytestconfig: pytest.Config) -> None:
    cases = cases_of(GOLDENS[name])  # --full: also the shorter prompts
    for case in cases if pytestconfig.getoption("--full") else cases[-1:]:
        tokens, wanted = case["prompt_tokens"], case["greedy_tokens"]
        with opened(name, n_ctx=case.get("n_ctx", 512)) as context:
            seq = context.pool.new_sequence()
            logits = logits_of(context, seq, tokens)
            check_case(name, case, logits)
            n_new = 0 if name in LIMITS else min(N_NEW, len(wanted), context.n_ctx - len(tokens))
            found = []
            for _ in range(n_new):
                found.append(int(logits[-1].argmax()))
                logits = logits_of(context, seq, found[-1:])
            assert found == wanted[:n_new]
            seq.free()


@pytest.mark.parametrize("name", STRUCTURES)
def test_bits_depend_neither_on_the_batch_nor_on_the_split(name: str) -> None:
    *_, case = cases_of(GOLDENS[name])
    tokens, n_ctx = case["prompt_tokens"][:120], case.get("n_ctx", 512)
    # without repacking, as a simulated GPU does not repack
    with opened(name, n_ctx=n_ctx, repack=False) as context:
        alone = logits_of(context, context.pool.new_sequence(), tokens)
    with opened(name, 2, n_ctx=n_ctx, repack=False) as context:
        first, second = context.pool.new_sequence(), context.pool.new_sequence()
        context.append(first, len(tokens))
        context.append(second, len(tokens))
        rows = []
        for begin, end in ((0, 7), (7, 90), (90, 91), (91, 120)):
            batch = Batch()
            batch.add(tokens[: end - begin], second, begin)
            batch.add(tokens[begin:end], first, begin, n_outputs=end - begin)
            rows.append(context.decode(batch))
    assert np.concatenate(rows).tobytes() == alone.tobytes()
