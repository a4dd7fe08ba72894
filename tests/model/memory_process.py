"""A process for the tests of memory: loads a model, decodes, and prints its peak memory.

    python memory_process.py MODEL N_CTX    the model's context alone
    python memory_process.py MODEL          `lamella.load`, the default context and then all of it

Prints JSON with bytes: `imports`, the peak before the model is loaded; `peak`, the peak at the end;
`kv` and `compute`, the sizes of the KV pool and of compute buffers. Linux only.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import lamella
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
    path, *args = sys.argv[1:]
    report = decode(path, int(args[0])) if args else generate(path)
    json.dump(report, sys.stdout)


def decode(path: str, n_ctx: int) -> dict[str, int]:
    """Decode a batch, and a token after it. Return the report."""
    imports = peak()
    model = load_model(path, Placement(cpu=CpuDevice(2), devices=()))
    with Context(model, ContextParams(n_ctx=n_ctx, n_ubatch=N_PROMPT)) as context:
        seq = context.pool.new_sequence()
        for n in (N_PROMPT, 1):
            batch, pos = Batch(), seq.length
            context.append(seq, n)
            batch.add([5] * n, seq, pos, n_outputs=1)
            context.decode(batch)
        report = _report(context, imports)
    model.free()
    return report


def generate(path: str) -> dict[str, int]:
    """Generate two tokens with the public API, in two contexts. Return the report of the last."""
    imports = peak()
    for n_ctx in (None, 0):
        with lamella.load(path, devices=["none"], n_ctx=n_ctx) as model:
            model.complete([5] * N_PROMPT, n_predict=2, ignore_eos=True)
            report = _report(model._generator().context, imports)
    return report


def _report(context: Context, imports: int) -> dict[str, int]:
    kv = sum(buffer.size for buffer in context.kv.buffers)
    assert context._scheduler is not None
    compute = sum(context._scheduler.buffer_sizes())
    return {"imports": imports, "peak": peak(), "kv": kv, "compute": compute}


if __name__ == "__main__":
    main()
