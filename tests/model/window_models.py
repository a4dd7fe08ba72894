"""Tiny models whose layers have windows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from tiny_models import Tiny, write_model

from lamella.model.arch.base import Architecture
from lamella.model.layer_memory import Window
from lamella.model.loader import LoadedModel


def write_window_model(path: Path, *, n_layer: int = 6, n_swa: int = 512) -> None:
    """Write a Gemma 3: every sixth layer has no window."""
    tiny = Tiny(arch="gemma3", n_layer=n_layer, tied=True, n_ctx=1 << 17, qk_norm=True)
    ones = np.ones(tiny.n_embd, np.float32)
    names = ("post_attention_norm", "post_ffw_norm")
    write_model(
        tiny,
        path,
        replace={f"blk.{il}.{name}.weight": ones for il in range(n_layer) for name in names},
        metadata={"gemma3.attention.sliding_window": n_swa},
    )


def set_windows(model: LoadedModel, *windows: Window | None) -> None:
    """Give the layers of a loaded model these windows."""
    arch: Architecture = model.arch
    arch.hp = model.hp = model.hp.with_layers(lambda il, layer: replace(layer, window=windows[il]))
