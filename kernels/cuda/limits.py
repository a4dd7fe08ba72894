"""The sizes of a device, from which kernels take theirs: how many blocks it runs at once.

They never change bits. Knows no driver. Tested by tests/kernels/test_cuda_limits.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from ...base.settings import NO_FIT

KIB: Final = 1024
WARP: Final = 32  # threads
REGISTER_UNIT: Final = 8  # a thread's registers are a multiple
SHARED_UNIT: Final = 128  # a block's bytes of shared memory, too


@dataclass(frozen=True, slots=True)
class Limits:
    """A device's architecture (90 for sm_90), its number of multiprocessors, the bytes of shared
    memory that a block may have, and the resources of a multiprocessor. Each block takes
    `reserved` bytes of its shared memory."""

    arch: int
    n_sm: int
    block_shared: int
    sm_shared: int
    reserved: int
    sm_threads: int
    sm_blocks: int
    sm_registers: int

    def resident(self, threads: int, shared: int, registers: int) -> int:
        """The blocks that a multiprocessor runs at once: each has `threads`, `shared` bytes, and
        `registers` for a thread. 0 if the device cannot run the block."""
        if shared > self.block_shared:
            return 0
        memory = _round_up(shared, SHARED_UNIT) + self.reserved
        of_block = _round_up(threads, WARP) * _round_up(registers, REGISTER_UNIT)
        return min(
            self.sm_blocks,
            self.sm_threads // threads,
            self.sm_registers // of_block,
            self.sm_shared // memory if memory else self.sm_blocks,
        )

    def registers(self, threads: int, blocks: int) -> int:
        """The most registers of a thread, if the compiler must fit that many blocks on a
        multiprocessor."""
        n = self.sm_registers // (threads * blocks) // REGISTER_UNIT * REGISTER_UNIT
        return min(n, MOST_REGISTERS)


MOST_REGISTERS: Final = 255  # of a thread
H100: Final = Limits(90, 132, 227 * KIB, 228 * KIB, KIB, 2048, 32, 65536)
# on which kernels were measured, with blocks that every device can run
MEASURED: Final = replace(H100, block_shared=64 * KIB)


def sizes_of(limits: Limits) -> Limits:
    """The limits from which kernels for a device take their sizes; see LAMELLA_NO_FIT."""
    return replace(MEASURED, arch=limits.arch) if NO_FIT() else limits


def _round_up(n: int, to: int) -> int:
    return -(-n // to) * to
