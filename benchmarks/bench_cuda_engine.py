"""How long a GPU waits for the engine between two steps: for tokens, texts and the next batch.

    scripts/bench cuda_engine MODEL.gguf [--texts 1] [--sampled] [--steps 2000] [--turns 5]

The GPU computes nothing. The engine runs texts as the server does, to a piece of text for each
token. Prints the processor time from the end of a step to the launch of the next one, 0 if that was
launched before: as it is, with LAMELLA_NO_FEED and with LAMELLA_NO_OVERLAP in turn. Then all that
the engine's thread does for a step: a GPU whose steps are shorter waits for it anyway. HTTP is not
included. Needs no GPU. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import pairwise
from typing import Any, Final

import numpy as np
from bench_cuda_host import IdleCompiler, IdleDriver, IdleGpu

from lamella.alloc.buffer import Bytes
from lamella.base.settings import NO_FEED, NO_OVERLAP
from lamella.kernels.cpu import CpuDevice
from lamella.kernels.cuda.backend import NUMBERS
from lamella.kernels.cuda.inputs import LINE
from lamella.kernels.cuda.registry import open_cuda
from lamella.model.context import Context
from lamella.model.gguf import open_gguf
from lamella.model.loader import LoadedModel, load_model
from lamella.model.params import ContextParams, PlacementParams
from lamella.model.placement import Placement
from lamella.model.sampling import SamplingParams, load_kernels
from lamella.model.vocab import Vocab, load_vocab
from lamella.runtime.engine.engine import Engine
from lamella.runtime.params import EngineParams, GenerationParams, RequestParams
from lamella.runtime.speculative_params import SpecType, SpeculativeParams
from lamella.runtime.text import generate

REPORTS: Final = 4096  # bytes of reports of errors, or more
PROMPT_TOKENS: Final = 16
TOKEN: Final = 263  # the texts consist of it


class WatchedGpu(IdleGpu):
    """A GPU that notes how long it waits for each launch, in processor time of the launching
    thread."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []
        self.launched: list[float] = []
        self._n_done = 0  # launches that the host knows to be over
        self._done = 0.0  # since when
        self._recorded: dict[int, int] = {}  # the launches before each event
        self._pinned: list[Bytes] = []

    def alloc_host(self, size: int) -> int:
        address = self.alloc(size)
        self._pinned = [self._memory[address]]
        return address

    def graph_launch(self, *_: Any) -> None:
        is_idle = self._n_done == len(self.waits)
        self.launched.append(now := time.thread_time())
        self.waits.append(now - self._done if is_idle else 0.0)
        for memory in self._pinned:
            numbers = memory[NUMBERS : NUMBERS + LINE + 8].view(np.int64)
            numbers[-1] = numbers[0]  # the inputs have been copied
            if memory[REPORTS] == 0:  # the backend has cleared it: these are all results
                memory[REPORTS:].view(np.int32)[:] = TOKEN

    def event_record(self, *args: Any, **_: Any) -> None:
        self._recorded[args[0]] = len(self.waits)

    def event_synchronize(self, *args: Any) -> None:
        self._is_over(self._recorded[args[0]])

    def stream_synchronize(self, *_: Any) -> None:
        self._is_over(len(self.waits))

    def _is_over(self, n: int) -> None:
        self._n_done, self._done = max(self._n_done, n), time.thread_time()


class WatchedDriver(IdleDriver):
    """A driver with one GPU."""

    def __init__(self) -> None:
        self.gpu = WatchedGpu()

    def gpus(self) -> Sequence[IdleGpu]:
        return [self.gpu]


def params_of(args: argparse.Namespace) -> RequestParams:
    """Without guesses: all steps are alike."""
    return RequestParams(
        sampling=SamplingParams(temperature=0.8 if args.sampled else 0.0, seed=1),
        generation=GenerationParams(n_predict=2 * args.steps),
        speculative=SpeculativeParams(spec_type=(SpecType.NONE,)),
    )


def wait_us(
    model: LoadedModel, vocab: Vocab, gpu: WatchedGpu, args: argparse.Namespace
) -> tuple[float, float]:
    """Median microseconds that the GPU waits for a step with `args.texts` texts, and of a step."""
    n_ctx = (2 * args.steps + 2 * PROMPT_TOKENS) * args.texts
    with Context(model, ContextParams(n_ctx=n_ctx, n_parallel=args.texts)) as context:
        engine = Engine(context, vocab, n_parallel=args.texts, params=EngineParams())
        engine.start()
        prompt = range(5, 5 + PROMPT_TOKENS)
        texts = [iter(generate(engine, vocab, prompt, params_of(args))) for _ in range(args.texts)]
        for text in texts:  # until all run
            next(text)
        first = len(gpu.waits) + args.steps // 10
        while len(gpu.waits) < first + args.steps:
            time.sleep(0.01)
        engine.close()
    launched = gpu.launched[first : first + args.steps]
    steps = [after - before for before, after in pairwise(launched)]
    waits = gpu.waits[first : first + args.steps]
    return round(1e6 * statistics.median(waits), 1), round(1e6 * statistics.median(steps), 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", metavar="MODEL.gguf")
    parser.add_argument("--texts", type=int, default=1, help="texts at once")
    parser.add_argument("--sampled", action="store_true", help="temperature 0.8 instead of 0")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--turns", type=int, default=5)
    args = parser.parse_args()
    load_kernels()
    driver = WatchedDriver()
    registry = open_cuda(lambda: driver, IdleCompiler)
    devices = registry.devices()
    assert devices, registry.reason
    placement = PlacementParams(embd_offload=True)
    model = load_model(
        args.model, Placement(cpu=CpuDevice(), devices=tuple(devices), params=placement)
    )
    with open_gguf(args.model) as file:
        vocab = load_vocab(file.metadata)
    ways = {"as it is": None, NO_FEED.name: NO_FEED, NO_OVERLAP.name: NO_OVERLAP}
    times = {name: list[tuple[float, float]]() for name in ways}
    for _ in range(args.turns):
        for name, switch in ways.items():
            with nullcontext() if switch is None else switch.set(1):
                times[name].append(wait_us(model, vocab, driver.gpu, args))
    model.free()
    for name, found in times.items():
        waits, steps = zip(*found, strict=True)
        print(f"{name}: {min(waits)} us between steps {waits}, {min(steps)} us each {steps}")
    print(json.dumps(times))


if __name__ == "__main__":
    main()
