"""The interface of a kernel call, common to all backends: its kernel, parameters and memory.

Each backend has its own type of call, which adds the data that a launch needs. Knows no
addresses. Tested by tests/kernels/test_cpu_plan.py and tests/kernels/test_cuda_plan.py.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from ...graph.tensor import Tensor


class NamedKernel(Protocol):
    """A kernel of any backend."""

    @property
    def name(self) -> str: ...


class CompiledKernel(Protocol):
    """A kernel whose address other kernels call."""

    @property
    def address(self) -> int: ...


Number = int | float
Param = Number | CompiledKernel  # a kernel stands for its address


class KernelCall(Protocol):
    """One call of a kernel for a node.

    `tensors` are the tensors that the call accesses; it writes the first `n_written`. If there are
    none, it accesses the node and its sources. `params` are the op's parameters. `prepared` are the
    sources that the call reads in another form. `scratch` is the size in bytes of the scratch
    memory that it shares with other calls.
    """

    @property
    def kernel(self) -> NamedKernel: ...
    @property
    def params(self) -> Sequence[Param]: ...
    @property
    def tensors(self) -> Sequence[Tensor]: ...
    @property
    def n_written(self) -> int: ...
    @property
    def prepared(self) -> Sequence[PreparedSource[Any]]: ...
    @property
    def scratch(self) -> int: ...


CallT = TypeVar("CallT", bound=KernelCall)


class PreparedSource(NamedTuple, Generic[CallT]):
    """A source of a node in another form. It is in scratch memory, and made once for all readers.

    `tensor` is the source. `form` names the form: prepared sources of the same tensor and form are
    the same bytes. `size` is in bytes. `calls` make it: they get the tensors of the call that reads
    it, unless they name their own, and may read `tensor` only.
    """

    tensor: Tensor
    form: Hashable
    size: int
    calls: Sequence[CallT]
