"""Files of control vectors, for tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

F32Array = npt.NDArray[np.float32]


def write_control(
    path: Path, tensors: Mapping[str, npt.NDArray[np.generic]], model: str = "llama"
) -> Path:
    writer = gguf.GGUFWriter(path, "controlvector")
    writer.add_string("controlvector.model_hint", model)
    writer.add_uint32("controlvector.layer_count", len(tensors))
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def directions(n_layer: int, n_embd: int, seed: int = 0) -> dict[str, F32Array]:
    rng = np.random.default_rng(seed)
    return {f"direction.{il}": rng.standard_normal(n_embd, np.float32) for il in range(1, n_layer)}
