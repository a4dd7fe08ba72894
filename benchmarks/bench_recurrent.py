"""Recurrences on the CPU, beside the limits of the machine and the products of the same layer.

    scripts/bench recurrent [--shapes qwen35,mamba2,mamba] [--steps 1x512,1x1,8x1] [--threads N]
        [--peer FOLDER] [--trials 5]

`8x1` is 8 sequences with one new token each. A graph of several layers is computed, each with its
own states, so that those of few tokens come from memory. A line has the microseconds of one layer
(median of the trials), tokens/s of that layer alone, and the share of the limit: multiply-adds and
bytes at the highest rates measured here. `products` are the layer's matrices of Q4_0 (README's
usual type). FOLDER has llama.cpp's libggml-cpu.so: then its op on the same numbers is measured in
turns, and the line has the ratio of its time to ours. The last line is JSON.
Tested by tests/observe/test_bench_recurrent.py.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "kernels"))

import cpu_run
from bench_attention import Run, alternating, own_run
from ggml_recurrent import GgmlRecurrent
from packed_run import packed
from recurrent_cases import Make, conv, delta, scan
from reference_run import leaf, normal

from lamella.alloc.host import aligned_zeros
from lamella.graph import GGMLType, Tensor, ops
from lamella.graph.cost import KnownUse, cost
from lamella.kernels.cpu.ceiling import Ceiling, measure_apart
from lamella.kernels.cpu.device import processor_name
from lamella.kernels.host import default_threads

LINE: Final = 64
NEAR_BYTES: Final = 1 << 20  # read repeatedly, to measure; not used
STATES_BYTES: Final = 1 << 27  # of all layers
MOST_LAYERS: Final = 32


class Layer(NamedTuple):
    """The recurrences of a layer by name, with the sizes of their states, and the columns and rows
    of its matrices. The functions take the number of tokens."""

    ops: dict[str, tuple[Callable[[int], Make], int]]
    matrices: Sequence[tuple[int, int]]


SHAPES: Final = {
    "qwen35": Layer(
        {
            "ssm_conv": (lambda n: conv(8192, 4, bias=False, n=n), 3 * 8192),
            "gated_delta_net": (
                lambda n: delta(128, 16, 32, interleaved=True, n=n),
                128 * 128 * 32,
            ),
        },
        ((2560, 12352), (4096, 2560)),
    ),
    "mamba2": Layer(
        {
            "ssm_conv": (lambda n: conv(6144, 4, bias=True, n=n), 3 * 6144),
            "ssm_scan": (
                lambda n: scan(64, 64, 128, 8, d=True, n=n),
                64 * 64 * 128,
            ),
        },
        ((2048, 10304), (4096, 2048)),
    ),
    "mamba": Layer(
        {
            "ssm_conv": (lambda n: conv(4096, 4, bias=True, n=n), 3 * 4096),
            "ssm_scan": (lambda n: scan(1, 4096, 16, 1, d=True, n=n), 4096 * 16),
        },
        ((2048, 8192), (4096, 160), (128, 4096), (4096, 2048)),
    ),
}


def recurrences(make: Callable[[int], Make], size: int, n_seqs: int, n: int) -> list[Tensor]:
    """A node for each layer, with states of its own."""
    slots = np.repeat(1 + np.arange(n_seqs), n)
    n_layers = max(1, min(MOST_LAYERS, STATES_BYTES // (4 * size * (n_seqs + 1)))) if n == 1 else 1
    nodes, maker = [], make(n_seqs * n)
    for _ in range(n_layers):
        states = Tensor(GGMLType.F32, (size, n_seqs + 1))
        nodes.append(maker(range(n_seqs * n), states, np.stack([slots, slots], axis=1)))
        for t in (states, nodes[-1]):
            t.buffer = aligned_zeros(t.nbytes, LINE, t.name)  # as backends allocate it
    return nodes


def products(layer: Layer, n_tokens: int) -> Iterator[list[Tensor]]:
    """The products of each matrix, one for each layer."""
    for k, n in layer.matrices:
        nodes = []
        x = leaf(normal(n_tokens, k))
        for _ in range(1 if n_tokens > 1 else 4):
            weights = packed(leaf(np.zeros((n, k)), GGMLType.Q4_0))
            nodes.append(ops.mul_mat(weights, x))
            cpu_run.prepare(nodes[-1])
        yield nodes


def limit_us(nodes: Sequence[Tensor], n_seqs: int, ceiling: Ceiling) -> float:
    """The least microseconds of a node."""
    moved = cost(nodes[:1], KnownUse(states=n_seqs))
    seconds = moved.n_bytes / ceiling.bytes_per_s, moved.n_mul_adds / ceiling.f32_per_s
    return 1e6 * max(seconds)


def measure(
    shape: str,
    n_seqs: int,
    n: int,
    ceiling: Ceiling,
    ggml: GgmlRecurrent | None,
    n_threads: int,
    n_trials: int,
) -> Iterator[dict[str, Any]]:
    """The results of the recurrences of a shape, then that of its products."""
    layer = SHAPES[shape]

    def us(nodes: Sequence[Tensor], *peers: Run) -> list[float]:
        runs = [own_run(nodes, n_threads), *peers]
        return [1e6 * seconds / len(nodes) for seconds in alternating(runs, n_trials)]

    for name, (make, size) in layer.ops.items():
        nodes = recurrences(make, size, n_seqs, n)
        peer, free = (None, None) if ggml is None else ggml.run_nodes(nodes, n_seqs, n_threads)
        found, *others = us(nodes, *([] if peer is None else [peer]))
        limit = limit_us(nodes, n_seqs, ceiling)
        yield {"shape": shape, "op": name, "us": found, "limit": limit / found} | (
            {"peer_us": others[0]} if others else {}
        )
        if free is not None:
            free()
    total = sum(us(nodes)[0] for nodes in products(layer, n_seqs * n))
    yield {"shape": shape, "op": "products", "us": total}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--shapes", type=lambda text: text.split(","), default=list(SHAPES))
    add("--steps", type=lambda text: text.split(","), default=["1x512", "1x1", "8x1"])
    add("--peer", type=Path, help="folder of llama.cpp's libggml-cpu.so")
    add("--threads", type=int, default=default_threads())
    add("--trials", type=int, default=5)
    args = parser.parse_args(argv)
    ggml = GgmlRecurrent(args.peer) if args.peer else None
    ceiling = measure_apart(args.threads, NEAR_BYTES)
    print(f"{processor_name()}, {args.threads} threads, median of {args.trials}")
    print(f"at most {ceiling.bytes_per_s / 1e9:.1f} GB/s, {ceiling.mul_adds_text()}")
    names = f"{'shape':>8} {'op':>16} {'step':>6} {'us':>10} {'tokens/s':>10} {'of limit':>8}"
    print(names + (f" {'ratio':>6}" if ggml else ""))
    results = []
    for step in args.steps:
        n_seqs, n = map(int, step.split("x"))
        for shape in args.shapes:
            for r in measure(shape, n_seqs, n, ceiling, ggml, args.threads, args.trials):
                results.append(r | {"step": step})
                line = f"{shape:>8} {r['op']:>16} {step:>6} {r['us']:10.1f}"
                line += f" {1e6 * n_seqs * n / r['us']:10.0f}"
                line += f" {r['limit']:8.0%}" if "limit" in r else ""
                print(line + (f" {r['peer_us'] / r['us']:6.2f}" if "peer_us" in r else ""))
    print(json.dumps({"threads": args.threads, "results": results}))


if __name__ == "__main__":
    main()
