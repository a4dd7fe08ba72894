"""Writes models of the llama architecture with random weights, for benchmarks.

    .venv/bin/python benchmarks/make_model.py --shape 1b --type Q4_0 [-o FILE] [--seed 0]

With --header-only, the file ends before the weights, which is enough for `lamella plan`. Every
matrix has the given type, embeddings and output included (llama-quantize's --pure). If rows are not
whole blocks, the matrix has the type to which llama.cpp falls back. The vocabulary is a valid SPM
vocabulary, so Lamella and llama.cpp both load the file. Weights are scaled so that activations stay
near 1. Blocks of a tensor are drawn from a pool of random blocks, reproducibly for a seed. Tested
by tests/model/test_make_model.py.
"""

from __future__ import annotations

import argparse
import itertools
import string
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Final

import gguf
import numpy as np
import numpy.typing as npt
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from rich.console import Console
from rich.progress import Progress

from lamella.graph.types import GGMLType
from lamella.kernels.quants import LAYOUTS

Bytes = npt.NDArray[np.uint8]
Type = GGMLQuantizationType

N_POOL: Final = 1 << 14  # units in the pool of a tensor
UNIT: Final = 32  # elements of a unit, for types of smaller blocks
N_BYTES: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of a llama with separate output weights; with experts, of a Mixtral."""

    n_embd: int
    n_ff: int
    n_layer: int
    n_head: int
    n_head_kv: int
    n_vocab: int = 32000
    n_ctx: int = 4096  # tokens of the trained context
    n_expert: int = 0
    n_expert_used: int = 0

    @property
    def head_dim(self) -> int:
        return self.n_embd // self.n_head


SHAPES: Final = {
    "70b": Shape(n_embd=8192, n_ff=28672, n_layer=80, n_head=64, n_head_kv=8, n_vocab=128_000),
    "8x7b": Shape(
        **{"n_embd": 4096, "n_ff": 14336, "n_layer": 32, "n_head": 32, "n_head_kv": 8},
        **{"n_expert": 8, "n_expert_used": 2},
    ),
    "8b": Shape(n_embd=4096, n_ff=14336, n_layer=32, n_head=32, n_head_kv=8, n_vocab=128_000),
    "1b": Shape(n_embd=2048, n_ff=8192, n_layer=16, n_head=32, n_head_kv=8),
    "0.5b": Shape(n_embd=896, n_ff=4864, n_layer=24, n_head=14, n_head_kv=2),
    "110m": Shape(n_embd=768, n_ff=2048, n_layer=12, n_head=12, n_head_kv=12),
    "15m": Shape(n_embd=288, n_ff=768, n_layer=6, n_head=6, n_head_kv=6),
}

# types whose blocks are random bits, with the center of their quants: a block of Q4_K is
# d * scale * (q - 7.5) if dmin is 7.5 d and scales and mins are equally distributed
CENTERS: Final = {
    Type.Q2_K: 1.5,
    Type.Q3_K: 0.0,
    Type.Q4_K: 7.5,
    Type.Q5_K: 15.5,
    Type.Q6_K: 0.0,
    Type.IQ4_NL: 0.0,
}
# types for rows that are not whole blocks (llama-quant.cpp, llama_tensor_get_type)
FALLBACKS: Final = {
    Type.Q2_K: Type.Q4_0,
    Type.Q3_K: Type.Q4_0,
    Type.Q4_K: Type.Q5_0,
    Type.Q5_K: Type.Q5_1,
    Type.Q6_K: Type.Q8_0,
}
TYPES: Final = (
    *(Type.F32, Type.F16, Type.BF16),
    *(Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q8_0),
    *CENTERS,
)


# --- tensors ---


def tensors(shape: Shape) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield name and ne of every tensor, in the order of the file."""
    n_embd, n_ff = shape.n_embd, shape.n_ff
    n_kv = shape.head_dim * shape.n_head_kv
    yield "token_embd.weight", (n_embd, shape.n_vocab)
    for il in range(shape.n_layer):
        blk = f"blk.{il}."
        yield blk + "attn_norm.weight", (n_embd,)
        yield blk + "attn_q.weight", (n_embd, n_embd)
        yield blk + "attn_k.weight", (n_embd, n_kv)
        yield blk + "attn_v.weight", (n_embd, n_kv)
        yield blk + "attn_output.weight", (n_embd, n_embd)
        yield blk + "ffn_norm.weight", (n_embd,)
        if shape.n_expert:
            yield blk + "ffn_gate_inp.weight", (n_embd, shape.n_expert)
        experts, suffix = ((shape.n_expert,), "_exps") if shape.n_expert else ((), "")
        yield blk + f"ffn_gate{suffix}.weight", (n_embd, n_ff, *experts)
        yield blk + f"ffn_up{suffix}.weight", (n_embd, n_ff, *experts)
        yield blk + f"ffn_down{suffix}.weight", (n_ff, n_embd, *experts)
    yield "output_norm.weight", (n_embd,)
    yield "output.weight", (n_embd, shape.n_vocab)


def type_of(ne: tuple[int, ...], wanted: Type) -> Type:
    """Return the type of a tensor: F32 for vectors, a fallback for rows of partial blocks."""
    if len(ne) == 1:
        return Type.F32
    while ne[0] % GGML_QUANT_SIZES[wanted][0]:
        wanted = FALLBACKS.get(wanted, Type.F16)
    return wanted


def data_of(ne: tuple[int, ...], type: Type, rng: np.random.Generator) -> Bytes:
    """Return random data of a tensor as bytes [rows..., bytes of a row]."""
    if len(ne) == 1:
        return (1 + 0.1 * rng.standard_normal(ne, np.float32)).view(np.uint8)
    pool = _pool(type, ne[0])
    n_units = int(np.prod(ne)) // _unit(type)
    drawn = pool[rng.integers(0, len(pool), n_units, np.uint16)]
    rows: Bytes = drawn.reshape(*ne[:0:-1], -1)
    return rows


def _unit(type: Type) -> int:
    return max(GGML_QUANT_SIZES[type][0], UNIT)


@cache
def _pool(type: Type, n: int) -> Bytes:
    """Return random units for rows of `n` elements. Products with values near 1 stay near 1."""
    rng = np.random.default_rng([int(type), n])
    deviation = n**-0.5
    if type in CENTERS:
        return _random_blocks(type, deviation, rng)
    values = deviation * rng.standard_normal((N_POOL, _unit(type)), np.float32)
    pool: Bytes = quants.quantize(values, type).view(np.uint8).reshape(N_POOL, -1)
    return pool


def _random_blocks(type: Type, deviation: float, rng: np.random.Generator) -> Bytes:
    """Return blocks of random bits, with a d that gives their values this standard deviation."""
    layout = LAYOUTS[GGMLType.__members__[type.name]]
    raw = rng.integers(0, 256, (N_POOL, layout.itemsize), np.uint8)
    blocks = raw.view(layout)
    fields = {"d": 1.0, "dmin": CENTERS[type]}
    for name, value in fields.items():
        if name in (layout.names or ()):
            blocks[name] = value
    spread = float(quants.dequantize(raw, type).std())
    for name, value in fields.items():
        if name in (layout.names or ()):
            blocks[name] = value * deviation / spread
    return raw


# --- the file ---


def vocabulary(n: int) -> tuple[list[str], list[int]]:
    """Return tokens and types of an SPM vocabulary: 3 special tokens, the bytes, then words."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(N_BYTES))]
    kinds = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL]
    kinds += [gguf.TokenType.BYTE] * N_BYTES
    letters = string.ascii_lowercase
    words = ("".join(w) for k in range(1, 5) for w in itertools.product(letters, repeat=k))
    pieces = itertools.chain(["▁"], (begin + word for word in words for begin in ("▁", "")))
    tokens += itertools.islice(pieces, n - len(tokens))
    kinds += [gguf.TokenType.NORMAL] * (n - len(kinds))
    return tokens, [int(kind) for kind in kinds]


def _write_metadata(writer: gguf.GGUFWriter, shape: Shape, name: str) -> None:
    writer.add_name(name)
    writer.add_context_length(shape.n_ctx)
    writer.add_embedding_length(shape.n_embd)
    writer.add_block_count(shape.n_layer)
    writer.add_feed_forward_length(shape.n_ff)
    writer.add_head_count(shape.n_head)
    writer.add_head_count_kv(shape.n_head_kv)
    if shape.n_expert:
        writer.add_expert_count(shape.n_expert)
        writer.add_expert_used_count(shape.n_expert_used)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(shape.n_vocab)
    tokens, kinds = vocabulary(shape.n_vocab)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([-float(i) for i in range(len(tokens))])
    writer.add_token_types(kinds)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def write_model(
    shape: Shape,
    type: Type,
    path: Path,
    *,
    name: str = "random",
    seed: int = 0,
    header_only: bool = False,
) -> list[str]:
    """Write a model. Return name and type of each tensor that fell back to another type.

    With `header_only`, the tensors' data is omitted. The file is written as a whole: after an
    interruption it does not exist.
    """
    todo = [(tensor, ne, type_of(ne, type)) for tensor, ne in tensors(shape)]
    part = path.with_name(f"{path.name}.part")
    writer = gguf.GGUFWriter(part, "llama")
    try:
        _write_metadata(writer, shape, name)
        _write_header(writer, todo)
        if not header_only:
            _write_tensors(writer, todo, path.name, seed)
        writer.close()
        part.replace(path)
    except BaseException:
        writer.close()
        part.unlink(missing_ok=True)
        raise
    return [
        f"{tensor} {kind.name}" for tensor, ne, kind in todo if len(ne) > 1 and kind is not type
    ]


def _write_header(writer: gguf.GGUFWriter, todo: list[tuple[str, tuple[int, ...], Type]]) -> None:
    """Write the metadata, and the names, ne and types of the tensors."""
    for tensor, ne, kind in todo:
        block, size = GGML_QUANT_SIZES[kind]
        n_bytes = int(np.prod(ne)) // block * size
        # the writer expects the shape of the stored bytes
        stored = (*ne[:0:-1], ne[0] // block * size)
        writer.add_tensor_info(tensor, stored, np.dtype(np.uint8), n_bytes, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()


def _write_tensors(
    writer: gguf.GGUFWriter, todo: list[tuple[str, tuple[int, ...], Type]], what: str, seed: int
) -> None:
    """Write random data of the tensors."""
    total = sum(int(np.prod(ne)) for _, ne, _ in todo)
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        for i, (_, ne, kind) in enumerate(todo):
            writer.write_tensor_data(data_of(ne, kind, np.random.default_rng([seed, i])))
            bar.advance(task, float(np.prod(ne)))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, required=True)
    parser.add_argument("--type", choices=[t.name for t in TYPES], required=True, metavar="TYPE")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="(SHAPE-TYPE.gguf)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--header-only", action="store_true", help="omit the weights")
    parser.add_argument("--layers", type=int, metavar="N", help="another number of layers")
    parser.add_argument("--ctx-train", type=int, metavar="N", help="another trained context")
    args = parser.parse_args()
    changes = {"n_layer": args.layers, "n_ctx": args.ctx_train}
    for flag, value in (("--layers", args.layers), ("--ctx-train", args.ctx_train)):
        if value is not None and value < 1:
            parser.error(f"{flag} is {value}: must be at least 1")
    shape = replace(SHAPES[args.shape], **{k: v for k, v in changes.items() if v is not None})
    name = f"{args.shape}-{args.type}"
    path = args.output or Path(f"{name}.gguf")
    fallen = write_model(
        shape,
        Type.__members__[args.type],
        path,
        name=name,
        seed=args.seed,
        header_only=args.header_only,
    )
    if fallen:
        sys.stderr.write(
            f"{len(fallen)} tensors have another type, as their rows are not whole blocks of "
            f"{args.type}: "
            f"{', '.join(fallen[:3])}{', ...' if len(fallen) > 3 else ''}\n"
        )
    print(f"{path}: {path.stat().st_size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
