"""Count the machine instructions of CUDA's products of quantized weights, by the weights' type.

    .venv/bin/pip install nvidia-cuda-nvdisasm
    .venv/bin/python benchmarks/cuda_instructions.py NVDISASM [--few | --tiles] [TYPE...]

Compiles the sum of a chunk of 256 values of `mul_mat_one.cu` for sm_90, from the row's bytes in
shared memory to the sum, and disassembles it with NVIDIA's nvdisasm. With --few: what a warp does
with such a chunk of 16 rows and 8 columns in `mul_mat_few.cu` and `mul_mat_vec.cu`. With --tiles:
the innermost loop of `mul_mat_mma.cu`, in the tiles that prompts have. Needs no GPU.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from lamella.graph import GGMLType, Tensor, ops
from lamella.kernels.cuda.nvrtc import FOLDER, NvrtcCompiler
from lamella.kernels.cuda.ops.quantized import TYPES
from lamella.kernels.cuda.ops.tensor_core import TILES, tile_call
from lamella.kernels.cuda.table import CudaSource

ARCH: Final = 90
BLOCKS: Final = 8  # of 32 values in a chunk
NOT_COUNTED: Final = {"NOP", "BRA", "EXIT"}
AFTER: Final = "// --- a warp ---"  # what follows in the source is left out
KERNEL: Final = """
KERNEL(chunk, MAX_THREADS, BLOCKS_PER_SM) {
    DYNAMIC_SHARED(char, slots);
    Type::prepare();
    sync_block();
    Held held;
    held.load<true>(slots + threadIdx.x * 4 * Held::WIDE);
    float *const to = reinterpret_cast<float *>(p.scratch);
    to[threadIdx.x] = chunk_sum<Type, true>(held, slots + p.n_blocks, CHUNK_BLOCKS);
}
"""
FEW: Final = """
#include "few_columns.cuh"

KERNEL(chunk, 384, 1) {
    DYNAMIC_SHARED(char, rows);
    Type::prepare();
    sync_block();
    constexpr bool ALIGNED = Type::BYTES % 4 == 0;
    float *const to = reinterpret_cast<float *>(p.scratch);
    const Places places(N_COLS);
    const char *const columns = rows + p.n_blocks;
    const Operands of = {{rows + places.rows[0], rows + places.rows[1]},
                         {columns + places.columns[0], columns + places.columns[1]},
                         columns + places.matrices};
    float s[OWN][OWN] = {};
    add_blocks<ALIGNED, true>(s, of, CHUNK_BLOCKS);
    for (int i = 0; i < OWN * OWN; i++) to[i] = s[i / OWN][i % OWN];
}
"""
TENSOR_CORES: Final = "IMMA"  # their instruction for bytes
OF_32: Final = ".16832."  # with 32 values of K; others have 16
WITH_TWO: Final = ("Q2_K",)  # types that multiply minima, too

Line = tuple[str, str]  # the instruction, the rest


def main() -> None:
    disassembler, *chosen = [a for a in sys.argv[1:] if not a.startswith("--")]
    for name in chosen or [type.name for type in TYPES]:
        if "--tiles" in sys.argv:
            counts, n = tile_loop(disassembler, name)
            what = f"for {n} tiles of 16 x 8 results and 32 values"
        elif "--few" in sys.argv:
            counts, n = few_columns(disassembler, name), BLOCKS
            what = "with 16 x 8 results for 256"
        else:
            counts, n = one_column(disassembler, name), BLOCKS
            what = "for 256"
        often = ", ".join(f"{op} {n}" for op, n in counts.most_common(7))
        print(f"{name:8} {counts.total() / n:6.1f} for 32 values; {what}: {often}")


def one_column(disassembler: str, type: str) -> Counter[str]:
    """How often each instruction occurs for a chunk of a row."""
    with TemporaryDirectory() as folder:
        source = Path(folder, "chunk.cu")
        source.write_text((FOLDER / "mul_mat_one.cu").read_text().partition(AFTER)[0] + KERNEL)
        lines = disassembled(disassembler, CudaSource.of(str(source), TYPE=type, T="F32"))
    return counted(line for line in lines if isinstance(line, tuple))


def few_columns(disassembler: str, type: str) -> Counter[str]:
    """How often each instruction occurs for a chunk of 16 rows and of 8 columns."""
    with TemporaryDirectory() as folder:
        source = Path(folder, "chunk.cu")
        source.write_text(FEW)
        lines = disassembled(disassembler, CudaSource.of(str(source), TYPE=type))
    return counted(line for line in lines if isinstance(line, tuple))


def tile_loop(disassembler: str, type: str) -> tuple[Counter[str], int]:
    """How often each instruction occurs in the innermost loop with tensor cores, and how many tiles
    it multiplies."""
    node = ops.mul_mat(Tensor(GGMLType[type], (4096, 4096)), Tensor(GGMLType.F32, (4096, 512)))
    lines = disassembled(disassembler, tile_call(node, TILES[0]).kernel.source)
    loop = min(loops(lines), key=len)
    products = [rest for op, rest in loop if op == TENSOR_CORES]
    of_half = type in WITH_TWO or not any(OF_32 in rest for rest in products)
    return counted(loop), len(products) // (2 if of_half else 1)


def loops(lines: Sequence[Line | str]) -> Iterator[list[Line]]:
    """The loops with tensor cores: what is between a label and a branch back to it."""
    places = {line: i for i, line in enumerate(lines) if isinstance(line, str)}
    for i, line in enumerate(lines):
        if isinstance(line, str) or line[0] != "BRA":
            continue
        to = re.search(r"\((\.L_x_\d+)\)", line[1])
        begin = places.get(to[1], i) if to else i
        body = [line for line in lines[begin : i + 1] if isinstance(line, tuple)]
        if begin < i and any(op == TENSOR_CORES for op, _ in body):
            yield body


def disassembled(disassembler: str, source: CudaSource) -> list[Line | str]:
    """The instructions of a source, and its labels."""
    with TemporaryDirectory() as folder:
        image = Path(folder, "image.cubin")
        image.write_bytes(NvrtcCompiler().compile(source, ARCH))
        command = [disassembler, "-c", str(image)]
        text = subprocess.check_output(command, stderr=subprocess.DEVNULL).decode()
    lines: list[Line | str] = []
    for line in text.splitlines():
        if label := re.match(r"(\.L_x_\d+):", line):
            lines.append(label[1])
        elif found := re.search(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?(\w+)(.*)", line):
            lines.append((found[1], found[2]))
    return lines


def counted(lines: Iterable[Line]) -> Counter[str]:
    return Counter(op for op, _ in lines if op not in NOT_COUNTED)


if __name__ == "__main__":
    main()
