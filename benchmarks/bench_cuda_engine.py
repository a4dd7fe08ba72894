"""How long a GPU waits for the engine between two steps: for tokens, texts and the next batch.

    scripts/bench cuda_engine MODEL.gguf [--texts 1] [--sampled] [--steps 2000] [--turns 5]

The GPU computes nothing. The engine runs texts as the server does, to a piece of text for each
token. Prints the processor time from the end of a step to the launch of the next one, with
LAMELLA_NO_OVERLAP off and on in turn. HTTP is not included. Needs no GPU. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from bench_cuda_host import IdleCompiler, IdleDriver, IdleGpu

from lamella.alloc.buffer import Bytes
from lamella.base.settings import NO_OVERLAP
from lamella.kernels.cpu import CpuDevice
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
        self._done = 0.0
        self._pinned: list[Bytes] = []

    def alloc_host(self, size: int) -> int:
        address = self.alloc(size)
        self._pinned.append(self._memory[address])
        return address

    def graph_launch(self, *_: Any) -> None:
        self.waits.append(time.thread_time() - self._done)
        while self._pinned:  # the results of all steps: the backend has cleared its memory
            self._pinned.pop()[REPORTS:].view(np.int32)[:] = TOKEN

    def stream_synchronize(self, *_: Any) -> None:
        self._done = time.thread_time()

    event_synchronize = stream_synchronize


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


def wait_us(model: LoadedModel, vocab: Vocab, gpu: WatchedGpu, args: argparse.Namespace) -> float:
    """Median microseconds that the GPU waits for a step with `args.texts` texts."""
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
    return 1e6 * statistics.median(gpu.waits[first : first + args.steps])


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
    waits: dict[int, list[float]] = {0: [], 1: []}
    for _ in range(args.turns):
        for off, found in waits.items():
            with NO_OVERLAP.set(off):
                found.append(round(wait_us(model, vocab, driver.gpu, args), 1))
    model.free()
    for off, found in waits.items():
        when = "before the next step" if off else "while it computes"
        print(f"{min(found)} us between steps if texts are handled {when}: {found}")
    print(json.dumps(waits))


if __name__ == "__main__":
    main()
