"""A process for the test of memory: loads a model, decodes, and prints its peak memory.

    python memory_process.py MODEL N_CTX

Prints JSON with bytes: `imports`, the peak before the model is loaded; `peak`, the peak at the end;
`kv` and `compute`, the sizes of the KV pool and of compute buffers. Linux only.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from lamella.kernels.cpu import CpuDevice
from lamella.model.batch import Batch
from lamella.model.context import Context
from lamella.model.loader import load_model
from lamella.model.params import ContextParams
from lamella.model.placement import Placement

N_PROMPT = 64


def peak() -> int:
    """Return the peak memory of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmHWM")


def main() -> None:
    imports = peak()
    model = load_model(sys.argv[1], Placement(cpu=CpuDevice(2), devices=()))
    with Context(model, ContextParams(n_ctx=int(sys.argv[2]), n_ubatch=N_PROMPT)) as context:
        seq = context.pool.new_sequence()
        for n in (N_PROMPT, 1):
            batch, pos = Batch(), seq.length
            context.append(seq, n)
            batch.add([5] * n, seq, pos, n_outputs=1)
            context.decode(batch)
        kv = sum(buffer.size for buffer in context.kv.buffers)
        assert context._scheduler is not None
        compute = sum(context._scheduler.buffer_sizes())
        report = {"imports": imports, "peak": peak(), "kv": kv, "compute": compute}
    json.dump(report, sys.stdout)
    model.free()


if __name__ == "__main__":
    main()
