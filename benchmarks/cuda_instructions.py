"""Count the machine instructions of CUDA's products with one column, by the type of the weights.

    .venv/bin/pip install nvidia-cuda-nvdisasm
    .venv/bin/python benchmarks/cuda_instructions.py NVDISASM [TYPE...]

Compiles the sum of a chunk of 256 values of `mul_mat_one.cu` for sm_90, from the row's bytes in
shared memory to the sum, and disassembles it with NVIDIA's nvdisasm. Needs no GPU.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from lamella.kernels.cuda.nvrtc import FOLDER, NvrtcCompiler
from lamella.kernels.cuda.ops.quantized import TYPES
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


def main() -> None:
    disassembler, *chosen = sys.argv[1:]
    for name in chosen or [type.name for type in TYPES]:
        counts = instructions(disassembler, name)
        often = ", ".join(f"{op} {n}" for op, n in counts.most_common(6))
        print(f"{name:8} {counts.total() / BLOCKS:6.1f} for 32 values; for 256: {often}")


def instructions(disassembler: str, type: str) -> Counter[str]:
    """How often each instruction occurs."""
    with TemporaryDirectory() as folder:
        source, image = Path(folder, "chunk.cu"), Path(folder, "chunk.cubin")
        source.write_text((FOLDER / "mul_mat_one.cu").read_text().partition(AFTER)[0] + KERNEL)
        compiled = NvrtcCompiler().compile(CudaSource.of(str(source), TYPE=type, T="F32"), ARCH)
        image.write_bytes(compiled)
        text = subprocess.check_output([disassembler, "-c", image], stderr=subprocess.DEVNULL)
    found = re.findall(rb"/\*[0-9a-f]{4}\*/\s+(?:@!?U?P\w+\s+)?(\w+)", text)
    return Counter(op.decode() for op in found if op.decode() not in NOT_COUNTED)


if __name__ == "__main__":
    main()
