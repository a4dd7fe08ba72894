"""gguf: reads GGUF files, with every length checked and values decoded on access.

    with open_gguf(path) as file:
        n_layer = file.metadata.int("llama.block_count")
        weight = file.read(file.tensors["output.weight"])

A broken file raises ModelFileError, which names the defect and its place.
"""

from .file import FileStamp, GGUFFile, open_gguf
from .header import TensorInfo
from .metadata import Array, Metadata, OverriddenMetadata, Scalar, Value
from .strings import Strings

__all__ = [
    "open_gguf",
    "FileStamp",
    "GGUFFile",
    "TensorInfo",
    "Metadata",
    "OverriddenMetadata",
    "Array",
    "Strings",
    "Scalar",
    "Value",
]
