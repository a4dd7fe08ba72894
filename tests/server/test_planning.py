"""Plans are exact: what they say is what is allocated, to the byte, and stays so."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_models import TINY, write_model

from lamella.alloc.buffer import BufferType, Usage
from lamella.base.settings import STRICT
from lamella.graph import GGMLType
from lamella.model.batch import Batch
from lamella.model.context import Context
from lamella.model.loader import load_model
from lamella.model.plan import MemoryPlan
from lamella.server.params import InstanceParams
from lamella.server.planning import Prepared, prepare

SMALL: Mapping[str, Any] = {"n_ctx": 512, "n_ubatch": 64, "n_threads": 2}

CONFIGURATIONS: Mapping[str, Mapping[str, Any]] = {
    "CPU": {},
    "CPU, one thread for tokens": {"n_threads": 1, "n_threads_batch": 2},
    "not packed": {"repack": False},
    "a large ubatch": {"n_ubatch": 512, "n_parallel": 8},
    "single tokens": {"n_ubatch": 1, "n_parallel": 1},
    "q8_0 keys": {"type_k": "f32", "type_v": "bf16"},
    "a GPU": {"devices": ("sim",)},
    "some layers": {"devices": ("sim",), "n_gpu_layers": 2},
    "no layers": {"devices": ("sim",), "n_gpu_layers": 0},
    "two GPUs": {"devices": ("sim:1GiB:2",)},
    "two GPUs unevenly": {"devices": ("sim:1GiB:2",), "tensor_split": (3.0, 1.0)},
    "two GPUs and the CPU": {"devices": ("sim:1GiB:2",), "n_gpu_layers": 2},
    "keys on the CPU": {"devices": ("sim",), "kv_offload": False},
    "overrides": {"devices": ("sim",), "overrides": (("ffn_down", "CPU"),)},
    "experts on the CPU": {"devices": ("sim",), "n_cpu_moe": -1},
}
FILES = ("llama", "mixtral Q4_0", "qwen3moe", "qwen2 Q8_0")


@pytest.fixture(scope="module", params=FILES)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    arch, _, type = request.param.partition(" ")
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_model(TINY[arch], path, GGMLType[type or "F32"])
    return path


def allocated(context: Context) -> dict[str, dict[Usage, int]]:
    """Bytes of all buffers, by buffer type and use, from those who keep them."""
    found: dict[str, dict[Usage, int]] = {}

    def add(buffers: Any, usage: Usage) -> None:
        for buffer in buffers:
            assert not buffer.freed and buffer.usage is usage
            if buffer.size:
                uses = found.setdefault(buffer.buft.name, dict.fromkeys(Usage, 0))
                uses[usage] += buffer.size

    scheduler = context._scheduler
    assert scheduler is not None
    add(context.model._buffers, Usage.WEIGHTS)
    add(context._kv_buffers, Usage.ANY)
    add(itertools.chain(*scheduler._galloc.buffers), Usage.COMPUTE)
    add((b.work for b in scheduler.backends if b.work is not None), Usage.WORK)
    return found


def used(context: Context) -> dict[str, int]:
    """Bytes in use, by buffer type, as these count them."""
    bufts: set[BufferType] = set()
    for device in context.model.devices:
        host = device.host_buffer_type
        bufts |= {device.buffer_type, *device.extra_buffer_types, *((host,) if host else ())}
    return {buft.name: buft.used for buft in bufts if buft.used}


def planned(prepared: Prepared) -> list[MemoryPlan]:
    return [m for device in prepared.plan.devices for m in device.memory]


def decode_all_kinds(context: Context) -> None:
    """Prompts, single tokens and several sequences, with and without outputs."""
    rng = np.random.default_rng(3)
    seqs = [context.pool.new_sequence() for _ in range(context.n_seq_max)]
    for lengths in ([1], [7], [40], [1, 1], [3, 1, 9], [1] * 4, [30] * 4, [90], [1]):
        batch = Batch()
        for seq, n in zip(seqs, lengths, strict=False):
            pos = seq.length
            context.append(seq, n)
            batch.add(rng.integers(0, context.n_vocab, n).tolist(), seq, pos, n_outputs=n % 3)
        context.decode(batch)
    for seq in seqs:
        seq.free()


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_plan_is_exact(path: Path, name: str) -> None:
    prepared = prepare(InstanceParams(path=path, **{**SMALL, **CONFIGURATIONS[name]}))
    model = load_model(path, prepared.model_params)
    try:
        with STRICT.set(1), Context(model, prepared.context_params) as context:
            for _ in range(2):
                uses = allocated(context)
                assert {m.buffer_type: m.total for m in planned(prepared)} == used(context)
                for m in planned(prepared):
                    found = uses[m.buffer_type]
                    assert m.weights == found[Usage.WEIGHTS]
                    assert m.kv == found[Usage.ANY]
                    assert m.compute == found[Usage.COMPUTE]
                    assert m.work == found[Usage.WORK]
                decode_all_kinds(context)
            assert context.no_pipeline == prepared.plan.no_pipeline
    finally:
        model.free()
