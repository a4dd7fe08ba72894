"""Plans of tiny models with simulated devices of exact sizes, for the tests of plans and fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from open_params import open_params
from tiny_models import TINY, write_model

from lamella.runtime.fit import plan_model
from lamella.runtime.plan import (
    ModelPlan,
)

SMALL: Mapping[str, Any] = {"n_ctx": 512, "n_ubatch": 64, "n_threads": 2}
CONFIGURATIONS: Mapping[str, Mapping[str, Any]] = {
    "CPU": {},
    "CPU, one thread for tokens": {"n_threads": 1, "n_threads_batch": 2},
    "not packed": {"repack": False},
    "a large ubatch": {"n_ubatch": 512, "n_parallel": 8},
    "single tokens": {"n_ubatch": 1, "n_parallel": 1},
    "ubatches of odd sizes": {"n_ubatch": 33, "n_parallel": 3},
    "ubatches smaller than the batch of sequences": {"n_ubatch": 5, "n_parallel": 8},
    "one sequence": {"n_parallel": 1},
    "other types of keys": {"type_k": "f32", "type_v": "bf16"},
    "q8_0 keys": {"type_k": "q8_0", "type_v": "q8_0"},
    "q5_1 keys, iq4_nl values": {"type_k": "q5_1", "type_v": "iq4_nl"},
    "a GPU": {"devices": ("sim",)},
    "some layers": {"devices": ("sim",), "n_gpu_layers": 2},
    "no layers": {"devices": ("sim",), "n_gpu_layers": 0},
    "two GPUs": {"devices": ("sim:1GiB:2",)},
    "two GPUs unevenly": {"devices": ("sim:1GiB:2",), "tensor_split": (3.0, 1.0)},
    "two GPUs, many sequences": {"devices": ("sim:1GiB:2",), "n_parallel": 8, "n_ubatch": 33},
    "two GPUs, q8_0 keys": {"devices": ("sim:1GiB:2",), "type_k": "q8_0", "type_v": "q8_0"},
    "two GPUs and the CPU": {"devices": ("sim:1GiB:2",), "n_gpu_layers": 2},
    "two GPUs, of which one is used": {
        **{"devices": ("sim:1GiB:2",), "split_mode": "none", "main_gpu": 1}
    },
    "a GPU and unpacked weights": {**{"devices": ("sim",), "n_gpu_layers": 2, "repack": False}},
    "no op offload": {"devices": ("sim",), "n_gpu_layers": 1, "op_offload": False},
    "embeddings on the GPU": {"devices": ("sim",), "embd_offload": True},
    "embeddings on the first of two GPUs": {"devices": ("sim:1GiB:2",), "embd_offload": True},
    "keys on the CPU": {"devices": ("sim",), "kv_offload": False},
    "overrides": {"devices": ("sim",), "overrides": (("ffn_down", "CPU"),)},
    "overrides to the other GPU": {
        **{"devices": ("sim:1GiB:2",), "overrides": (("attn_q", "SIM1"), ("ffn", "SIM0_Host"))}
    },
    "experts on the CPU": {"devices": ("sim",), "n_cpu_moe": -1},
}
N_LAYER, N_CTX, N_DEEP_VOCAB = 3, 8192, 2000


def write_deep(folder: Path) -> Path:
    """Write a model with more layers and a longer context; its output is larger than a layer."""
    path = folder / "deep.gguf"
    write_model(replace(TINY["llama"], n_layer=N_LAYER, n_ctx=N_CTX, n_vocab=N_DEEP_VOCAB), path)
    return path


def sim(n_bytes: int, n_gpus: int = 1) -> str:
    """The name of simulated devices with exactly this memory."""
    return f"sim:{n_bytes / 1024:.10f}KiB:{n_gpus}"


def plan_of(path: Path, **params: Any) -> ModelPlan:
    return plan_model(open_params(path, **{**SMALL, **params}))
