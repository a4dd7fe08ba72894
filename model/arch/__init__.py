"""arch: model architectures, one file each, and their table.

An architecture builds its graph, and declares its weights where it uses them. To add one, write a
file and add the class to the table. Tested by tests/model/test_arch_weights.py and
tests/model/test_arch_forward.py.
"""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Final

from ...base.errors import UnsupportedModelError
from ..gguf import GGUFFile
from ..keys import Keys
from .base import Architecture
from .inputs import GraphInputs, KVLayer
from .weights import Part, WeightSpec

# the module and the class of each architecture, by its name in files; imported when it is needed
ARCHITECTURES: Final[dict[str, str]] = {
    "gemma": "gemma.Gemma",
    "gemma2": "gemma2.Gemma2",
    "gemma3": "gemma3.Gemma3",
    "gpt-oss": "gpt_oss.GptOss",
    "llama": "llama.Llama",
    "llama4": "llama4.Llama4",
    "mistral3": "mistral3.Mistral3",
    "phi2": "phi2.Phi2",
    "phi3": "phi3.Phi3",
    "qwen2": "qwen2.Qwen2",
    "qwen3": "qwen3.Qwen3",
    "qwen3moe": "qwen3moe.Qwen3MoE",
}


def find_architecture(name: str, path: Path) -> type[Architecture]:
    """Return the architecture with this name. `path` is the model's file, for messages.

    Raises:
        UnsupportedModelError: no architecture has this name. The message has the nearest name and
            lists the supported ones.
    """
    if name not in ARCHITECTURES:
        near = get_close_matches(name, ARCHITECTURES, 1)
        raise UnsupportedModelError(
            f"{path}: architecture {name!r} is not supported"
            f"{f'; the nearest name is {near[0]!r}' if near else ''}"
            f"; supported: {', '.join(ARCHITECTURES)}"
        )
    module, _, kind = ARCHITECTURES[name].partition(".")
    found: type[Architecture] = getattr(import_module(f".{module}", __name__), kind)
    assert issubclass(found, Architecture), f"{found} is no architecture"
    return found


def open_architecture(file: GGUFFile) -> Architecture:
    """Return the architecture of a file, with its hyperparameters.

    Raises:
        UnsupportedModelError: an unknown architecture, or a value that is not supported.
        ModelFileError: a key is missing, or has a wrong type or an invalid value.
    """
    return find_architecture(file.metadata.str("general.architecture"), file.path)(Keys(file))


__all__ = [
    "ARCHITECTURES",
    "Architecture",
    "GraphInputs",
    "KVLayer",
    "Part",
    "WeightSpec",
    "find_architecture",
    "open_architecture",
]
