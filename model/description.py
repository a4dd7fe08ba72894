"""What a model is, from its file's metadata alone: for people who choose a model.

Works for architectures that Lamella cannot run. Tested by tests/model/test_description.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ..base.errors import ModelFileError
from .arch import ARCHITECTURES, find_architecture
from .gguf import Array, GGUFFile, Metadata
from .pooling import POOLINGS
from .sampling import recommended_sampling


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """The facts of a model; a text is "" and a number 0 if the file does not state it.

    Attributes:
        architecture: its name in the file; `is_supported`: True if Lamella can run it.
        n_params: elements of all weights.
        quantization: the type of most of the weights, by bytes.
        n_bytes: of all weights.
        n_ctx_train: tokens of context that it was trained with.
        pooling: of embeddings, by name.
        embeds: True if Lamella computes embeddings with it, unless asked for text.
        chat_template: Jinja source.
        sampling: the recommended values of sampling parameters.
    """

    name: str
    architecture: str
    is_supported: bool
    n_params: int
    quantization: str
    n_bytes: int
    n_layers: int
    n_embd: int
    n_ctx_train: int
    n_vocab: int
    vocabulary: str
    pooling: str
    embeds: bool
    chat_template: str
    sampling: dict[str, Any]
    license: str


def describe_model(file: GGUFFile) -> ModelDescription:
    """Return the facts of an open model.

    Raises:
        ModelFileError: the file has no architecture, or a value of a wrong type.
    """
    data, tensors = file.metadata, file.tensors.values()
    arch = data.str("general.architecture")
    tokens = data.get("tokenizer.ggml.tokens")
    pooling = {int(kind): name for name, kind in POOLINGS.items()}.get(
        data.int(f"{arch}.pooling_type", -1), ""
    )
    is_encoder = arch in ARCHITECTURES and not find_architecture(arch, file.path).has_output
    return ModelDescription(
        name=data.str("general.name", ""),
        architecture=arch,
        is_supported=arch in ARCHITECTURES,
        n_params=sum(math.prod(t.ne) for t in tensors),
        quantization=file_type(file),
        n_bytes=sum(t.nbytes for t in tensors),
        n_layers=data.int(f"{arch}.block_count", 0),
        n_embd=data.int(f"{arch}.embedding_length", 0),
        n_ctx_train=data.int(f"{arch}.context_length", 0),
        n_vocab=len(tokens) if isinstance(tokens, Array) else 0,
        vocabulary=data.str("tokenizer.ggml.model", ""),
        pooling=pooling,
        embeds=is_encoder or pooling not in ("", "none"),
        chat_template=data.str("tokenizer.chat_template", ""),
        sampling=recommended_sampling(data),
        license=data.str("general.license", ""),
    )


def file_type(file: GGUFFile) -> str:
    """Return the type of most of the weights, by bytes; "" without weights."""
    sizes: dict[str, int] = {}
    for t in file.tensors.values():
        sizes[t.type.name] = sizes.get(t.type.name, 0) + t.nbytes
    return max(sizes, key=lambda name: sizes[name], default="")


def plain_metadata(metadata: Metadata) -> Mapping[str, bool | int | float | str]:
    """Return the values of a file that are no arrays. Leaves out texts that are not UTF-8."""
    found: dict[str, bool | int | float | str] = {}
    for key in metadata:
        with suppress(ModelFileError):
            value = metadata[key]
            if not isinstance(value, Array):
                found[key] = value
    return found
