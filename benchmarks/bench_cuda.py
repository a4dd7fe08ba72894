"""Time of the CUDA kernels and of whole models on a GPU, beside what the device can do at most.

    scripts/bench --cuda [PATTERN] [--device CUDA0] [--models 1b:Q4_0,8b:Q4_0] [--no-ops]

The ceilings are measured first: the bytes that a copy on the device moves, and the rate of its
tensor cores. Each op is run on as many copies of its weights as leave the cache cold, captured
as one CUDA graph, and timed by events: microseconds of one run (median of the trials), GB/s of the
node and its sources, TFLOP/s, and each as a share of the ceiling. Models are random
(benchmarks/make_model.py), made once below build/models. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from gguf.constants import GGMLQuantizationType
from make_model import SHAPES, write_model

from lamella.alloc import Buffer, BufferType, Usage, alloc_tensors, tensor_set
from lamella.graph import GGMLType, Graph, Tensor, ops
from lamella.kernels.cuda.backend import CudaBackend
from lamella.kernels.cuda.device import CudaDevice, find_cuda
from lamella.kernels.cuda.driver import Gpu
from lamella.kernels.cuda.params import ERROR, N_WORDS, PARAMS
from lamella.kernels.cuda.table import Kernel, Source
from lamella.model.bench import BenchTest, open_bench

F32, F16, Q8_0 = GGMLType.F32, GGMLType.F16, GGMLType.Q8_0
CEILING: Final = Source(str(Path(__file__).with_name("ceiling.cu").resolve()))
COLD_BYTES: Final = 256 << 20  # more than any device's cache
MOST_COPIES: Final = 64
MODELS: Final = Path(__file__).parents[1] / "build" / "models"
SHAPES_1B: Final = ((2048, 2048), (2048, 8192), (8192, 2048))  # (k, rows) of its matrices
SHAPES_8B: Final = ((4096, 4096), (4096, 14336), (14336, 4096))
HEADS: Final = {"1b": (64, 32, 8), "8b": (128, 32, 8)}  # head_dim, heads, heads of keys and values


# --- measuring ---


def milliseconds(gpu: Gpu, stream: Any, work: Callable[[], None], trials: int) -> float:
    """Median time of some work on a stream, after one run to warm up."""
    begin, end = gpu.event_new(timing=True), gpu.event_new(timing=True)
    times = []
    for _ in range(trials + 1):
        gpu.event_record(begin, stream)
        work()
        gpu.event_record(end, stream)
        gpu.event_synchronize(end)
        times.append(gpu.elapsed_ms(begin, end))
    gpu.event_free(begin)
    gpu.event_free(end)
    return statistics.median(times[1:])


@dataclass(frozen=True)
class Ceilings:
    """What the device can do: GB/s of a copy, read and written; TOP/s of its tensor cores."""

    copy_gbs: float
    s8_tops: float
    f16_tflops: float


def measure_ceilings(device: CudaDevice, trials: int) -> Ceilings:
    gpu, stream = device.gpu, device.gpu.stream_new()
    size = min(4 << 30, device.memory()[0] // 4)
    a, b = gpu.alloc(size), gpu.alloc(size)
    ms = milliseconds(gpu, stream, lambda: gpu.copy_async(b, a, size, stream), trials)
    gpu.free(a)
    gpu.free(b)
    rates = []
    for name, ops_of_one in (("rate_s8", 2 * 16 * 8 * 32), ("rate_f16", 2 * 16 * 8 * 16)):
        function = device.library.function(Kernel(CEILING, name))
        words, n, blocks = np.zeros(N_WORDS, np.int64), 4096, 2 * gpu.info.n_sm
        errors = gpu.alloc(256)
        words[ERROR], words[PARAMS] = errors, n

        def work(f: Any = function, w: Any = words, blocks: int = blocks) -> None:
            gpu.launch(f, (blocks, 1, 1), 256, 0, w, stream)

        seconds = milliseconds(gpu, stream, work, trials) / 1e3
        rates.append(blocks * 8 * 8 * n * ops_of_one / seconds / 1e12)  # 8 warps of 8 chains
        gpu.free(errors)
    gpu.stream_free(stream)
    return Ceilings(2 * size / ms / 1e6, *rates)


@dataclass(frozen=True)
class GpuCase:
    """An op of a size worth timing. `build(i)` makes it with the i-th copy of its weights;
    `n_bytes` are those it moves, `flops` its multiplications and additions, on `rate`."""

    name: str
    build: Callable[[Bench, int], Tensor]
    n_bytes: int
    flops: int = 0
    rate: str = "s8_tops"


class Bench:
    """Memory on a device for the nodes of one case."""

    def __init__(self, device: CudaDevice) -> None:
        self.device = device
        self.backend: CudaBackend = device.init_backend()
        self._buffers: list[Buffer] = []
        self._kept: dict[Any, Tensor] = {}
        self._rng = np.random.default_rng(0)

    def tensor(self, type: GGMLType, *ne: int, key: Any = None, values: Any = None) -> Tensor:
        """A leaf of random bytes, or of values; one for each key."""
        key = key or (type, ne, "x")
        if key not in self._kept:
            t = Tensor(type, ne)
            self._place(self.device.buffer_type, t, Usage.WEIGHTS if key[-1] != "x" else Usage.ANY)
            if values is None:
                pool = self._rng.integers(0, 0x38, 1 << 20, np.uint8)  # no NaN, nothing large
                values = np.resize(pool, t.nbytes)
            tensor_set(t, values)
            self._kept[key] = t
        return self._kept[key]

    def weights(self, type: GGMLType, *ne: int, i: int) -> Tensor:
        return self.tensor(type, *ne, key=(type, ne, i))

    def _place(self, buft: BufferType, t: Tensor, usage: Usage) -> None:
        self._buffers += alloc_tensors([t], buft, usage)

    def microseconds(self, case: GpuCase, trials: int) -> float:
        """Time of one node, on weights that are not in the cache."""
        n = max(1, min(MOST_COPIES, 2 * COLD_BYTES // case.n_bytes))
        nodes = [case.build(self, i) for i in range(n)]
        for node in nodes:
            self._place(self.device.buffer_type, node, Usage.COMPUTE)
            node.set_output()
        plan = self.backend.graph_plan_create(Graph(*nodes))
        work = lambda: self.backend.graph_plan_compute(plan)  # noqa: E731
        ms = milliseconds(self.device.gpu, self.backend.stream, work, trials)
        self.backend.synchronize()
        return 1e3 * ms / n

    def close(self) -> None:
        self.backend.free()
        for buffer in self._buffers:
            buffer.free()


# --- what is measured ---


def product_cases() -> Iterator[GpuCase]:
    types = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "F16", "BF16", "F32")
    for type in map(GGMLType.__getitem__, types):
        shapes = (*SHAPES_1B, *SHAPES_8B) if type.name in ("Q4_0", "F16") else SHAPES_8B[1:2]
        for k, m in shapes:
            for n in (1, 4, 8, 64, 512, 4096):

                def build(b: Bench, i: int, t: GGMLType = type, k: int = k, m: int = m, n: int = n):  # type: ignore[no-untyped-def] # fmt: skip
                    return ops.mul_mat(b.weights(t, k, m, i=i), b.tensor(F32, k, n))

                yield GpuCase(
                    f"mul_mat {type.name} {k}x{m}x{n}",
                    build,
                    m * k // type.block_size * type.type_size + 4 * n * (m + k),
                    2 * m * k * n,
                    "s8_tops" if type.is_quantized else "f16_tflops",
                )


def attention_cases() -> Iterator[GpuCase]:
    for name, (head_dim, n_head, n_kv) in HEADS.items():
        for type in (F16, Q8_0):
            row = n_kv * head_dim // type.block_size * type.type_size
            for n_tokens, n_seqs, depth in ((1, 1, 4096), (64, 64, 1024), (512, 1, 4096)):
                cells = n_seqs * (depth // 32 + 1) * 32
                positions = sum(_positions(n_tokens, n_seqs, depth))

                def build(  # type: ignore[no-untyped-def]
                    b: Bench,
                    i: int,
                    t: GGMLType = type,
                    head_dim: int = head_dim,
                    n_head: int = n_head,
                    n_kv: int = n_kv,
                    n_tokens: int = n_tokens,
                    n_seqs: int = n_seqs,
                    depth: int = depth,
                    cells: int = cells,
                ):
                    n_pages = cells // 32 // n_seqs
                    ids = np.arange(n_seqs * n_pages, dtype=np.int32)
                    table = np.concatenate([ids, np.zeros(n_pages, np.int32)])  # padding's row
                    seq = np.arange(n_tokens, dtype=np.int32) % n_seqs
                    pos = np.array(_positions(n_tokens, n_seqs, depth), np.int32) - 1
                    i32 = GGMLType.I32
                    return ops.flash_attn_ext(
                        b.tensor(F32, head_dim, n_head, n_tokens),
                        b.weights(t, head_dim * n_kv, cells, i=2 * i),
                        b.weights(t, head_dim * n_kv, cells, i=2 * i + 1),
                        b.tensor(i32, n_pages, n_seqs + 1, key=("pages", cells, "x"), values=table),
                        b.tensor(i32, n_tokens, key=("seq", n_tokens, n_seqs, "x"), values=seq),
                        b.tensor(i32, n_tokens, key=("pos", n_tokens, depth, "x"), values=pos),
                        page_size=32,
                        scale=head_dim**-0.5,
                    )

                yield GpuCase(
                    f"attention {name} {type.name} {n_tokens} tokens, {n_seqs} x {depth}",
                    build,
                    2 * row * n_seqs * depth + 8 * head_dim * n_head * n_tokens,
                    4 * head_dim * n_head * positions,
                    "f16_tflops",
                )


def _positions(n_tokens: int, n_seqs: int, depth: int) -> list[int]:
    """How many positions each token attends to: the last ones of its sequence."""
    if n_seqs == n_tokens:
        return [depth] * n_tokens
    return [depth - n_tokens + i + 1 for i in range(n_tokens)]


def row_cases() -> Iterator[GpuCase]:
    for n in (1, 64, 512):
        k, ff = 4096, 14336
        yield GpuCase(
            f"rms_norm {k}x{n}",
            lambda b, i, n=n, k=k: ops.rms_norm(b.tensor(F32, k, n, key=(k, n, i, "x")), 1e-5),  # type: ignore[misc]
            8 * k * n,
        )
        yield GpuCase(
            f"swiglu {ff}x{n}",
            lambda b, i, n=n, k=ff: ops.swiglu(  # type: ignore[misc]
                b.tensor(F32, k, n, key=(k, n, i, "x")),
                b.tensor(F32, k, n, key=(k, n, -1 - i, "x")),
            ),
            12 * ff * n,
        )


def all_cases() -> Sequence[GpuCase]:
    return [*product_cases(), *attention_cases(), *row_cases()]


def bench_ops(device: CudaDevice, pattern: str, trials: int, top: Ceilings) -> list[dict[str, Any]]:
    print(f"{'case':44} {'us':>9} {'GB/s':>8} {'copy':>5} {'TFLOP/s':>8} {'rate':>5}")
    results = []
    for case in all_cases():
        if not re.search(pattern, case.name):
            continue
        bench = Bench(device)
        try:
            us = bench.microseconds(case, trials)
        finally:
            bench.close()
        gbs, tflops = case.n_bytes / us / 1e3, case.flops / us / 1e6
        of_copy, of_rate = gbs / top.copy_gbs, tflops / getattr(top, case.rate)
        print(
            f"{case.name:44} {us:9.1f} {gbs:8.0f} {of_copy:5.0%} "
            + (f"{tflops:8.1f} {of_rate:5.0%}" if case.flops else "")
        )
        results.append({"case": case.name, "us": us, "GB/s": gbs, "TFLOP/s": tflops})
    return results


MODEL_TESTS: Final = (
    BenchTest(n_prompt=512),
    BenchTest(n_prompt=4096),
    BenchTest(n_gen=128),
    BenchTest(n_gen=64, n_seq=8),
    BenchTest(n_gen=64, n_seq=64),
)


def bench_models(device: CudaDevice, models: Sequence[str], trials: int) -> list[dict[str, Any]]:
    results = []
    print(f"\n{'model':12} {'test':16} {'tokens/s':>10}")
    for model in models:
        shape, _, type = model.partition(":")
        path = MODELS / f"{shape}-{type}.gguf"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_model(SHAPES[shape], GGMLQuantizationType[type], path)
        with open_bench(path, MODEL_TESTS, devices=[device.name], n_ubatch=2048) as bench:
            for test in MODEL_TESTS:
                bench.run(test)
                rate = test.n_tokens / statistics.median(bench.run(test) for _ in range(trials))
                print(f"{model:12} {test.name:16} {rate:10.0f}")
                results.append({"model": model, "test": test.name, "tokens/s": rate})
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pattern", nargs="?", default="", help="regular expression on cases' names")
    parser.add_argument("--device", default="CUDA0")
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--models", default="1b:Q4_0,8b:Q4_0", help="SHAPE:TYPE,...; empty: none")
    parser.add_argument("--no-ops", action="store_true", help="models only")
    args = parser.parse_args()
    registry = find_cuda()
    if not registry.devices():
        sys.exit(f"no CUDA device: {registry.reason}")
    device = next((d for d in registry.devices() if d.name == args.device), None)
    if device is None:
        sys.exit(f"no {args.device}: " + ", ".join(d.name for d in registry.devices()))
    top = measure_ceilings(device, args.trials)
    print(f"{device.name}: {device.description}; {registry.versions}")
    print(
        f"copy {top.copy_gbs:.0f} GB/s, int8 {top.s8_tops:.0f} TOP/s, "
        f"float16 {top.f16_tflops:.0f} TFLOP/s"
    )
    found: dict[str, Any] = {"device": device.description, "ceilings": asdict(top)}
    if not args.no_ops:
        found["ops"] = bench_ops(device, args.pattern, args.trials, top)
    found["models"] = bench_models(device, [m for m in args.models.split(",") if m], args.trials)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
