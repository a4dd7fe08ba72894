"""Time of scheduling a graph: split, causes, allocation.

    scripts/bench sched [--nodes 1000] [--trials 30]

Builds a llama-shaped graph on two null GPUs and a null CPU, and measures `Scheduler.alloc_graph`:
with a new plan (`reserved: no`, as for the first graph) and with a reserved layout that fits
(`reserved: yes`). Weights are placed by layer, half of the layers on each GPU, or scattered over
all three devices, which makes hundreds of splits. The last line is JSON.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import math
import random
import statistics
import time

from lamella.alloc import Usage, alloc_tensors
from lamella.graph import GGMLType, Graph, Tensor, ops
from lamella.sched import Backend, DeviceType, NullBufferType, NullDevice, Scheduler

N_EMBD, N_FF, N_VOCAB, N_TOKENS = 256, 512, 1024, 8


class Model:
    """A llama-shaped model without data. `graph()` builds a new graph."""

    def __init__(self, n_layer: int, homes: list[NullBufferType], scattered: bool = False) -> None:
        self.n_layer = n_layer
        rng = random.Random(0)
        self.weights: dict[str, Tensor] = {}
        self._add("token_embd", N_EMBD, N_VOCAB, homes[-1])
        for i in range(n_layer):
            home = homes[i * (len(homes) - 1) // n_layer]
            for name, shape in _LAYER.items():
                home = rng.choice(homes) if scattered else home
                self._add(f"blk.{i}.{name}", *shape, home)
        self._add("output_norm", N_EMBD, 1, homes[-2])
        self._add("output", N_EMBD, N_VOCAB, homes[-2])

    def _add(self, name: str, n0: int, n1: int, home: NullBufferType) -> None:
        type = GGMLType.F32 if n1 == 1 else GGMLType.Q4_0
        tensor = Tensor(type, (n0, n1), name=name)
        alloc_tensors([tensor], home, Usage.WEIGHTS)
        self.weights[name] = tensor

    def graph(self) -> Graph:
        w = self.weights
        tokens = Tensor(GGMLType.I32, (N_TOKENS,), name="inp_tokens").set_input()
        pos = Tensor(GGMLType.I32, (N_TOKENS,), name="inp_pos").set_input()
        x = ops.get_rows(w["token_embd"], tokens)
        for i in range(self.n_layer):
            x = self._layer(x, pos, f"blk.{i}.")
        x = ops.mul(ops.rms_norm(x, 1e-5), w["output_norm"])
        return Graph(ops.mul_mat(w["output"], x).named("result_output").set_output())

    def _layer(self, x: Tensor, pos: Tensor, prefix: str) -> Tensor:
        def w(name: str) -> Tensor:
            return self.weights[prefix + name]

        n = ops.mul(ops.rms_norm(x, 1e-5), w("attn_norm"))
        q, k, v = (ops.mul_mat(w(name), n) for name in ("attn_q", "attn_k", "attn_v"))
        q, k = (ops.rope(ops.reshape(t, (64, 4, N_TOKENS)), pos, n_dims=64) for t in (q, k))
        scores = ops.mul_mat(ops.permute(k, (0, 2, 1, 3)), ops.permute(q, (0, 2, 1, 3)))
        p = ops.soft_max(ops.diag_mask_inf(ops.scale(scores, 0.125), 0))
        vt = ops.cont(ops.permute(ops.reshape(v, (64, 4, N_TOKENS)), (1, 2, 0, 3)))
        kqv = ops.permute(ops.mul_mat(vt, p), (0, 2, 1, 3))
        x = ops.add(x, ops.mul_mat(w("attn_output"), ops.cont(kqv, (N_EMBD, N_TOKENS))))
        n = ops.mul(ops.rms_norm(x, 1e-5), w("ffn_norm"))
        h = ops.swiglu(ops.mul_mat(w("ffn_gate"), n), ops.mul_mat(w("ffn_up"), n))
        return ops.add(x, ops.mul_mat(w("ffn_down"), h))


_LAYER = {
    "attn_norm": (N_EMBD, 1),
    "attn_q": (N_EMBD, N_EMBD),
    "attn_k": (N_EMBD, N_EMBD),
    "attn_v": (N_EMBD, N_EMBD),
    "attn_output": (N_EMBD, N_EMBD),
    "ffn_norm": (N_EMBD, 1),
    "ffn_gate": (N_EMBD, N_FF),
    "ffn_up": (N_EMBD, N_FF),
    "ffn_down": (N_FF, N_EMBD),
}


def machine() -> tuple[list[Backend], list[NullBufferType]]:
    """Return two null GPUs and a null CPU, with their buffer types."""
    bufts = [NullBufferType("GPU0"), NullBufferType("GPU1"), NullBufferType("CPU", is_host=True)]
    types = (DeviceType.GPU, DeviceType.GPU, DeviceType.CPU)
    devices = [NullDevice(b.name, t, b) for b, t in zip(bufts, types, strict=True)]
    return [d.init_backend() for d in devices], bufts


def measure(
    n_nodes: int, trials: int, scattered: bool, parallel: bool, reserved: bool
) -> dict[str, object]:
    """Return median and range of the time to schedule one new graph, in milliseconds."""
    backends, bufts = machine()
    per_layer = len(Model(2, bufts).graph()) - len(Model(1, bufts).graph())
    model = Model(max(1, math.ceil(n_nodes / per_layer)), bufts, scattered)
    times, scheduled = [], None
    keep = Scheduler(backends, parallel=parallel)
    keep.alloc_graph(model.graph())
    for _ in range(trials):
        scheduler = keep if reserved else Scheduler(backends, parallel=parallel)
        scheduler.reset()
        graph, scheduled = model.graph(), None  # free the last one outside the measured time
        gc.collect()
        begin = time.perf_counter()
        scheduled = scheduler.alloc_graph(graph)
        times.append((time.perf_counter() - begin) * 1e3)
    assert scheduled is not None, "at least one trial"
    return {
        "nodes": len(scheduled.graph),
        "splits": scheduled.n_splits,
        "weights": "scattered" if scattered else "by layer",
        "copies": 4 if parallel else 1,
        "reserved": "yes" if reserved else "no",
        "median_ms": round(statistics.median(times), 2),
        "min_ms": round(min(times), 2),
        "max_ms": round(max(times), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench sched", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--nodes", type=int, default=1000, help="approximate number of nodes")
    parser.add_argument("--trials", type=int, default=30, help="graphs scheduled per line")
    args = parser.parse_args()
    columns = ("nodes", "weights", "splits", "copies", "reserved", "median_ms", "min_ms", "max_ms")
    print(" ".join(f"{c:>9}" for c in columns))
    results = []
    for case in itertools.product((False, True), repeat=3):
        results.append(measure(args.nodes, args.trials, *case))
        print(" ".join(f"{results[-1][c]:>9}" for c in columns))
    print(json.dumps({"bench": "sched", "results": results}))


if __name__ == "__main__":
    main()
