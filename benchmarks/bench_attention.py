"""Attention on the CPU over depths, batches and types of keys and values, beside ggml's.

    scripts/bench attention [--heads 6/6x48,32/8x64,32/8x128] [--types f16,q8_0] [--seqs 1,8,32]
        [--tokens 1] [--depths 80,512] [--peer FOLDER] [--threads N] [--trials 5]

`32/8x64` is 32 heads over 8 of keys, of 64 elements. Each of `seqs` sequences has `tokens` new
tokens after `depth` earlier ones. A graph of several nodes is computed, each with its own keys and
values, like the layers of a model. A line has the microseconds of one node (median of the trials).
FOLDER has llama.cpp's libggml-cpu.so: then its FLASH_ATTN_EXT over the same bytes is measured in
turns, and the line has its microseconds and the ratio. The last line is JSON.
Tested by tests/observe/test_bench_attention.py.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "kernels"))

import cpu_run
from reference_run import data, graph_of, ids, leaf, normal, place

from lamella.graph import GGMLType, Tensor, ops
from lamella.kernels.cpu.device import processor_name
from lamella.kernels.cpu.plan import CpuPlan
from lamella.kernels.host import default_threads

PAGE: Final = 32
TRIAL_S: Final = 0.04
MOST_BYTES: Final = 1 << 27  # of all layers; above it, there are fewer layers
N_LAYERS: Final = 6
CELLS_AT_ONCE: Final = 256  # llama.cpp's caches are multiples of it

Run = Callable[[], None]


class Case(NamedTuple):
    """Heads of queries and of keys, elements of a head, and what is computed."""

    n_head: int
    n_head_kv: int
    head_dim: int
    type: GGMLType
    n_seqs: int
    n_tokens: int
    depth: int

    @property
    def n_cells(self) -> int:
        """Cells of a sequence, in whole pages."""
        return -(-(self.depth + self.n_tokens) // CELLS_AT_ONCE) * CELLS_AT_ONCE

    @property
    def n_kv(self) -> int:
        """Elements of a cell."""
        return self.n_head_kv * self.head_dim

    @property
    def n_layers(self) -> int:
        size = self.n_seqs * self.n_cells * self.n_kv * self.type.type_size / self.type.block_size
        return max(1, min(N_LAYERS, int(MOST_BYTES / (2 * size))))


def layers_of(case: Case) -> list[Tensor]:
    """A node of each layer, with keys and values of its own."""
    rng = np.random.default_rng(1)
    n_cells = case.n_cells * case.n_seqs
    values = rng.standard_normal((min(n_cells, 1024), case.n_kv))
    some = leaf(values, case.type)
    pages = ids(np.arange(n_cells // PAGE).reshape(case.n_seqs, -1))
    new = case.depth + np.arange(case.n_tokens)
    pos = np.tile(new, case.n_seqs)
    seq = np.repeat(np.arange(case.n_seqs), case.n_tokens)
    tokens = (ids(seq), ids(pos), ids(0 * pos), ids(pos + 1))
    q = leaf(normal(len(pos), case.n_head, case.head_dim))
    nodes = []
    for _ in range(case.n_layers):
        k, v = (Tensor(case.type, (case.n_kv, n_cells)) for _ in range(2))
        for pool in (k, v):
            place(pool)
            rows = data(pool)[0, 0]
            for first in range(0, n_cells, len(values)):
                part = rows[first : first + len(values)]
                part[...] = data(some)[0, 0, : len(part)]
        scale = case.head_dim**-0.5
        args = (q, k, v, pages, *tokens)
        nodes.append(ops.flash_attn_ext(*args, page_size=PAGE, scale=scale))
        cpu_run.prepare(nodes[-1])
    return nodes


def own_run(nodes: Sequence[Tensor], n_threads: int) -> Run:
    """Our computation of the nodes."""
    plan, pool = CpuPlan(graph_of(*nodes), cpu_run.address_of, n_threads), cpu_run.pool(n_threads)
    return lambda: plan.run(pool)


# --- ggml ---


class _InitParams(ctypes.Structure):
    _fields_ = (
        ("mem_size", ctypes.c_size_t),
        ("mem_buffer", ctypes.c_void_p),
        ("no_alloc", ctypes.c_bool),
    )


class Ggml:
    """The functions of ggml that compute attention."""

    def __init__(self, folder: Path) -> None:
        self.base = ctypes.CDLL(str(folder / "libggml-base.so"), ctypes.RTLD_GLOBAL)
        self.cpu = ctypes.CDLL(str(folder / "libggml-cpu.so"), ctypes.RTLD_GLOBAL)
        base, pointer, size = self.base, ctypes.c_void_p, ctypes.c_int64
        for name in ("init", "new_tensor_4d", "permute", "flash_attn_ext", "new_graph", "get_data"):
            getattr(base, f"ggml_{name}").restype = pointer
        base.ggml_init.argtypes = [_InitParams]
        base.ggml_new_tensor_4d.argtypes = [pointer, ctypes.c_int, *[size] * 4]
        base.ggml_permute.argtypes = [pointer, pointer, *[ctypes.c_int] * 4]
        base.ggml_flash_attn_ext.argtypes = [*[pointer] * 5, *[ctypes.c_float] * 3]
        base.ggml_new_graph.argtypes = base.ggml_get_data.argtypes = [pointer]
        base.ggml_free.argtypes = [pointer]
        base.ggml_build_forward_expand.argtypes = [pointer, pointer]
        self.cpu.ggml_backend_cpu_init.restype = pointer
        self.cpu.ggml_backend_cpu_init()  # fills its tables of types
        self.cpu.ggml_graph_compute_with_ctx.argtypes = [pointer, pointer, ctypes.c_int]

    def run(self, case: Case, nodes: Sequence[Tensor], n_threads: int) -> tuple[Run, Run]:
        """The computation of the nodes, and a function that frees it."""
        base = self.base
        cells = sum(src.nbytes for node in nodes for src in node.src[1:3])
        n_bytes = 2 * cells + (1 << 28) + 4 * case.n_seqs * case.n_tokens * case.n_cells
        context = base.ggml_init(_InitParams(n_bytes, None, False))
        graph = base.ggml_new_graph(context)

        def tensor(type: GGMLType, *ne: int) -> int:
            return int(base.ggml_new_tensor_4d(context, type.value, *ne))

        def fill(t: int, values: npt.NDArray[Any]) -> None:
            values = np.ascontiguousarray(values)
            ctypes.memmove(base.ggml_get_data(t), values.ctypes.data, values.nbytes)

        n_seqs, dims = case.n_seqs, (0, 2, 1, 3)
        mask = tensor(GGMLType.F16, case.n_cells, case.n_tokens, 1, n_seqs)
        hidden = np.arange(case.n_cells) > case.depth + np.arange(case.n_tokens)[:, None]
        fill(mask, np.tile(np.where(hidden, -np.inf, 0).astype(np.float16), (n_seqs, 1, 1)))
        for node in nodes:
            q = tensor(GGMLType.F32, case.head_dim, case.n_head, case.n_tokens, n_seqs)
            fill(q, data(node.src[0]))
            sources = [base.ggml_permute(context, q, *dims)]
            for pool in node.src[1:3]:
                t = tensor(case.type, case.head_dim, case.n_head_kv, case.n_cells, n_seqs)
                fill(t, data(pool))
                sources.append(base.ggml_permute(context, t, *dims))
            scale = case.head_dim**-0.5
            out = base.ggml_flash_attn_ext(context, *sources, mask, scale, 0.0, 0.0)
            base.ggml_build_forward_expand(graph, out)
        # the work memory of each run would stay in a context
        works = _InitParams(1 << 26, None, False)

        def compute() -> None:
            scratch = base.ggml_init(works)
            self.cpu.ggml_graph_compute_with_ctx(scratch, graph, n_threads)
            base.ggml_free(scratch)

        return compute, lambda: base.ggml_free(context)


# --- measuring ---


def alternating(runs: Sequence[Run], n_trials: int) -> list[float]:
    """The median seconds of each function, measured in turns."""

    def seconds(run: Run, n: int) -> float:
        begin = time.perf_counter()
        for _ in range(n):
            run()
        return (time.perf_counter() - begin) / n

    counts = [max(1, int(TRIAL_S / max(seconds(run, 1), 1e-7))) for run in runs]
    trials = [[seconds(*both) for both in zip(runs, counts, strict=True)] for _ in range(n_trials)]
    return [statistics.median(times) for times in zip(*trials, strict=True)]


def measure(case: Case, ggml: Ggml | None, n_threads: int, n_trials: int) -> dict[str, Any]:
    """Microseconds of a node, and of ggml's."""
    nodes = layers_of(case)
    runs, free = [own_run(nodes, n_threads)], None
    if ggml is not None:
        peer, free = ggml.run(case, nodes, n_threads)
        runs.append(peer)
    us = [1e6 * s / len(nodes) for s in alternating(runs, n_trials)]
    if free is not None:
        free()
    result: dict[str, Any] = case._asdict() | {"type": case.type.name.lower(), "us": us[0]}
    return result | ({"peer_us": us[1]} if ggml is not None else {})


def _heads(text: str) -> tuple[int, int, int]:
    heads, dim = text.split("x")
    n_head, n_head_kv = heads.split("/")
    return int(n_head), int(n_head_kv), int(dim)


def _list(parse: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    return lambda text: [parse(part) for part in text.split(",")]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--heads", type=_list(_heads), default=[(6, 6, 48), (32, 8, 64), (32, 8, 128)])
    add("--types", type=_list(lambda name: GGMLType[name.upper()]), default=[GGMLType.F16])
    add("--seqs", type=_list(int), default=[1, 8, 32])
    add("--tokens", type=_list(int), default=[1])
    add("--depths", type=_list(int), default=[0, 80, 512])
    add("--peer", type=Path, help="folder of llama.cpp's libggml-cpu.so")
    add("--threads", type=int, default=default_threads())
    add("--trials", type=int, default=5)
    args = parser.parse_args(argv)
    ggml = Ggml(args.peer) if args.peer else None
    print(f"{processor_name()}, {args.threads} threads, median of {args.trials}")
    names = f"{'heads':>10} {'type':>6} {'seqs':>4} {'tokens':>6} {'depth':>6} {'us':>10}"
    print(names + (f" {'ggml':>10} {'ratio':>6}" if ggml else ""))
    results = []
    for heads, *rest in product(args.heads, args.types, args.seqs, args.tokens, args.depths):
        case = Case(*heads, *rest)
        r = measure(case, ggml, args.threads, args.trials)
        results.append(r)
        name = f"{case.n_head}/{case.n_head_kv}x{case.head_dim}"
        line = f"{name:>10} {r['type']:>6} {case.n_seqs:4} {case.n_tokens:6} {case.depth:6}"
        line += f" {r['us']:10.1f}"
        line += f" {r['peer_us']:10.1f} {r['peer_us'] / r['us']:6.2f}" if ggml else ""
        print(line)
    print(json.dumps({"threads": args.threads, "results": results}))


if __name__ == "__main__":
    main()
