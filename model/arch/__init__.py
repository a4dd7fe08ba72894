"""arch: model architectures, one file each, and their table.

An architecture lists its weights and builds its graph. To add one, write a file and add the class
to the table. Tested by tests/model/test_arch_weights.py and tests/model/test_arch_forward.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from ...base.errors import UnsupportedModelError
from .base import Architecture, Decoder
from .build import GraphBuild, GraphInputs, KVLayer
from .llama import Llama
from .qwen2 import Qwen2
from .qwen3 import Qwen3
from .qwen3moe import Qwen3MoE
from .weights import WeightSpec

ARCHITECTURES: Final[dict[str, Architecture]] = {
    arch.name: arch for arch in (Llama(), Qwen2(), Qwen3(), Qwen3MoE())
}


def find_architecture(name: str, path: Path) -> Architecture:
    """Return the architecture with this name. `path` is the model's file, for messages.

    Raises:
        UnsupportedModelError: no architecture has this name; lists the supported ones.
    """
    if name not in ARCHITECTURES:
        raise UnsupportedModelError(
            f"{path}: architecture {name!r} is not supported; supported: {', '.join(ARCHITECTURES)}"
        )
    return ARCHITECTURES[name]


__all__ = [
    "ARCHITECTURES",
    "Architecture",
    "Decoder",
    "GraphBuild",
    "GraphInputs",
    "KVLayer",
    "WeightSpec",
    "find_architecture",
]
