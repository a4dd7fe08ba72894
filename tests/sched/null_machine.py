"""Machines of null devices, and leafs with a place."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from lamella.alloc import BufferType, Usage, alloc_tensors
from lamella.graph import GGMLType, Graph, Op, Tensor
from lamella.graph import ops as build
from lamella.sched import Backend, DeviceType, NullBufferType, NullDevice
from lamella.sched.assignment import Assignment, BackendTable


class Null:
    """GPUs with their own memory, optionally an accelerator in host memory, and a CPU."""

    def __init__(
        self,
        n_gpus: int = 1,
        *,
        accel: bool = False,
        ops: Collection[Op] | None = None,
        offload: Collection[Op] = (),
        cpu_ops: Collection[Op] | None = None,
        capacity: int = 2**40,
    ) -> None:
        self.gpu_bufts = [NullBufferType(f"GPU{i}", capacity=capacity) for i in range(n_gpus)]
        self.host = NullBufferType("HOST", is_host=True, capacity=capacity)
        devices = [
            NullDevice(b.name, DeviceType.GPU, b, ops=ops, offload_ops=offload)
            for b in self.gpu_bufts
        ]
        if accel:
            devices.append(NullDevice("BLAS", DeviceType.ACCEL, self.host, ops=(Op.MUL_MAT,)))
        devices.append(NullDevice("CPU", DeviceType.CPU, self.host, ops=cpu_ops))
        self.backends: list[Backend] = [d.init_backend() for d in devices]
        self.by_name = {b.name: b for b in self.backends}

    def assignment(
        self, graph: Graph, op_offload: bool = True, user: dict[Tensor, int] | None = None
    ) -> Assignment:
        bufts = [b.device.buffer_type for b in self.backends]
        return Assignment(BackendTable(self.backends, bufts, op_offload), graph, user)


def placed(a: Assignment, *tensors: Tensor) -> list[tuple[str, str] | None]:
    """(backend, cause) of tensors; None where they are unassigned."""
    names = [b.name for b in a.table.backends]
    return [(names[a.ids[t]], a.causes[t]) if t in a.ids else None for t in tensors]


def leaf(*ne: int, name: str = "", type: GGMLType = GGMLType.F32) -> Tensor:
    return Tensor(type, ne, name=name)


def inp(*ne: int, name: str = "") -> Tensor:
    return Tensor(GGMLType.F32, ne, name=name).set_input()


def weight(buft: BufferType, *ne: int, name: str = "w", usage: Usage = Usage.WEIGHTS) -> Tensor:
    tensor = Tensor(GGMLType.F32, ne, name=name)
    alloc_tensors([tensor], buft, usage)
    return tensor


def names(tensors: Sequence[Tensor]) -> list[str]:
    return [t.name for t in tensors]


def convolution(states: Tensor, n_tokens: int = 2) -> Tensor:
    """A recurrence of 4 channels over states [4, n_slots], which it writes in place."""
    slots = Tensor(GGMLType.I32, (2, n_tokens), name="slots").set_input()
    return build.ssm_conv(inp(4, n_tokens, name="x"), leaf(2, 4, name="taps"), states, slots)
