"""The defaults of a backend's optional methods: a backend that has only `graph_compute`."""

from __future__ import annotations

import numpy as np
import pytest

from lamella.alloc import BufferType, HostBuffer, HostBufferType, alloc_tensors, tensor_get
from lamella.base.errors import TensorAccessError
from lamella.graph import GGMLType, Graph, Tensor, ops
from lamella.kernels.reference import KERNELS
from lamella.sched.backend import Backend, Caps, Device, DeviceType, Event


class PlainDevice(Device):
    """A device with the required methods only."""

    name = "PLAIN"
    description = "has nothing but what it must"
    type = DeviceType.ACCEL

    def __init__(self) -> None:
        self._buffer_type = HostBufferType("PLAIN")

    def memory(self) -> tuple[int, int]:
        return 100, 200

    def init_backend(self) -> Backend:
        return PlainBackend(self)

    @property
    def buffer_type(self) -> BufferType:
        return self._buffer_type

    def supports_op(self, op: Tensor) -> bool:
        return op.op in KERNELS

    def supports_buft(self, buft: BufferType) -> bool:
        return buft is self._buffer_type


class PlainBackend(Backend):
    """Computes graphs and records them."""

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self.computed: list[Graph] = []

    def graph_compute(self, graph: Graph) -> None:
        self.computed.append(graph)
        for node in graph.nodes:
            KERNELS[node.op](node, array(node), [array(src) for src in node.src])


def array(tensor: Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    assert isinstance(tensor.buffer, HostBuffer)
    return tensor.buffer.array(tensor)


class WaitingBackend(PlainBackend):
    """Counts synchronizations."""

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self.n_waits = 0

    def synchronize(self) -> None:
        self.n_waits += 1


class CountingEvent(Event):
    def __init__(self) -> None:
        self.n_waits = 0

    def synchronize(self) -> None:
        self.n_waits += 1


def square() -> tuple[Graph, Tensor, Tensor, object]:
    x = Tensor(GGMLType.F32, (4,), name="x")
    out = ops.sqr(x)
    kept = alloc_tensors([x, out], HostBufferType("PLAIN"))
    array(x)[...] = [[[[1, 2, 3, 4]]]]
    return Graph(out), x, out, kept


def read(tensor: Tensor) -> list[float]:
    return [float(v) for v in tensor_get(tensor).view(np.float32)]


def test_a_plain_device_has_nothing_special() -> None:
    device = PlainDevice()
    assert device.caps == Caps(async_=False, events=False, copy_ahead=False)
    assert device.host_buffer_type is None
    assert device.event_new() is None
    assert not device.offload_op(ops.sqr(Tensor(GGMLType.F32, (4,))))


def test_a_backend_forwards_to_its_device() -> None:
    device = PlainDevice()
    backend = device.init_backend()
    node = ops.sqr(Tensor(GGMLType.F32, (4,)))
    assert (backend.name, backend.is_async, backend.device) == ("PLAIN", False, device)
    assert backend.supports_op(node)
    assert not backend.supports_op(Tensor(GGMLType.F32, (4,)))
    assert backend.supports_buft(device.buffer_type)
    assert not backend.supports_buft(HostBufferType("PLAIN"))
    assert not backend.offload_op(node)
    assert repr(backend) == "<PlainBackend PLAIN>"


def test_synchronize_and_free_do_nothing() -> None:
    backend = PlainDevice().init_backend()
    backend.synchronize()
    backend.free()
    backend.free()


def test_a_plan_is_the_graph() -> None:
    backend = PlainBackend(PlainDevice())
    graph, _, out, kept = square()
    plan = backend.graph_plan_create(graph)
    assert plan is graph
    assert backend.computed == []
    backend.graph_plan_compute(plan)
    assert backend.computed == [graph]
    assert read(out) == [1, 4, 9, 16]
    assert kept


def test_nothing_is_optimized() -> None:
    graph = square()[0]
    before = list(graph.nodes)
    assert list(PlainBackend(PlainDevice()).graph_optimize(graph)) == []
    assert graph.nodes == before


def test_tensors_are_written_at_once() -> None:
    """After a synchronization: work in flight may still read the old bytes."""
    backend = WaitingBackend(PlainDevice())
    _, x, _, kept = square()
    backend.set_tensor_async(x, np.array([7, 8], np.float32), offset=4)
    assert backend.n_waits == 1
    assert read(x) == [1, 7, 8, 4]
    with pytest.raises(TensorAccessError, match="outside the tensor"):
        backend.set_tensor_async(x, bytes(17))
    assert kept


def test_copies_are_left_to_the_caller() -> None:
    backend = PlainBackend(PlainDevice())
    _, x, out, kept = square()
    array(out)[...] = 0
    assert not backend.cpy_tensor_async(backend, x, out)
    assert read(out) == [0, 0, 0, 0]
    assert kept


def test_the_host_waits_for_events() -> None:
    backend, event = PlainBackend(PlainDevice()), CountingEvent()
    backend.event_wait(event)
    assert event.n_waits == 1
    with pytest.raises(NotImplementedError, match="PLAIN has no events"):
        backend.event_record(event)
