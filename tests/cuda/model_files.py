"""Files of random models, which may be large, for the tests of whole models on a GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

import make_model
import tiny_models
from gguf.constants import GGMLQuantizationType
from shapes import SHAPES, Shape

from lamella.graph import GGMLType

TYPES: Final = (
    *("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"),
)
FEW_BITS: Final = (
    *("Q2_K", "Q3_K", "IQ4_NL", "IQ4_XS", "MXFP4", "IQ3_S", "IQ3_XXS"),
    *("IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ1_S", "IQ1_M", "TQ1_0", "TQ2_0"),
)
# more than two blocks of 256, whose order matters; a vocabulary of more than twice 256, so that the
# device finds the largest logits
SMALL: Final = Shape(n_embd=256, n_ff=768, n_layer=2, n_head=4, n_head_kv=2, n_vocab=600)
DEEP: Final = Shape(n_embd=64, n_ff=96, n_layer=5, n_head=4, n_head_kv=2, n_vocab=600)
KNOWN: Final = {**SHAPES, "small": SMALL, "deep": DEEP, "thin": replace(DEEP, n_layer=1)}


class ModelFiles:
    """Random models in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def random(self, shape: str, type: str) -> Path:
        """A llama of one of the `KNOWN` shapes."""
        path = self._folder / f"{shape}-{type}.gguf"
        if not path.exists():
            make_model.write_model(KNOWN[shape], GGMLQuantizationType[type], path)
        return path

    def tiny(self, name: str, type: str) -> Path:
        """A tiny model of an architecture (tests/model/tiny_models.py)."""
        path = self._folder / f"{name}-{type}.gguf"
        if not path.exists():
            tiny_models.write_model(tiny_models.TINY[name], path, GGMLType[type])
        return path

    def remove(self) -> None:
        """Remove all files."""
        for path in self._folder.glob("*.gguf"):
            path.unlink()
