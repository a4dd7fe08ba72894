"""The sizes of the network, without PyTorch, for the modules that write and read files.

Tested by tests/recipe/test_export.py.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a network."""

    n_vocab: int
    n_ctx: int = 1024
    n_embd: int = 256
    n_layer: int = 5
    n_head: int = 4
    n_head_kv: int = 2
    n_ff: int = 768
    rope_base: float = 10000.0
    rms_eps: float = 1e-5

    @property
    def head_dim(self) -> int:
        return self.n_embd // self.n_head
