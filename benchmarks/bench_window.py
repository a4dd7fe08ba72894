"""A long context: the time of attention in a layer with a window, and the memory, against the plan.

    scripts/bench window MODEL [--depths 2048,32256] [-n 16] [-t THREADS]

One sequence of random tokens grows to each depth. There, `n` tokens are decoded one by one, with
every kernel call timed. The first table has the median time of attention in a layer, for layers
with and without a window: with a window, it should not rise with the depth. Then follow the peak
memory, as resident bytes above those before the model was opened, and the bytes of the plan. The
last line is JSON. Tested by tests/observe/test_bench_window.py.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from lamella.graph import Op
from lamella.kernels.host import default_threads, peak_memory
from lamella.model.batch import Batch
from lamella.model.context import Context
from lamella.model.kv_sequence import KVSequence
from lamella.runtime.fit import plan_model
from lamella.runtime.open import opened
from lamella.runtime.params import OpenParams
from lamella.sched.profile import Profiler, SplitTime

MIB: Final = 1 << 20
N_WARM_UP: Final = 3  # tokens: the first one builds a graph, the next ones compile the profiler


class Growing:
    """A sequence of random tokens that grows in a context."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._rng = np.random.default_rng(0)
        self._seq: KVSequence = context.pool.new_sequence()

    def decode(self, n: int) -> None:
        """Decode the next `n` tokens together."""
        pos, batch = self._seq.length, Batch()
        self._context.append(self._seq, n)
        tokens = self._rng.integers(0, self._context.n_vocab, n).tolist()
        batch.add(tokens, self._seq, pos, n_outputs=1)
        self._context.decode(batch)

    def attention_ms(self, depth: int, n: int) -> dict[str, float]:
        """Grow to `depth`, and decode `n` tokens. Return the median time by group of layers."""
        profiler = Profiler(each_call=True)
        self.decode(depth - N_WARM_UP - self._seq.length)
        times: dict[str, list[float]] = {}
        for step in range(N_WARM_UP + n):
            self._context.set_profiler(profiler)
            self.decode(1)
            self._context.set_profiler(None)
            splits, _ = profiler.take()
            if step >= N_WARM_UP:
                self._add(times, splits)
        return {name: statistics.median(values) for name, values in times.items()}

    def _add(self, times: dict[str, list[float]], splits: Sequence[SplitTime]) -> None:
        """Add the time of each layer's attention to the list of its group."""
        calls = [call for split in splits for call in split.calls]
        attention = [c for c in calls if c.kind == Op.FLASH_ATTN_EXT.name]
        for call, memory in zip(attention, self._context.model.hp.memory, strict=True):
            name = str(memory.window or "full")
            times.setdefault(name, []).append((call.end - call.begin) / 1e6)


def measure(path: Path, depths: Sequence[int], n: int, n_threads: int) -> dict[str, Any]:
    """Return attention's times at each depth, and the memory."""
    n_ctx = depths[-1] + n
    params = OpenParams.make(
        {
            "path": path,
            "devices": ("none",),
            "n_threads": n_threads,
            "n_ctx": n_ctx,
            "n_parallel": 1,
        }
    )
    planned = sum(device.needed for device in plan_model(params).devices)
    before = peak_memory()
    with opened(params) as context:
        growing = Growing(context)
        found = {depth: growing.attention_ms(depth, n) for depth in depths}
    return {"n_ctx": n_ctx, "ms": found, "plan": planned, "peak": peak_memory() - before}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("model", type=Path)
    add("--depths", default="2048,32256", metavar="A,B", help="tokens before the timed ones")
    add("-n", type=int, default=16, help="timed tokens at each depth (16)")
    add("-t", "--threads", type=int, default=default_threads(), metavar="N")
    args = parser.parse_args()
    depths = sorted(int(depth) for depth in args.depths.split(","))
    if depths[0] <= N_WARM_UP or args.n < 1:
        parser.error(f"depths must be above {N_WARM_UP}, and -n at least 1")
    found = measure(args.model, depths, args.n, args.threads)
    names = list(found["ms"][depths[0]])
    print(f"| depth | {' | '.join(f'{name}: ms/layer' for name in names)} |")
    print("| ---: |" + " ---: |" * len(names))
    for depth, times in found["ms"].items():
        print(f"| {depth} | {' | '.join(f'{times[name]:.3f}' for name in names)} |")
    memory = f"peak {found['peak'] / MIB:.1f} MiB, plan {found['plan'] / MIB:.1f} MiB"
    print(f"\nmemory with {found['n_ctx']} tokens of context: {memory}")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
