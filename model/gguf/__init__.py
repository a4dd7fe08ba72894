"""gguf: reading GGUF files, bounded and lazy.

    with open_gguf(path) as file:
        n_layer = file.metadata.int("llama.block_count")
        weight = file.read(file.tensors["output.weight"])

Every broken file raises one error, ModelFileError, that says what is wrong and where.
"""

from .file import GGUFFile, open_gguf
from .header import TensorInfo
from .metadata import Array, Metadata, Value

__all__ = ["open_gguf", "GGUFFile", "TensorInfo", "Metadata", "Array", "Value"]
