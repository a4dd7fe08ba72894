"""Writes models with random weights, for benchmarks. shapes.py has their sizes and architectures.

    .venv/bin/python benchmarks/make_model.py --shape 1b --type Q4_0 [-o FILE] [--seed 0]

With --header-only, the file ends before the weights, which is enough for `lamella plan`. Every
matrix has the given type, embeddings and output included (llama-quantize's --pure), except routers
(F32) and the matrices beside MXFP4 experts (Q8_0). A mix, as Q4_K_M, has several types
(weight_types.py). If rows are not whole blocks, the matrix has the type to which llama.cpp falls
back. The vocabulary is a valid SPM vocabulary, or WordPiece for BERT, so Lamella and llama.cpp both
load the file; with --vocab it is that of another file. Weights are scaled so that activations stay
near 1. Blocks of a tensor are drawn from a pool of random blocks, reproducibly for a seed. Tested
by tests/model/test_make_model.py.
"""

from __future__ import annotations

import argparse
import itertools
import string
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final

import gguf
import numpy as np
import numpy.typing as npt
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES
from rich.console import Console
from rich.progress import Progress
from shape_keys import write_sizes
from shapes import SHAPES, Shape, tensors
from weight_types import TYPES, WEIGHTS, Mix, Type, type_of

from lamella.graph.types import GGMLType
from lamella.kernels.quants import LAYOUTS
from lamella.model.gguf import Array, open_gguf

Bytes = npt.NDArray[np.uint8]

N_POOL: Final = 1 << 14  # units in the pool of a tensor
UNIT: Final = 32  # elements of a unit, for types of smaller blocks
N_BYTES: Final = 256
N_SPECIAL: Final = 999  # special and unused tokens of a WordPiece vocabulary

# types whose blocks are random bits, with the center of their quants: a block of Q4_K is
# d * scale * (q - 7.5) if dmin is 7.5 d and scales and mins are equally distributed
CENTERS: Final = {
    Type.Q2_K: 1.5,
    Type.Q3_K: 0.0,
    Type.Q4_K: 7.5,
    Type.Q5_K: 15.5,
    Type.Q6_K: 0.0,
    **{type: 0.0 for type in TYPES if type.name.startswith("IQ")},
}


# --- tensors ---


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
    if type in (Type.TQ1_0, Type.TQ2_0):
        values = rng.integers(-1, 2, (N_POOL, _unit(type))) * np.float32(deviation * 1.5**0.5)
    else:
        values = deviation * rng.standard_normal((N_POOL, _unit(type)), np.float32)
    pool: Bytes = quants.quantize(values, type).view(np.uint8).reshape(N_POOL, -1)
    return pool


def _random_blocks(type: Type, deviation: float, rng: np.random.Generator) -> Bytes:
    """Return blocks of random bits, with a d that gives their values this standard deviation."""
    raw = rng.integers(0, 256, (N_POOL, GGML_QUANT_SIZES[type][1]), np.uint8)
    _set_scale(type, raw, 1.0)
    spread = float(quants.dequantize(raw, type).std())
    _set_scale(type, raw, deviation / spread)
    return raw


def _set_scale(type: Type, raw: Bytes, d: float) -> None:
    """Write the scale of all blocks, and of their minimums."""
    blocks = raw.view(LAYOUTS[GGMLType.__members__[type.name]])
    if type is Type.IQ1_M:  # the top 4 bits of each scale are 4 bits of d
        parts = int(np.float16(d).view(np.uint16)) >> np.arange(0, 16, 4) & 15
        blocks["scales"] = blocks["scales"] & 0xFFF | parts.astype(np.uint16) << 12
    for name, value in {"d": d, "dmin": CENTERS[type] * d}.items():
        if name in (blocks.dtype.names or ()):
            blocks[name] = value


# --- the file ---


def vocabulary(n: int) -> tuple[list[str], list[int]]:
    """Return tokens and types of an SPM vocabulary: 3 special tokens, the bytes, then words."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(N_BYTES))]
    kinds = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL]
    kinds += [gguf.TokenType.BYTE] * N_BYTES
    tokens += itertools.islice(itertools.chain(["▁"], words()), n - len(tokens))
    kinds += [gguf.TokenType.NORMAL] * (n - len(kinds))
    return tokens, [int(kind) for kind in kinds]


def words() -> Iterator[str]:
    """Yield words of one to four letters, each as the first piece of a word and as a later one."""
    for k in range(1, 5):
        for letters in itertools.product(string.ascii_lowercase, repeat=k):
            yield from (begin + "".join(letters) for begin in ("▁", ""))


def _write_metadata(writer: gguf.GGUFWriter, shape: Shape, vocab: Path | None) -> None:
    writer.add_name("random")  # llama.cpp expects certain tokens if it contains "phi3"
    write_sizes(writer, shape)
    if vocab is not None:
        _copy_vocab(writer, vocab)
    else:
        (_write_word_pieces if shape.is_bert else _write_spm)(writer, shape)


def _copy_vocab(writer: gguf.GGUFWriter, path: Path) -> None:
    """Write the vocabulary of another file."""
    with open_gguf(path, header_only=True) as file:
        for key, value in file.metadata.items():
            if key.startswith("tokenizer."):
                kind = gguf.GGUFValueType(file.metadata.value_type(key))
                writer.add_key_value(key, list(value) if isinstance(value, Array) else value, kind)


def n_tokens(vocab: Path) -> int:
    """The number of tokens of a file's vocabulary."""
    with open_gguf(vocab, header_only=True) as file:
        return len(file.metadata.bytes_strings("tokenizer.ggml.tokens"))


def _write_word_pieces(writer: gguf.GGUFWriter, shape: Shape) -> None:
    """Write a WordPiece vocabulary, whose special tokens are those of BERT."""
    special = {0: "[PAD]", 100: "[UNK]", 101: "[CLS]", 102: "[SEP]", 103: "[MASK]"}
    tokens = [special.get(i, f"[unused{i}]") for i in range(N_SPECIAL)]
    tokens += itertools.islice(words(), shape.n_vocab - N_SPECIAL)
    kinds = [gguf.TokenType.CONTROL] * N_SPECIAL
    kinds += [gguf.TokenType.NORMAL] * (shape.n_vocab - N_SPECIAL)
    writer.add_tokenizer_model("bert")
    writer.add_token_list(tokens)
    writer.add_token_types([int(kind) for kind in kinds])
    writer.add_pad_token_id(0)
    writer.add_unk_token_id(100)
    writer.add_bos_token_id(101)
    writer.add_eos_token_id(102)
    writer.add_sep_token_id(102)
    writer.add_mask_token_id(103)


def _write_spm(writer: gguf.GGUFWriter, shape: Shape) -> None:
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
    weights: Type | Mix,
    path: Path,
    *,
    seed: int = 0,
    header_only: bool = False,
    vocab: Path | None = None,
) -> list[str]:
    """Write a model. Return name and type of each tensor that fell back to another type.

    With `header_only`, the tensors' data is omitted. `vocab` is a file with `shape.n_vocab` tokens.
    The file is written as a whole: after an interruption it does not exist.
    """
    sizes = shape.n_layer, shape.n_expert
    todo = [(tensor, ne, type_of(ne, weights, tensor, *sizes)) for tensor, ne in tensors(shape)]
    part = path.with_name(f"{path.name}.part")
    writer = gguf.GGUFWriter(part, shape.arch)
    try:
        _write_metadata(writer, shape, vocab)
        _write_header(writer, todo)
        if not header_only:
            _write_tensors(writer, todo, path.name, seed)
        writer.close()
        part.replace(path)
    except BaseException:
        writer.close()
        part.unlink(missing_ok=True)
        raise
    block = GGML_QUANT_SIZES[weights.base if isinstance(weights, Mix) else weights][0]
    return [
        f"{tensor} {kind.name}"
        for tensor, ne, kind in todo
        if ne[0] % block and kind is not Type.F32
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
        for i, (tensor, ne, kind) in enumerate(todo):
            data = data_of(ne, kind, np.random.default_rng([seed, i]))
            if tensor.endswith("ssm_a"):  # a state must decay
                data = (-data.view(np.float32)).view(np.uint8)
            writer.write_tensor_data(data)
            bar.advance(task, float(np.prod(ne)))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, required=True)
    parser.add_argument("--type", choices=WEIGHTS, required=True, metavar="TYPE")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="(SHAPE-TYPE.gguf)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--header-only", action="store_true", help="omit the weights")
    parser.add_argument("--layers", type=int, metavar="N", help="another number of layers")
    parser.add_argument("--vocab", type=Path, metavar="FILE", help="with the vocabulary of FILE")
    parser.add_argument("--ctx-train", type=int, metavar="N", help="another trained context")
    args = parser.parse_args()
    changes = {"n_layer": args.layers, "n_ctx": args.ctx_train}
    changes["n_vocab"] = args.vocab and n_tokens(args.vocab)
    for flag, value in (("--layers", args.layers), ("--ctx-train", args.ctx_train)):
        if value is not None and value < 1:
            parser.error(f"{flag} is {value}: must be at least 1")
    shape = replace(SHAPES[args.shape], **{k: v for k, v in changes.items() if v is not None})
    path = args.output or Path(f"{args.shape}-{args.type}.gguf")
    fallen = write_model(
        shape,
        WEIGHTS[args.type],
        path,
        seed=args.seed,
        header_only=args.header_only,
        vocab=args.vocab,
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
