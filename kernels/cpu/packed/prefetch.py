"""How far ahead kernels of one column prefetch: measured once on each processor.

Such a kernel waits for memory. Zen 3 needs prefetches, Zen 4 reads ordered lines faster without
them, and names of processors do not tell which is which. So a kernel runs with each distance on
more memory than caches hold. Linking sets the distance (`compiler/objects.py`), so a kernel is
compiled once. The speeds stay beside the compiled kernels, in the same cache folder. Bits do not
depend on them. Tested by tests/kernels/test_cpu_prefetch.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from time import perf_counter
from typing import Final, NamedTuple

import numpy as np

from ....alloc.host import aligned_zeros
from ....base.errors import OutOfMemoryError
from ....base.log import get_logger
from ....graph.types import GGMLType
from ...disk_cache import read, write
from ..compiler.jit import cache_folder, on_disk, want
from ..compiler.native import native_at
from ..compiler.objects import AHEAD, SYMBOLS, load_objects
from .formats import FORMATS
from .micro import MICRO_ARGS, RESULTS_BYTES, micro_kernel
from .tiles import COLUMN_BYTES, ROWS, VALUES

TYPE: Final = GGMLType.Q4_K  # of the measured weights; most downloads have it
DISTANCES: Final = (0, 4096)  # bytes; 0: none, as a line is then prefetched when it is read
N_BYTES: Final = 128 << 20  # of weights, more than caches hold
N_VALUES: Final = 4096  # of a row
N_ROUNDS: Final = 8  # of all distances in turns; the best counts, as other programs interfere
MARGIN: Final = 1.02  # a distance that is not the default must be so much faster
DEFAULT: Final = SYMBOLS[AHEAD]  # before anything is measured
_FILE: Final = f"prefetch_{TYPE.name}"
_ALIGNMENT: Final = 64

log = get_logger("kernels")


class Distance(NamedTuple):
    """The chosen distance in bytes, and the bytes per second that one thread read with each."""

    n_bytes: int
    rates: dict[int, float]

    def __str__(self) -> str:
        rates = ", ".join(f"{n} bytes: {rate / 1e9:.1f} GB/s" for n, rate in self.rates.items())
        return f"prefetches {self.n_bytes} bytes ahead ({rates})"


@cache
def choose_distance() -> None:
    """Set the distance of kernels that are loaded from now on.

    If it is not known, measure it, which takes a quarter of a second. The kernel for it is compiled
    together with the next ones, so a start that compiles kernels keeps the default.
    """
    known = known_distance()
    if known is None:
        kernel = micro_kernel(TYPE, 1, False)
        data = on_disk([kernel.name]).get(kernel.name)
        if data is None:
            want([kernel])
            return
        try:
            rates = _measure(data, kernel.name)
        except OutOfMemoryError:
            return
        write(cache_folder(), _FILE, json.dumps(rates).encode())
        known = _best_of(rates)
        log.info(str(known))
    SYMBOLS[AHEAD] = known.n_bytes


def known_distance() -> Distance | None:
    """What was measured on this processor."""
    data = read(cache_folder(), _FILE)
    if data is None:
        return None
    return _best_of({int(n): float(rate) for n, rate in json.loads(data).items()})


def _best_of(rates: dict[int, float]) -> Distance:
    return Distance(max(rates, key=lambda n: rates[n] * (MARGIN if n == DEFAULT else 1)), rates)


def _measure(data: bytes, name: str) -> dict[int, float]:
    """Bytes per second that one thread reads with each distance.

    Raises:
        OutOfMemoryError: there is no memory for the weights.
    """
    kernels = {n: _linked(data, name, n) for n in DISTANCES}
    form, n_blocks = FORMATS[TYPE], N_VALUES // TYPE.block_size
    n_groups = N_BYTES // (form.record_bytes * n_blocks)
    weights = aligned_zeros(N_BYTES, _ALIGNMENT, "weights to measure prefetches")
    weights[:] = 1  # all unwritten pages are one page of zeros
    columns = aligned_zeros(N_VALUES // VALUES * COLUMN_BYTES, _ALIGNMENT, "a column")
    sums = np.zeros(ROWS * n_groups, np.float32)
    results = aligned_zeros(RESULTS_BYTES, _ALIGNMENT, "results")
    results[:8].view(np.int64)[0] = sums.ctypes.data
    groups = weights.ctypes.data, n_groups, len(sums), n_blocks
    rest = columns.ctypes.data, results.ctypes.data, 0, 1
    seconds = dict.fromkeys(DISTANCES, float("inf"))
    for _ in range(N_ROUNDS):
        for n, kernel in kernels.items():
            begin = perf_counter()
            kernel(*groups, *rest)
            seconds[n] = min(seconds[n], perf_counter() - begin)
    return {n: n_groups * n_blocks * form.record_bytes / s for n, s in seconds.items()}


def _linked(data: bytes, name: str, distance: int) -> Callable[..., None]:
    before = SYMBOLS[AHEAD]
    SYMBOLS[AHEAD] = distance
    try:
        return native_at(load_objects({name: data})[name], MICRO_ARGS)
    finally:
        SYMBOLS[AHEAD] = before
