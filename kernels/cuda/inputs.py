"""Inputs of a step in pinned memory of the host, from which a plan's first kernel copies them.

So a step needs no copy of its own: it is one launch. The kernel (src/from_host.cu) copies what is
in use (`Tensor.set_bundle`), for example a few pages of a large page table. Then it writes the
number of the inputs to pinned memory, so the host knows when it may write the next ones: a step may
still compute then. It can take some words from the results of the plan's last run instead
(`Tensor.set_feeding`). All plans of a backend share this memory; docs/cuda.md says what orders its
reads and writes. Tested by tests/kernels/test_cuda_inputs.py.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from ...alloc.buffer import Bytes, buffer_of
from ...alloc.host import HostBuffer
from ...base.settings import CUDA_COPIES_INPUTS
from ...graph.tensor import BUNDLE, HEADER, PIECE, Tensor
from ..plan.params import PARAMS, TENSOR_WORDS
from .driver import Address
from .library import Library
from .params import N_BLOCKS, N_WORDS
from .plan import Launch
from .table import CudaKernel, CudaSource

FROM_HOST: Final = CudaKernel(CudaSource.of("from_host.cu"), "from_host")
THREADS: Final = 1024
INPUT_BYTES: Final = 2 << 20  # of a bundle at most: page tables of 128k positions fit
FED_WORDS: Final = 3 * TENSOR_WORDS  # where the kernel's parameters have the result that feeds
LINE: Final = 64  # bytes between the number of the inputs and that of the last ones copied
FEW: Final = 16 << 10  # bytes that the host copies as a whole: faster than several ranges


class Bundle(NamedTuple):
    """A bundle of inputs that a plan copies: its bytes on the host, its copy and the launch."""

    data: memoryview
    words: memoryview  # the same as int32
    size: int
    copy: Address
    launch: Launch
    can_feed: bool  # it takes fed words from the plan's results


class InputMemory:
    """The inputs of one step. `numbers` and `memory` are pinned."""

    def __init__(self, numbers: Bytes, memory: Bytes) -> None:
        self._given = numbers[:8].data.cast("q")
        self._copied = numbers[LINE : LINE + 8].data.cast("q")  # the kernel writes it
        self._memory = memory.data
        self.address = int(memory.ctypes.data)
        self._numbers_address = int(numbers.ctypes.data)

    @property
    def is_read(self) -> bool:
        """True if a kernel has copied the last inputs."""
        return bool(self._copied[0] == self._given[0])

    def write(self, bundle: Bundle) -> None:
        """Give the inputs to the next launch. The last ones have been copied, or are not needed."""
        memory, (data, words, size, *_) = self._memory, bundle
        if size <= FEW or words[0] <= 0:
            memory[:size] = data
        else:
            for i in range(HEADER, HEADER + 2 * words[0], 2):
                begin, end = PIECE * words[i], PIECE * words[i + 1]
                memory[begin:end] = data[begin:end]
        self._given[0] += 1

    def bundle(
        self, src: Tensor, copy: Address, library: Library, fed: tuple[Tensor, Address] | None
    ) -> Bundle | None:
        """The bundle `src` for a plan; None if the plan cannot copy it. `fed`: the plan's result
        that feeds, and its address."""
        source = buffer_of(src)
        is_small = 0 < src.nbytes <= INPUT_BYTES and src.nbytes % PIECE == 0
        if not src.flags & BUNDLE or not is_small or not isinstance(source, HostBuffer):
            return None
        if CUDA_COPIES_INPUTS():
            return None
        library.load([FROM_HOST])
        words = np.zeros(N_WORDS, np.int64)
        addresses = (copy, self.address, self._numbers_address)
        words[: TENSOR_WORDS * len(addresses) : TENSOR_WORDS] = addresses
        if fed is not None:
            result, address = fed
            words[FED_WORDS : FED_WORDS + TENSOR_WORDS] = (address, *result.ne, *result.nb)
        words[PARAMS], words[N_BLOCKS] = src.nbytes // PIECE, 1
        launch = Launch(0, library.function(FROM_HOST), (1, 1, 1), THREADS, 0, words)
        data = source.memory[src.offset : src.offset + src.nbytes].data
        can_feed = fed is not None and fed[0].ne[1] <= THREADS
        return Bundle(data, data.cast("i"), src.nbytes, copy, launch, can_feed)
