"""The bits of a tiny model: in chunks, beside another sequence, and split over two devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from placed import placed

from lamella.kernels.cpu import CpuDevice
from lamella.kernels.devices import find_devices
from lamella.model.batch import Batch
from lamella.model.context import Context
from lamella.model.loader import load_model
from lamella.model.params import ContextParams
from lamella.model.placement import moe_overrides


def check_bits(path: Path, keys: Mapping[str, Any], tokens: list[int]) -> None:
    """Compare the logits of a model with these keys: on the CPU and split, alone and in batches."""
    with opened(path) as context:
        alone = logits(context, tokens)
    with opened(path, 2) as context:
        assert logits(context, tokens, 5, 6, 19).tobytes() == alone.tobytes()
    if "expert_count" in keys:
        with opened(path, keys["block_count"] + 1, cpu_moe=True) as context:
            assert logits(context, tokens, 11).tobytes() == alone.tobytes()


@contextmanager
def opened(
    path: Path, n_gpu_layers: int = 0, *, cpu_moe: bool = False, **sizes: Any
) -> Iterator[Context]:
    """Open a context on the CPU, with layers on a simulated GPU."""
    cpu = CpuDevice(repack=False)  # as a simulated GPU does not
    devices = tuple(find_devices(["sim"] if n_gpu_layers else [], cpu))
    overrides = moe_overrides(n_gpu_layers, -1, cpu.buffer_type) if cpu_moe else ()
    params = ContextParams(**{"n_ctx": 128, "n_parallel": 2} | sizes)
    with (
        load_model(path, placed(cpu, devices, overrides, n_gpu_layers=n_gpu_layers)) as model,
        Context(model, params) as context,
    ):
        yield context


def logits(context: Context, tokens: list[int], *cuts: int) -> npt.NDArray[np.float32]:
    """Return the logits after each token. With cuts, another sequence is in the batches."""
    seq, other = context.pool.new_sequence(), context.pool.new_sequence()
    context.append(seq, len(tokens))
    context.append(other, len(tokens))
    rows, n = [], len(tokens)
    for begin, end in zip((0, *cuts), (*cuts, n), strict=True):
        batch = Batch()
        if cuts:
            batch.add(tokens[n - end : n - begin], other, begin)
        batch.add(tokens[begin:end], seq, begin, n_outputs=end - begin)
        rows.append(context.decode(batch).copy())
    seq.free()
    other.free()
    return np.concatenate(rows)
