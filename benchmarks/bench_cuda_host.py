"""Host time of a decode step on a GPU, without the driver and the device.

    scripts/bench cuda_host MODEL.gguf [--steps 2000] [--trials 5]

The model is placed on a GPU whose driver does nothing, so nothing is compiled, copied or computed.
All Python work for a token is done, from the batch to the logits in host memory, with the input
embedding on the CPU. Sampling and HTTP are not included. Needs no GPU. The last line is JSON.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import time
from collections.abc import Sequence
from itertools import count
from typing import Any

import numpy as np

from lamella.alloc.buffer import Bytes
from lamella.kernels.cpu import CpuDevice
from lamella.kernels.cuda.driver import GpuInfo
from lamella.kernels.cuda.registry import open_cuda
from lamella.kernels.cuda.table import CudaSource
from lamella.model.batch import Batch
from lamella.model.context import Context
from lamella.model.loader import load_model
from lamella.model.params import ContextParams
from lamella.model.placement import Placement

MEMORY = 1 << 40  # reported bytes; most of the reserved addresses are never used


class IdleGpu:
    """A GPU that performs no work. Its memory is host memory, so that results can be read."""

    info = GpuInfo(0, "idle", 90, MEMORY, 132, 227 << 10, "0000:00:00.0")

    def __init__(self) -> None:
        self._memory: dict[int, Bytes] = {}
        self._handles = count(1)

    def memory(self) -> tuple[int, int]:
        return MEMORY, MEMORY

    def alloc(self, size: int) -> int:
        memory = np.zeros(size, np.uint8)
        self._memory[memory.ctypes.data] = memory
        return int(memory.ctypes.data)

    def free(self, address: int) -> None:
        del self._memory[address]

    alloc_host, free_host = alloc, free

    def read(self, out: Bytes, source: int) -> None:
        ctypes.memmove(out.ctypes.data, source, out.nbytes)

    def _handle(self, *_: Any) -> Any:
        return next(self._handles)

    def _nothing(self, *_: Any) -> None:
        pass

    stream_new = event_new = load = function = capture_end = _handle
    fill = write = write_async = read_async = copy_async = copy_peer_async = launch = _nothing
    stream_free = stream_synchronize = event_free = event_record = event_synchronize = _nothing
    event_wait = unload = capture_begin = graph_launch = graph_free = _nothing

    def elapsed_ms(self, begin: Any, end: Any) -> float:
        return 0.0


class IdleDriver:
    """A driver with one IdleGpu."""

    version = "13.0"

    def gpus(self) -> Sequence[IdleGpu]:
        return [IdleGpu()]


class IdleCompiler:
    """Returns empty images, which are never run."""

    version = "idle"

    def compile(self, source: CudaSource, arch: int) -> bytes:
        return b"idle"


def microseconds(path: str, n_steps: int, trials: int) -> list[float]:
    """Return the time of a decode step of one sequence for each trial."""
    devices = open_cuda(IdleDriver, IdleCompiler).devices()
    model = load_model(path, Placement(cpu=CpuDevice(), devices=tuple(devices)))
    n_ctx = (trials + 1) * n_steps
    with Context(model, ContextParams(n_ctx=n_ctx, n_ubatch=32)) as context:
        seq, pos, found = context.pool.new_sequence(), 0, []
        for _ in range(trials + 1):
            begin = time.perf_counter()
            for _ in range(n_steps):
                context.append(seq, 1)
                batch = Batch()
                batch.add([5], seq, pos, n_outputs=1)
                context.decode(batch)
                pos += 1
            found.append(1e6 * (time.perf_counter() - begin) / n_steps)
    model.free()
    return found[1:]  # without the warm-up


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", metavar="MODEL.gguf")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--trials", type=int, default=5)
    args = parser.parse_args()
    found = microseconds(args.model, args.steps, args.trials)
    print(f"{statistics.median(found):.1f} us per step, median of {[round(us, 1) for us in found]}")
    print(json.dumps({"us": found}))


if __name__ == "__main__":
    main()
