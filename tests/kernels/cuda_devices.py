"""The limits of real GPUs: NVIDIA's CUDA C++ Programming Guide, "Technical Specifications per
Compute Capability", with the numbers of multiprocessors of the vendor's data sheets."""

from __future__ import annotations

from typing import Final

from lamella.kernels.cuda.limits import H100, KIB, Limits


def _limits(
    n_sm: int, arch: int, block: int, sm: int, reserved: int, threads: int, blocks: int
) -> Limits:
    return Limits(arch, n_sm, block * KIB, sm * KIB, reserved * KIB, threads, blocks, 65536)


DEVICES: Final = {
    "T4": _limits(40, 75, 64, 64, 0, 1024, 16),
    "A100": _limits(108, 80, 163, 164, 1, 2048, 32),
    "RTX 3060": _limits(28, 86, 99, 100, 1, 1536, 16),
    "RTX 3090": _limits(82, 86, 99, 100, 1, 1536, 16),
    "RTX 4060": _limits(24, 89, 99, 100, 1, 1536, 24),
    "RTX 4090": _limits(128, 89, 99, 100, 1, 1536, 24),
    "H100": H100,
    "RTX 5090": _limits(170, 120, 99, 100, 1, 1536, 24),
}
MODELS: Final = {  # one of each architecture
    75: "T4",
    80: "A100",
    86: "RTX 3090",
    89: "RTX 4090",
    90: "H100",
    120: "RTX 5090",
}
