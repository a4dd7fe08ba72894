"""Pipeline parallelism: time of a prompt on two devices, with and without overlap.

    scripts/bench pipeline [--ubatches 8] [--trials 5] [--gflops 0.2]

Two simulated devices have half of a small model's layers each. They compute with the CPU's kernels,
then sleep until a device with this many GFLOPS would have finished the matrix products. So the
number of cores does not matter. Trials alternate between 4 copies of the graphs' inputs, with which
a ubatch starts on the first device while the one before it runs on the second, and 1 copy. For n
ubatches and two equally fast devices, overlap saves up to n - 1 of 2 n steps. If the bits of the
logits differ, the exit status is 1. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from make_model import write_model
from shapes import Shape
from weight_types import Type

from lamella.graph import Graph, Op, Tensor
from lamella.kernels.cpu import CpuDevice
from lamella.kernels.sim import SimDevice
from lamella.model.batch import Batch
from lamella.model.context import Context
from lamella.model.loader import LoadedModel, load_model
from lamella.model.params import ContextParams, PlacementParams
from lamella.model.placement import Placement

SHAPE = Shape(n_embd=64, n_ff=256, n_layer=8, n_head=4, n_head_kv=2, n_vocab=512)
N_UBATCH = 64


class SlowCompute:
    """Computes with `inner`, and takes as long as a device with `flops`."""

    def __init__(self, inner: Any, flops: float) -> None:
        self._inner = inner
        self._flops = flops

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def compile(self, graph: Graph, *args: Any) -> Callable[[], None]:
        program = self._inner.compile(graph, *args)
        seconds = sum(map(_n_flops, graph.nodes)) / self._flops

        def run() -> None:
            end = time.perf_counter() + seconds
            program()
            time.sleep(max(0.0, end - time.perf_counter()))

        return run


def _n_flops(node: Tensor) -> int:
    return 2 * node.src[0].ne[0] * math.prod(node.ne) if node.op is Op.MUL_MAT else 0


def open_model(path: Path, gflops: float) -> LoadedModel:
    cpu = CpuDevice(1)

    def compute() -> Any:
        return SlowCompute(cpu.new_compute(), 1e9 * gflops)

    devices = tuple(SimDevice(f"SIM{i}", compute=compute) for i in (0, 1))
    # half of the layers each; the output counts as a layer
    split = (SHAPE.n_layer / 2, SHAPE.n_layer / 2 + 1)
    return load_model(
        path, Placement(cpu=cpu, devices=devices, params=PlacementParams(tensor_split=split))
    )


def prefill(context: Context, tokens: Sequence[int]) -> tuple[float, bytes]:
    """Return the milliseconds of a prompt, and its last logits as bytes."""
    seq = context.pool.new_sequence()
    context.append(seq, len(tokens))
    batch = Batch()
    batch.add(list(tokens), seq, 0, n_outputs=1)
    begin = time.perf_counter()
    logits = context.decode(batch)
    seconds = time.perf_counter() - begin
    seq.free()
    return 1e3 * seconds, logits.tobytes()


def measure(model: LoadedModel, n_ubatches: int, trials: int) -> dict[str, Any]:
    """Return median milliseconds with and without overlap, and a comparison of the logits."""
    n_tokens = n_ubatches * N_UBATCH
    tokens = np.random.default_rng(0).integers(0, SHAPE.n_vocab, n_tokens).tolist()

    def open_context(pipeline: bool) -> Context:
        params = ContextParams(n_ctx=n_tokens, n_ubatch=N_UBATCH, n_parallel=1)
        return Context(model, params, no_pipeline="" if pipeline else "the benchmark disables it")

    with open_context(True) as four, open_context(False) as one:
        assert not four.no_pipeline, four.no_pipeline
        expected = prefill(one, tokens)[1]  # warm-up: builds the graphs
        times: dict[int, list[float]] = {4: [], 1: []}
        is_same = prefill(four, tokens)[1] == expected
        for _ in range(trials):
            for n_copies, context in ((4, four), (1, one)):
                ms, logits = prefill(context, tokens)
                times[n_copies].append(ms)
                is_same &= logits == expected
    return {
        "tokens": n_tokens,
        "ubatches": n_ubatches,
        "copies_4_ms": round(statistics.median(times[4]), 1),
        "copies_1_ms": round(statistics.median(times[1]), 1),
        "ratio": round(statistics.median(times[1]) / statistics.median(times[4]), 2),
        "same_bits": is_same,
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench pipeline", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--ubatches", type=int, default=8, help=f"number of ubatches of {N_UBATCH} tokens"
    )
    parser.add_argument("--trials", type=int, default=5, help="prompts with and without overlap")
    parser.add_argument("--gflops", type=float, default=0.2, help="speed of each device")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        write_model(SHAPE, Type.F32, path)
        model = open_model(path, args.gflops)
        try:
            found = measure(model, args.ubatches, args.trials)
        finally:
            model.free()
    n = found["ubatches"]
    print(f"prompt of {found['tokens']} tokens, {n} ubatches, 2 devices; medians")
    print(f"  4 copies of inputs  {found['copies_4_ms']:8.1f} ms")
    print(f"  1 copy              {found['copies_1_ms']:8.1f} ms")
    print(f"  ratio               {found['ratio']:8.2f}    at most {2 * n / (n + 1):.2f}")
    print(f"  bits of the logits  {'equal' if found['same_bits'] else 'NOT EQUAL':>8}")
    print(json.dumps({"bench": "pipeline", **found}))
    return 0 if found["same_bits"] else 1


if __name__ == "__main__":
    sys.exit(main())
