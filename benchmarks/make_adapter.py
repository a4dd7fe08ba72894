"""Writes LoRA adapters with random weights for a model, for benchmarks and tests.

    .venv/bin/python benchmarks/make_adapter.py MODEL -o FILE [--rank 16] [--seed 0]

An adapter has matrices for each tensor of attention and of feed-forward parts that is a matrix. A
product changes by about `--strength` of the size of its input, with the scale 1. Tested by
tests/model/test_adapters.py.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import gguf
import numpy as np
import numpy.typing as npt

from lamella.model.gguf import open_gguf

F32Array = npt.NDArray[np.float32]
Matrices = dict[str, tuple[F32Array, F32Array]]  # A [rank, n_in] and B [n_out, rank]

CHANGED: Final = r"\.(attn_(q|k|v|qkv|output)|ffn_(gate|up|down))\.weight$"
TYPES: Final = {"F32": np.float32, "F16": np.float16}


def random_matrices(
    model: Path, rank: int, *, changed: str = CHANGED, strength: float = 0.1, seed: int = 0
) -> Matrices:
    """Return random matrices for the tensors of a model whose names match `changed`."""
    rng, found = np.random.default_rng(seed), Matrices()
    with open_gguf(model, header_only=True) as file:
        shapes = {name: info.ne for name, info in file.tensors.items() if len(info.ne) == 2}
    for name, (n_in, n_out) in shapes.items():
        if re.search(changed, name):
            a = n_in**-0.5 * rng.standard_normal((rank, n_in), np.float32)
            b = strength * rank**-0.5 * rng.standard_normal((n_out, rank), np.float32)
            found[name] = a, b
    return found


def write_adapter(
    path: Path,
    arch: str,
    tensors: Mapping[str, npt.NDArray[np.generic]],
    *,
    alpha: float | None = None,
    metadata: Mapping[str, str | list[int]] | None = None,
) -> None:
    """Write an adapter. `metadata` are more keys, or other values; those with "" are left out."""
    keys = {"general.type": "adapter", "adapter.type": "lora", "general.name": path.stem}
    writer = gguf.GGUFWriter(path, arch)
    for key, value in {**keys, **(metadata or {})}.items():
        if isinstance(value, list):
            writer.add_array(key, value)
        elif value:
            writer.add_string(key, value)
    if alpha is not None:
        writer.add_float32("adapter.lora.alpha", alpha)
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def named(matrices: Matrices, type: str = "F32") -> dict[str, npt.NDArray[np.generic]]:
    """Return the tensors of an adapter by name."""
    found: dict[str, npt.NDArray[np.generic]] = {}
    for name, (a, b) in matrices.items():
        found[f"{name}.lora_a"] = a.astype(TYPES[type])
        found[f"{name}.lora_b"] = b.astype(TYPES[type])
    return found


def arch_of(model: Path) -> str:
    """The architecture of a model's file."""
    with open_gguf(model, header_only=True) as file:
        return file.metadata.str("general.architecture")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path, metavar="MODEL")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", required=True)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--type", choices=TYPES, default="F32")
    parser.add_argument("--strength", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    matrices = random_matrices(args.model, args.rank, strength=args.strength, seed=args.seed)
    tensors = named(matrices, args.type)
    write_adapter(args.output, arch_of(args.model), tensors, alpha=float(args.rank))
    print(f"{args.output}: {args.output.stat().st_size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
