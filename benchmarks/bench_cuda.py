"""Time of CUDA kernels and of whole models on a GPU, compared with the device's limits.

    scripts/bench --cuda [PATTERN] [--device CUDA0] [--models 1b:Q4_0,8b:Q4_0] [--no-ops]

The limits are measured first: the bandwidth of a copy on the device, and the rate of its tensor
cores. Each op or fused chain (benchmarks/gpu_cases.py) runs on so many copies of its weights that
the cache is cold. The runs are captured as one CUDA graph and timed by events. A line has the
microseconds of one run (median of the trials), GB/s of its reads and writes, TFLOP/s, and their
shares of the limits. Models are random (benchmarks/make_model.py) and written once to build/models.
The last line is JSON, also after Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from gguf.constants import GGMLQuantizationType
from gpu_cases import GpuCase, Ints, Tensors, all_cases
from make_model import write_model
from shapes import SHAPES

from lamella.alloc import Buffer, Usage, alloc_tensors, tensor_set
from lamella.base.settings import CUDA_READS_RESULTS, NO_MERGE
from lamella.graph import GGMLType, Graph, Tensor
from lamella.kernels.cuda.backend import CudaBackend
from lamella.kernels.cuda.device import CudaDevice
from lamella.kernels.cuda.driver import Gpu
from lamella.kernels.cuda.params import ERROR, N_WORDS
from lamella.kernels.cuda.registry import find_cuda
from lamella.kernels.cuda.table import CudaKernel, CudaSource
from lamella.kernels.plan.params import PARAMS
from lamella.observe.bench import BenchTest, open_bench
from lamella.runtime.params import OpenParams

CEILING: Final = CudaSource(str(Path(__file__).with_name("ceiling.cu").resolve()))
COLD_BYTES: Final = 256 << 20  # more than any device's cache
MOST_COPIES: Final = 64
MOST_BYTES: Final = 4 << 30  # of the measured copy
RATE_STEPS: Final = 4096  # consecutive products of each chain
MODELS: Final = Path(__file__).parents[1] / "build" / "models"


# --- measuring ---


def milliseconds(gpu: Gpu, stream: Any, work: Callable[[], None], trials: int) -> float:
    """Return the median time of some work on a stream, after a warm-up run."""
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
    """Limits of a device: GB/s read and written by a copy, and TOP/s of its tensor cores. Infinite
    if they were not measured."""

    copy_gbs: float = math.inf
    s8_tops: float = math.inf
    f16_tflops: float = math.inf


def measure_ceilings(device: CudaDevice, trials: int) -> Ceilings:
    gpu, stream = device.gpu, device.gpu.stream_new()
    size = min(MOST_BYTES, device.memory()[0] // 4)
    a, b = gpu.alloc(size), gpu.alloc(size)
    ms = milliseconds(gpu, stream, lambda: gpu.copy_async(b, a, size, stream), trials)
    gpu.free(a)
    gpu.free(b)
    rates = []
    for name, ops_of_one in (("rate_s8", 2 * 16 * 8 * 32), ("rate_f16", 2 * 16 * 8 * 16)):
        function = device.library.function(CudaKernel(CEILING, name))
        words, n, blocks = np.zeros(N_WORDS, np.int64), RATE_STEPS, 2 * gpu.info.n_sm
        errors = gpu.alloc(256)
        words[ERROR], words[PARAMS] = errors, n

        def work(f: Any = function, w: Any = words, blocks: int = blocks) -> None:
            gpu.launch(f, (blocks, 1, 1), 256, 0, w, stream)

        seconds = milliseconds(gpu, stream, work, trials) / 1e3
        rates.append(blocks * 8 * 8 * n * ops_of_one / seconds / 1e12)  # 8 warps of 8 chains
        gpu.free(errors)
    gpu.stream_free(stream)
    return Ceilings(2 * size / ms / 1e6, *rates)


class Bench(Tensors):
    """The memory on a device for the nodes of one case."""

    def __init__(self, device: CudaDevice) -> None:
        self.device = device
        self.backend: CudaBackend = device.init_backend()
        self._buffers: list[Buffer] = []
        self._leafs: dict[Any, Tensor] = {}
        self._rng = np.random.default_rng(0)

    def tensor(self, type: GGMLType, *ne: int, key: Any, values: Ints | None = None) -> Tensor:
        if key not in self._leafs:
            t = Tensor(type, ne)
            self._place([t], Usage.ANY if key[-1] == "x" else Usage.WEIGHTS)
            if values is None:
                pool = self._rng.integers(0, 0x38, 1 << 20, np.uint8)  # no NaN and no large values
                tensor_set(t, np.resize(pool, t.nbytes))
            else:
                tensor_set(t, values)
            self._leafs[key] = t
        return self._leafs[key]

    def _place(self, tensors: Iterable[Tensor], usage: Usage) -> None:
        self._buffers += alloc_tensors(tensors, self.device.buffer_type, usage)

    def microseconds(self, case: GpuCase, trials: int) -> float:
        """Return the time of one copy of a case, on weights that are not in the cache."""
        n = max(1, min(MOST_COPIES, 2 * COLD_BYTES // case.n_bytes))
        graph = Graph(*[case.build(self, i).set_output() for i in range(n)])
        self._place(graph.nodes, Usage.COMPUTE)
        # copies are independent, and their results are not read
        with NO_MERGE.set(True), CUDA_READS_RESULTS.set(True):
            plan = self.backend.graph_plan_create(graph)
        work = lambda: self.backend.graph_plan_compute(plan)  # noqa: E731
        ms = milliseconds(self.device.gpu, self.backend.stream, work, trials)
        self.backend.synchronize()
        return 1e3 * ms / n

    def close(self) -> None:
        self.backend.free()
        for buffer in self._buffers:
            buffer.free()


# --- cases and models ---


def bench_ops(
    device: CudaDevice, pattern: str, trials: int, top: Ceilings
) -> Iterator[dict[str, Any]]:
    print(f"{'case':44} {'us':>9} {'GB/s':>8} {'copy':>5} {'TFLOP/s':>8} {'rate':>5}")
    for case in all_cases():
        if not re.search(pattern, case.name):
            continue
        bench = Bench(device)
        try:
            us = bench.microseconds(case, trials)
        finally:
            bench.close()
        gbs, tflops = case.n_bytes / us / 1e3, case.flops / us / 1e6
        line = f"{case.name:44} {us:9.1f} {gbs:8.0f} {gbs / top.copy_gbs:5.0%}"
        if case.flops:
            line += f" {tflops:8.1f}"
        if case.rate:
            line += f" {tflops / getattr(top, case.rate):5.0%}"
        print(line)
        yield {"case": case.name, "us": us, "GB/s": gbs, "TFLOP/s": tflops}


MODEL_TESTS: Final = (
    BenchTest(n_prompt=512),
    BenchTest(n_prompt=4096),
    BenchTest(n_gen=128),
    BenchTest(n_gen=64, n_seq=8),
    BenchTest(n_gen=64, n_seq=64),
)


def random_model(folder: Path, model: str) -> Path:
    """Return the file of a random model, such as 1b:Q4_0, and write it if it is missing."""
    shape, _, type = model.partition(":")
    path = folder / f"{shape}-{type}.gguf"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        write_model(SHAPES[shape], GGMLQuantizationType[type], part)
        part.replace(path)
    return path


def bench_models(
    device: CudaDevice, models: Sequence[str], folder: Path, trials: int
) -> Iterator[dict[str, Any]]:
    if models:
        print(f"\n{'model':12} {'test':16} {'tokens/s':>10}")
    for model in models:
        path = random_model(folder, model)
        options = {"devices": [device.name], "n_gpu_layers": -1, "n_ubatch": 2048}
        params = OpenParams.make({"path": path, **options})
        with open_bench(params, MODEL_TESTS) as bench:
            for test in MODEL_TESTS:
                bench.run(test)
                rate = test.n_tokens / statistics.median(bench.run(test) for _ in range(trials))
                print(f"{model:12} {test.name:16} {rate:10.0f}")
                yield {"model": model, "test": test.name, "tokens/s": rate}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pattern", nargs="?", default="", help="regular expression for cases")
    parser.add_argument("--device", default="CUDA0")
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--models", default="1b:Q4_0,8b:Q4_0", help="SHAPE:TYPE,...; empty: none")
    parser.add_argument("--model-folder", type=Path, default=MODELS, help="where models are kept")
    parser.add_argument("--no-limits", action="store_true", help="do not measure the limits")
    parser.add_argument("--no-ops", action="store_true", help="models only")
    args = parser.parse_args()
    registry = find_cuda()
    if not registry.devices():
        sys.exit(f"no CUDA device: {registry.reason}")
    device = next((d for d in registry.devices() if d.name == args.device), None)
    if device is None:
        sys.exit(f"no {args.device}: " + ", ".join(d.name for d in registry.devices()))
    print(f"{device.name}: {device.description}; {registry.versions}")
    top = Ceilings()
    if not args.no_limits:
        top = measure_ceilings(device, args.trials)
        print(
            f"copy {top.copy_gbs:.0f} GB/s, int8 {top.s8_tops:.0f} TOP/s, "
            f"float16 {top.f16_tflops:.0f} TFLOP/s"
        )
    found: dict[str, Any] = {"device": device.description, "ops": [], "models": []}
    if not args.no_limits:
        found["ceilings"] = asdict(top)
    try:
        if not args.no_ops:
            for op in bench_ops(device, args.pattern, args.trials, top):
                found["ops"].append(op)
        models = [m for m in args.models.split(",") if m]
        for model in bench_models(device, models, args.model_folder, args.trials):
            found["models"].append(model)
    except KeyboardInterrupt:
        print("interrupted")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
