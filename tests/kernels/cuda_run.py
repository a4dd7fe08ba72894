"""Computes nodes by a plan of CUDA kernels, on the emulated GPU, for the kernels' tests.

cuda_run.compute(node)                              # one node, between guard bytes
cuda_run.run_graph(graph, fuse=True)                # a graph whose nodes have memory
cuda_run.run_kernel("toy.cu", "toy", [x, y], [3])   # a kernel on arrays, which it may change
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import count

import cpu_run
import numpy as np
from cuda_grid import GridCompiler, GridDriver
from cuda_grid_memory import PIECE
from reference_run import Array, data, graph_of

from lamella.base.errors import BackendError
from lamella.base.settings import NO_FUSION
from lamella.graph import GGMLType, Graph, Tensor
from lamella.graph.op import VIEW_OPS
from lamella.graph.tensor import written_source
from lamella.kernels.cuda import params
from lamella.kernels.cuda.kernel_set import KERNELS
from lamella.kernels.cuda.library import Library
from lamella.kernels.cuda.ops.quantized import TYPES
from lamella.kernels.cuda.plan import CudaPlan
from lamella.kernels.cuda.table import OPS, SIZED_OPS, CudaCall, CudaKernel, CudaSource, Dim3
from lamella.kernels.plan.calls import Number
from lamella.kernels.plan.kernel_set import KernelSet
from lamella.kernels.plan.params import PARAMS, PREPARED, TENSOR_WORDS

ERROR_WORDS = 3
# weights whose kernels differ from others' by the unpacking of a block alone; each has tests with a
# twin (quantized_run.py)
FURTHER_TYPES = frozenset(TYPES) - {
    *(GGMLType.Q4_0, GGMLType.Q5_1, GGMLType.Q8_0, GGMLType.MXFP4),
    *(GGMLType.Q4_K, GGMLType.Q6_K, GGMLType.IQ2_S),
}


class Machine:
    """A GPU, and its loaded kernels."""

    def __init__(self, reverse: bool) -> None:
        self.gpu = GridDriver(reverse=reverse).grid_gpus[0]
        self.stream = self.gpu.stream_new()
        self.library = Library(self.gpu, GridCompiler())


@cache
def _machines() -> dict[bool, Machine]:
    return {}


def machine(reverse: bool = False) -> Machine:
    """The machine of all tests. It is replaced after work on it has failed."""
    machines = _machines()
    if reverse not in machines or machines[reverse].gpu.failed is not None:
        machines[reverse] = Machine(reverse)
    return machines[reverse]


def forget() -> None:
    """Make the next machine a new one, without loaded kernels."""
    _machines().clear()


class Memory:
    """Host arrays copied to the GPU, each in an allocation of its own; and scratch memory."""

    def __init__(self, on: Machine) -> None:
        self.gpu = on.gpu
        self._places: dict[int, tuple[Array, int]] = {}  # by id of the array
        self._addresses: list[int] = []

    def alloc(self, size: int) -> int:
        self._addresses.append(self.gpu.alloc(size))
        return self._addresses[-1]

    def put(self, array: Array, begin: int = 0, end: int | None = None) -> None:
        """Copy bytes `begin` to `end` of an array of bytes. The GPU can access no others, except
        in the same aligned pieces."""
        if id(array) in self._places:
            return
        end = array.nbytes if end is None else end
        first = begin // PIECE * PIECE
        address = self.alloc(max(end - first, 1)) - first
        self._places[id(array)] = array, address
        self.gpu.write(address + begin, array[begin:end])

    def address(self, array: Array) -> int:
        """Where the array's first byte would be."""
        return self._places[id(array)][1]

    def get(self, array: Array, begin: int = 0, end: int | None = None) -> Array:
        """Read bytes `begin` to `end` of an array back from the GPU."""
        now = np.empty((array.nbytes if end is None else end) - begin, np.uint8)
        self.gpu.read(now, self.address(array) + begin)
        return now

    def free(self) -> None:
        if self.gpu.failed is not None:
            return  # its memory is lost with it
        for address in self._addresses:
            self.gpu.free(address)


def supports(node: Tensor) -> bool:
    """True if the CUDA kernels compute a node."""
    return node.op in (*OPS.entries, *SIZED_OPS) and KERNELS.supports(node)


def run_nodes(*nodes: Tensor) -> CudaPlan:
    """Like `run`, for nodes in this order."""
    return run(graph_of(*nodes))


def run(graph: Graph, reverse: bool = False, kernels: KernelSet[CudaCall] = KERNELS) -> CudaPlan:
    """Compute a graph by a plan. Its tensors' memory is NumPy arrays, `tensor.buffer`. Nothing but
    the nodes may be written.

    Raises:
        BackendError: a kernel reported a bad index, or misused the device.
    """
    on, nodes = machine(reverse), graph.nodes
    memory = Memory(on)
    computed = [n for n in nodes if n.op not in VIEW_OPS]
    results = [t.root for n in computed for t in (n, written_source(n)) if t is not None]
    written = {id(root.buffer): root for root in results}
    read = {id(s.root.buffer): s.root for n in nodes for s in n.src}
    for key, root in written.items():
        memory.put(root.buffer)
        read.pop(key, None)
    for root in read.values():
        # nothing else can be accessed on one side, or is written on the other
        memory.put(root.buffer, root.offset, root.offset + root.nbytes)
    error = memory.alloc(8 * ERROR_WORDS)
    on.gpu.fill(error, 0, 8 * ERROR_WORDS)

    def address_of(_: Tensor, t: Tensor) -> int:
        return memory.address(t.root.buffer) + t.offset

    plan = CudaPlan(graph, kernels, address_of, on.library, memory.alloc, error, count(1))
    plan.launch(on.gpu, on.stream)
    on.gpu.stream_synchronize(on.stream)
    for root in written.values():
        root.buffer[:] = memory.get(root.buffer)
    for root in read.values():
        begin, end = root.offset, root.offset + root.nbytes
        now = memory.get(root.buffer, begin, end)
        assert (now == root.buffer[begin:end]).all(), f"source {root} was written"
    words = np.zeros(ERROR_WORDS, np.int64)
    on.gpu.read(words.view(np.uint8), error)
    memory.free()
    if words[0]:
        error_of_call = plan.error_of(*words.tolist())
        assert error_of_call is not None, f"a kernel reported call {words[0]}"
        raise error_of_call
    return plan


def compute(
    node: Tensor,
    over: Tensor | None = None,
    shift: int = 0,
    reverse: bool = False,
    kernels: KernelSet[CudaCall] = KERNELS,
) -> Array:
    """Compute a node with the CUDA kernels and return its array. Nothing else may be written.

    Args:
        node: the node; the reference kernels compute its sources.
        over: a tensor whose memory the result shares.
        shift: bytes off the alignment.
        reverse: run later warps and lanes first.
        kernels: with the sizes for a device.
    """
    cpu_run.prepare(node, over, shift)
    run(graph_of(node), reverse, kernels)
    cpu_run.check_guards(node)
    return data(node)


def run_graph(graph: Graph, fuse: bool = True, reverse: bool = False) -> list[str]:
    """Compute a graph whose nodes have memory (`reference_run.locate`). Return its kernels."""
    with NO_FUSION.set(not fuse):
        plan = run(graph, reverse)
    return [step.call.kernel.name for step in plan.steps]


def run_kernel(
    source: CudaSource | str,
    name: str,
    arrays: Sequence[Array],
    values: Sequence[Number] = (),
    *,
    grid: Dim3 = (1, 1, 1),
    block: int = 32,
    shared_memory: int = 0,
    scratch: int = 0,
    prepared: Sequence[Array] = (),
    reverse: bool = False,
) -> None:
    """Run a kernel on arrays, which are `p.t[i]`, and write its results back to them.

    Args:
        source: a file of src/, or a path, with its definitions.
        name: the kernel's name.
        arrays: contiguous; `ne` and `nb` are their shape and strides reversed.
        values: `p.param`.
        grid: blocks.
        block: threads of a block.
        shared_memory: bytes of a block's dynamic shared memory.
        scratch: bytes of poisoned memory at `p.scratch`.
        prepared: arrays at `p.prepared[i]`, also written back.
        reverse: run later warps and lanes first.

    Raises:
        BackendError: the kernel does not compile, reported a bad index, or misused the device.
    """
    on = machine(reverse)
    memory = Memory(on)
    source = CudaSource.of(source) if isinstance(source, str) else source
    words = np.zeros(params.N_WORDS, np.int64)
    error = np.zeros(8 * ERROR_WORDS, np.uint8)
    raw = [np.asarray(a).reshape(-1).view(np.uint8) for a in (*arrays, *prepared)]
    for a in (*raw, error):
        memory.put(a)
    for i, a in enumerate(arrays):
        ones = 4 - a.ndim
        ne = (*a.shape[::-1], *[1] * ones)
        nb = (*a.strides[::-1], *[a.nbytes] * ones)
        at = i * TENSOR_WORDS
        words[at : at + TENSOR_WORDS] = (memory.address(raw[i]), *ne, *nb)
    for i in range(len(prepared)):
        words[PREPARED + i] = memory.address(raw[len(arrays) + i])
    words[params.SCRATCH] = memory.alloc(scratch) if scratch else 0
    words[params.ERROR], words[params.CALL] = memory.address(error), 1
    words[params.N_BLOCKS] = grid[0]
    floats = words.view(np.float64)
    for i, value in enumerate(values):
        (floats if isinstance(value, float) else words)[PARAMS + i] = value
    function = on.library.function(CudaKernel(source, name), shared_memory)
    on.gpu.launch(function, grid, block, shared_memory, words, on.stream)
    on.gpu.stream_synchronize(on.stream)
    for a in raw:
        a[:] = memory.get(a)
    reported = memory.get(error).view(np.int64)
    memory.free()
    if reported[0]:
        raise BackendError(f"{name}: index {reported[1]} must be below {reported[2]}")
