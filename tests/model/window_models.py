"""Tiny models whose layers have windows, shaped like Gemma 3: most layers have one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tiny_models import Tiny, write_model

from lamella.model.arch.base import Architecture
from lamella.model.layer_memory import Window
from lamella.model.loader import LoadedModel


def write_window_model(path: Path, *, n_layer: int = 6, n_swa: int = 512, period: int = 6) -> None:
    """Write a model in which every last layer of a period has no window."""
    tiny = Tiny(arch="gemma2", n_layer=n_layer, tied=True, n_ctx=1 << 17, head_dim=16)
    ones = np.ones(tiny.n_embd, np.float32)
    names = ("post_attention_norm", "post_ffw_norm")
    write_model(
        tiny,
        path,
        replace={f"blk.{il}.{name}.weight": ones for il in range(n_layer) for name in names},
        metadata={
            "gemma2.attention.sliding_window": n_swa,
            "gemma2.attention.sliding_window_pattern": period,
        },
    )


def set_windows(model: LoadedModel, *windows: Window | None) -> None:
    """Give the layers of a loaded model these windows."""
    arch: Architecture = model.arch
    arch.hp = model.hp = model.hp.with_windows(windows)
