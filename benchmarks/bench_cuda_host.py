"""Host time of a decode step on a GPU, without the driver and the device.

    scripts/bench cuda_host MODEL.gguf [--steps 20000] [--bindings] [--busy] [--whole]
                                       [--no-embd-offload]

The model is placed on a GPU whose driver does nothing, so nothing is compiled, copied or computed.
All Python work for a token is done, from the batch to the 64 largest logits in host memory (with
--whole: to all logits). Sampling and HTTP are not included. With --no-embd-offload, the processor
computes the input embedding.
With --bindings, the calls go through NVIDIA's bindings to a library that does nothing in 3 us each.
With --busy, another thread of Python computes meanwhile. Needs no GPU. Prints the least and the
median time of 20 steps: other programs change the median more. The last line is JSON.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from lamella.alloc.buffer import Bytes
from lamella.kernels.cpu import CpuDevice
from lamella.kernels.cuda.bindings import CudaDriver
from lamella.kernels.cuda.driver import GpuInfo
from lamella.kernels.cuda.limits import H100
from lamella.kernels.cuda.registry import open_cuda
from lamella.kernels.cuda.table import CudaSource
from lamella.model.batch import Batch
from lamella.model.context import Context
from lamella.model.loader import load_model
from lamella.model.params import ContextParams, PlacementParams
from lamella.model.placement import Placement

DRIVER: Final = Path(__file__).parents[1] / "tests/kernels/fake_libcuda.c"
IDLE_DRIVER: Final = "LAMELLA_TEST_IDLE_DRIVER"  # set in the process that has the driver
CALL_NS: Final = 3000  # of a call: about what a copy or a launch takes
N_TOP: Final = 64
WINDOW: Final = 20  # steps that are timed together
N_WARM_UP: Final = 50  # windows before those that count
MEMORY: Final = 1 << 40  # reported bytes; most of the reserved addresses are never used


class IdleGpu:
    """A GPU that performs no work. Its memory is host memory, so that results can be read."""

    info = GpuInfo(0, "idle", MEMORY, H100, "0000:00:00.0")

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

    def _handle(self, *_: Any, **__: Any) -> Any:
        return next(self._handles)

    def _nothing(self, *_: Any) -> None:
        pass

    stream_new = event_new = load = function = capture_end = _handle
    fill = write = write_async = read_async = copy_async = copy_peer_async = launch = _nothing
    stream_free = stream_synchronize = event_free = event_record = event_synchronize = _nothing
    event_wait = unload = capture_begin = graph_launch = graph_free = graph_upload = _nothing

    def elapsed_ms(self, begin: Any, end: Any) -> float:
        return 1.0  # rates are numbers


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


class Times(NamedTuple):
    """Microseconds of a decode step of one sequence: those that pass, and those of this thread."""

    wall: float
    thread: float


def microseconds(path: str, args: argparse.Namespace) -> list[Times]:
    """Return the times of each window, without the first ones."""
    n_windows = args.steps // WINDOW
    registry = open_cuda(CudaDriver if args.bindings else IdleDriver, IdleCompiler)
    devices = registry.devices()
    assert devices, registry.reason
    params = PlacementParams(embd_offload=not args.no_embd_offload)
    place = Placement(cpu=CpuDevice(), devices=tuple(devices), params=params)
    model = load_model(path, place)
    n_ctx = (n_windows + N_WARM_UP) * WINDOW
    with Context(model, ContextParams(n_ctx=n_ctx, n_ubatch=32)) as context:
        seq, pos, found = context.pool.new_sequence(), 0, []
        for _ in range(n_windows + N_WARM_UP):
            begin, used = time.perf_counter(), time.thread_time()
            for _ in range(WINDOW):
                context.append(seq, 1)
                batch = Batch()
                batch.add([5], seq, pos, n_outputs=1, n_top=0 if args.whole else N_TOP)
                context.decode_rows(batch)
                pos += 1
            passed = time.perf_counter() - begin, time.thread_time() - used
            found.append(Times(*(1e6 * each / WINDOW for each in passed)))
    model.free()
    return found[N_WARM_UP:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", metavar="MODEL.gguf")
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--bindings", action="store_true", help="call through NVIDIA's bindings")
    parser.add_argument("--busy", action="store_true", help="beside a busy thread of Python")
    parser.add_argument("--whole", action="store_true", help="read all logits")
    parser.add_argument(
        "--no-embd-offload", action="store_true", help="compute embeddings on the processor"
    )
    args = parser.parse_args()
    if args.bindings and IDLE_DRIVER not in os.environ:
        raise SystemExit(run_with_driver())
    stop = threading.Event()
    if args.busy:
        threading.Thread(target=compute_until, args=(stop,)).start()
    try:
        found = microseconds(args.model, args)
    finally:
        stop.set()
    result = {}
    for name in Times._fields:
        us = [getattr(one, name) for one in found]
        result[name] = {"least": round(min(us), 1), "median": round(statistics.median(us), 1)}
        print(
            "{least} us per step at least, {median} median".format(**result[name]), f"({name} time)"
        )
    print(json.dumps(result))


def compute_until(stop: threading.Event) -> None:
    while not stop.is_set():
        pass


def run_with_driver() -> int:
    """Run this program again, with the driver of the tests that does nothing."""
    with tempfile.TemporaryDirectory(prefix="lamella-idle-") as folder:
        command = ["cc", "-std=c11", "-O2", "-D_GNU_SOURCE", "-DIDLE", f"-DCALL_NS={CALL_NS}"]
        output = ["-shared", "-fPIC", "-o", f"{folder}/libcuda.so.1"]
        subprocess.run([*command, *output, DRIVER], check=True)
        variables = {**os.environ, "LD_LIBRARY_PATH": folder, IDLE_DRIVER: "1"}
        variables["FAKE_CUDA_ARCHS"] = "90"  # one device
        return subprocess.call([sys.executable, *sys.argv], env=variables)


if __name__ == "__main__":
    main()
