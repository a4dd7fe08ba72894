"""What to open and how: the parameters of an instance, by llama-server's names.

Knows no device and no file. Tested by tests/runtime/test_instance.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..base.errors import RequestError
from ..graph.types import GGMLType
from ..kernels.cpu.pool import POLL
from ..model.context import KV_TYPES

# the least and the largest value of each number
LIMITS: Final = {
    "n_ctx": (0, 2**31 - 1),
    "n_batch": (1, 2**31 - 1),
    "n_ubatch": (1, 2**31 - 1),
    "n_parallel": (1, 1024),
    "n_threads": (1, 512),
    "n_threads_batch": (1, 512),
    "poll": (0, 100),
    "n_gpu_layers": (-(2**31), 2**31 - 1),
    "main_gpu": (0, 2**31 - 1),
    "n_cpu_moe": (-1, 2**31 - 1),
    "fit_target": (0, 2**31 - 1),
}


PLACEMENTS: Final = ("strict", "warn", "auto")


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceParams:
    """What to open and how, by llama-server's names.

    Args:
        path: the GGUF file, the first one if there are several.
        n_ctx: cells of the KV pool, 0 for as many tokens as the model was trained with.
        n_batch, n_ubatch: most tokens that are computed at once, the lesser of the two.
        n_parallel: generations at once.
        n_threads: of the CPU, for single tokens; None for one for each core it may use.
        n_threads_batch: for prompts and several tokens at once; None for n_threads.
        poll: how long threads spin for work before they sleep, 0 (not at all) to 100 (2 ms).
        n_gpu_layers: layers for the devices, from the last on; below 0 all; None: as many as fit.
        devices: names as `kernels.devices` knows them; none: all NVIDIA GPUs, if there are any.
        split_mode: "layer" spreads the layers over the devices, "none" uses the main one alone.
        main_gpu: which of the devices that is, from 0 on.
        tensor_split: the devices' shares of the layers.
        type_k, type_v: types of the KV pool: f32, f16, bf16, q8_0.
        kv_offload: keep keys and values on the device of their layer.
        op_offload: let devices take over large batches from the CPU.
        repack: keep the CPU's weights as its fast kernels want them.
        overrides: (pattern, memory) for weights whose names match: see `find_buffer_type`.
        n_cpu_moe: layers, from the first on, whose experts stay with the CPU; below 0 all.
        placement: what to do if nodes cannot run where their layer is: "strict" refuses, "warn"
            tells, "auto" is silent.
        fit: take a smaller context if that of the model does not fit.
        fit_target: MiB to leave free on each device when layers or context are fitted.
        chat_template: instead of the file's: a template's source, or "chatml".

    Raises:
        RequestError: a value that is not allowed, or of another type.
    """

    path: str | Path
    n_ctx: int = 0
    n_batch: int = 2048
    n_ubatch: int = 512
    n_parallel: int = 4
    n_threads: int | None = None
    n_threads_batch: int | None = None
    poll: int = POLL
    n_gpu_layers: int | None = None
    devices: Sequence[str] = ()
    split_mode: str = "layer"
    main_gpu: int = 0
    tensor_split: tuple[float, ...] | None = None
    type_k: str = "f16"
    type_v: str = "f16"
    kv_offload: bool = True
    op_offload: bool = True
    repack: bool = True
    overrides: Sequence[tuple[str, str]] = ()
    n_cpu_moe: int = 0
    placement: str = "warn"
    fit: bool = False
    fit_target: int = 1024
    chat_template: str | None = None

    def __post_init__(self) -> None:
        for name, (low, high) in LIMITS.items():
            value = getattr(self, name)
            if value is None and name in ("n_threads", "n_threads_batch", "n_gpu_layers"):
                continue
            if not isinstance(value, int) or isinstance(value, bool):
                raise RequestError(f"{name} is {value!r}: must be a whole number")
            if not low <= value <= high:
                raise RequestError(f"{name} is {value}: must lie in {low}..{high}")
        if self.placement not in PLACEMENTS:
            raise RequestError(
                f"placement is {self.placement!r}: must be one of {', '.join(PLACEMENTS)}"
            )
        if isinstance(self.devices, str):
            raise RequestError(f"devices is {self.devices!r}: must be a list of names")
        for name in ("type_k", "type_v"):
            parse_kv_type(name, getattr(self, name))


def parse_kv_type(name: str, text: str) -> GGMLType:
    """The type of a KV pool by its name in any case.

    Raises:
        RequestError: lists the types there are.
    """
    known = {t.name.lower(): t for t in KV_TYPES}
    found = known.get(str(text).lower())
    if found is None:
        raise RequestError(f"{name} is {text!r}: must be one of {', '.join(known)}")
    return found
