"""Backends of simulated devices: they compute in order, asynchronously, and report errors."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pytest

from lamella.alloc import (
    Buffer,
    BufferType,
    GraphAllocator,
    HostBufferType,
    alloc_tensors,
    tensor_get,
    tensor_set,
)
from lamella.base.errors import BackendError, LamellaError
from lamella.graph import GGMLType, Graph, Tensor, ops
from lamella.graph.tensor import view_tensor
from lamella.kernels.sim import SimBackend, SimDevice
from lamella.sched import DeviceType
from lamella.sched.backend import Backend, Event
from lamella.sched.null import NullBackend, NullBufferType, NullDevice

SOON = 20.0

F32 = npt.NDArray[np.float32]
Open = Callable[[SimDevice], SimBackend]


@pytest.fixture
def opened() -> Iterator[Open]:
    """Opens backends, which are freed after the test."""
    backends: list[SimBackend] = []

    def make(device: SimDevice) -> SimBackend:
        backends.append(device.init_backend())
        return backends[-1]

    yield make
    for backend in backends:
        backend.free()


class Gate:
    """The delay of a device that begins no work until the gate opens."""

    def __init__(self) -> None:
        self.open = threading.Event()

    def __call__(self) -> float:
        assert self.open.wait(SOON)
        return 0.0


def inp(name: str, *ne: int, type: GGMLType = GGMLType.F32) -> Tensor:
    return Tensor(type, ne, name=name).set_input()


def place(buft: BufferType, *outputs: Tensor) -> tuple[Graph, GraphAllocator]:
    """A graph in one buffer type. Its memory lives as long as the allocator."""
    graph, galloc = Graph(*outputs), GraphAllocator([buft])
    galloc.alloc_graph(graph)
    return graph, galloc


def write(tensor: Tensor, values: Sequence[float]) -> None:
    dtype = np.int32 if tensor.type is GGMLType.I32 else np.float32
    tensor_set(tensor, np.asarray(values, dtype))


def read(tensor: Tensor) -> list[float]:
    values: F32 = tensor_get(tensor).view(np.float32)
    return [float(v) for v in values]


DEVICES: dict[str, Callable[[], SimDevice]] = {
    "gpu": lambda: SimDevice("SIM0"),
    "cpu": lambda: SimDevice("SIM0", DeviceType.CPU),
    "async cpu": lambda: SimDevice("SIM0", DeviceType.CPU, async_=True),
    "sync gpu": lambda: SimDevice("SIM0", async_=False),
}


# --- computing ---


@pytest.mark.parametrize("kind", DEVICES)
def test_a_graph_is_computed(kind: str, opened: Open) -> None:
    backend = opened(DEVICES[kind]())
    x = inp("x", 4, 2)
    out = ops.add(ops.cont(ops.view(ops.sqr(x), (4,), offset=16)), ops.view(x, (4,)))
    graph, galloc = place(backend.device.buffer_type, out.set_output())
    write(x, range(8))
    backend.graph_compute(graph)
    backend.synchronize()
    assert read(out) == [16, 26, 38, 52]
    assert galloc.layout is not None


def test_computing_is_asynchronous(opened: Open) -> None:
    gate = Gate()
    backend = opened(SimDevice("SIM0", delay=gate))
    x = inp("x", 4).set_output()
    out = ops.sqr(x)
    graph, galloc = place(backend.device.buffer_type, out)
    galloc.buffers[0][0].clear(0)
    write(x, [1, 2, 3, 4])
    backend.graph_compute(graph)
    assert read(out) == [0, 0, 0, 0]
    gate.open.set()
    backend.synchronize()
    assert read(out) == [1, 4, 9, 16]


def test_a_plan_can_be_computed_again(opened: Open) -> None:
    backend = opened(SimDevice("SIM0"))
    x = inp("x", 2).set_output()
    out = ops.scale(x, 2)
    graph, galloc = place(backend.device.buffer_type, out)
    plan = backend.graph_plan_create(graph)
    for i in range(3):
        write(x, [i, i + 1])
        backend.graph_plan_compute(plan)
        backend.synchronize()
        assert read(out) == [2 * i, 2 * i + 2]
    assert galloc.generations == [0]


def test_views_and_dependencies_are_no_work(opened: Open) -> None:
    backend = opened(SimDevice("SIM0"))
    x = inp("x", 4, 2)
    node = ops.cont(ops.transpose(x))
    graph = Graph(ops.reshape(node, (8,)))
    dependency = view_tensor(x)
    dependency.src = [x]
    graph.nodes.append(dependency)
    galloc = GraphAllocator([backend.device.buffer_type])
    galloc.alloc_graph(graph)
    write(x, range(8))
    plan = backend.graph_plan_create(graph)  # views and leafs have no kernel
    backend.graph_plan_compute(plan)
    backend.synchronize()
    assert read(node) == [0, 4, 1, 5, 2, 6, 3, 7]


def test_memory_of_others_is_refused(opened: Open) -> None:
    """At once, not when the work runs."""
    backend = opened(SimDevice("SIM0"))
    for buft in (SimDevice("SIM1").buffer_type, HostBufferType("CPU"), NullBufferType("NULL")):
        graph, galloc = place(buft, ops.sqr(inp("x", 4)))
        with pytest.raises(
            BackendError,
            match=rf"SIM0 cannot run SQR for .*: it cannot use .*\[4\] F32 in {buft.name}",
        ):
            backend.graph_compute(graph)
        assert galloc.buffer_sizes() != [0]
    backend.synchronize()  # nothing was submitted


def test_memory_without_kernels_for_it_is_refused(opened: Open) -> None:
    null = NullBufferType("NULL")
    backend = opened(SimDevice("SIM0", reads=[null]))
    graph, galloc = place(null, ops.sqr(inp("x", 4)))
    with pytest.raises(BackendError, match="in NULL"):
        backend.graph_compute(graph)
    assert galloc.buffer_sizes() == [64]


def test_memory_it_reads_is_used_in_place(opened: Open) -> None:
    host = HostBufferType("CPU")
    backend = opened(SimDevice("SIM0", reads=[host]))
    x = inp("x", 2)
    kept = alloc_tensors([x], host)
    write(x, [3, 4])
    out = ops.sqr(x)
    graph, galloc = place(backend.device.buffer_type, out)
    backend.graph_compute(graph)
    backend.synchronize()
    assert read(out) == [9, 16]
    assert (len(kept), len(galloc.buffers[0])) == (1, 1)


def test_freed_memory_is_refused(opened: Open) -> None:
    """With an error of Lamella: NumPy does not check an array's end if the buffer is empty."""
    for kind in ("gpu", "cpu"):
        backend = opened(DEVICES[kind]())
        graph, galloc = place(backend.device.buffer_type, ops.sqr(inp("x", 2)))
        galloc.free()
        with pytest.raises(LamellaError):
            backend.graph_compute(graph)


# --- errors ---


def rows_of(backend: SimBackend) -> tuple[Tensor, Tensor, Graph, GraphAllocator]:
    """(ids, rows, graph, its allocator): a table's rows by ids, which may be out of range."""
    table, ids = inp("table", 2, 3), inp("ids", 1, type=GGMLType.I32)
    rows = ops.get_rows(table, ids).set_output()
    graph, galloc = place(backend.device.buffer_type, rows)
    write(table, range(6))
    return ids, rows, graph, galloc


@pytest.mark.parametrize("kind", ["gpu", "async cpu"])
def test_a_kernel_s_error_is_raised_by_the_next_wait(kind: str, opened: Open) -> None:
    backend = opened(DEVICES[kind]())
    ids, rows, graph, galloc = rows_of(backend)
    write(ids, [3])
    backend.graph_compute(graph)
    with pytest.raises(BackendError, match=r"get_rows .*: row 3 must be at least 0 and below 3"):
        backend.synchronize()
    # the backend still works
    write(table_of(graph), range(6))
    write(ids, [2])
    backend.graph_compute(graph)
    backend.synchronize()
    assert read(rows) == [4, 5]
    assert galloc.layout is not None


def table_of(graph: Graph) -> Tensor:
    (table,) = (t for t in graph.leafs if t.name == "table")
    return table


@pytest.mark.parametrize("kind", ["cpu", "sync gpu"])
def test_a_synchronous_device_raises_it_at_once(kind: str, opened: Open) -> None:
    backend = opened(DEVICES[kind]())
    ids, rows, graph, galloc = rows_of(backend)
    write(ids, [-1])
    with pytest.raises(BackendError, match="row -1"):
        backend.graph_compute(graph)
    backend.synchronize()
    write(ids, [0])
    backend.graph_compute(graph)
    assert read(rows) == [0, 1]
    assert galloc.layout is not None


def test_work_after_an_error_is_not_done(opened: Open) -> None:
    """Its sources were not computed. Events are still reached."""
    backend = opened(SimDevice("SIM0"))
    ids, rows, graph, galloc = rows_of(backend)
    galloc.buffers[0][0].memset_tensor(rows, 0)
    write(ids, [7])
    backend.graph_compute(graph)
    backend.set_tensor_async(ids, np.array([1], np.int32))
    backend.graph_compute(graph)
    event = backend.device.event_new()
    assert event is not None
    backend.event_record(event)
    event.synchronize()
    with pytest.raises(BackendError, match="row 7"):
        backend.synchronize()
    assert read(rows) == [0, 0]
    assert tensor_get(ids).view(np.int32).tolist() == [7]


def test_other_errors_become_backend_errors(opened: Open) -> None:
    def delay() -> float:
        raise OSError("the cable is gone")

    backend = opened(SimDevice("SIM0", delay=delay))
    graph, galloc = place(backend.device.buffer_type, ops.sqr(inp("x", 4)))
    backend.graph_compute(graph)
    with pytest.raises(BackendError, match="SIM0: the cable is gone") as e:
        backend.synchronize()
    assert isinstance(e.value.__cause__, OSError)
    assert galloc.layout is not None


# --- copying ---


def on(device: SimDevice, *ne: int) -> tuple[Tensor, Buffer]:
    tensor = inp("x", *ne)
    (buffer,) = alloc_tensors([tensor], device.buffer_type)
    buffer.clear(0)
    return tensor, buffer


def test_copies_are_work_in_order(opened: Open) -> None:
    gate = Gate()
    backend = opened(SimDevice("SIM0", delay=gate))
    x = inp("x", 2).set_output()
    out = ops.sqr(x)
    graph, galloc = place(backend.device.buffer_type, out)
    galloc.buffers[0][0].clear(0)
    (first, kept), (second, there) = on(backend.device, 2), on(backend.device, 2)
    for values, got in (([1, 2], first), ([3, 4], second)):
        backend.set_tensor_async(x, np.array(values, np.float32))
        backend.graph_compute(graph)
        assert backend.cpy_tensor_async(backend, out, got)
    assert read(x) == read(first) == [0, 0]
    gate.open.set()
    backend.synchronize()
    assert (read(first), read(second)) == ([1, 4], [9, 16])
    assert kept.size == there.size


@pytest.mark.parametrize("kind", DEVICES)
def test_parts_of_tensors_are_written(kind: str, opened: Open) -> None:
    backend = opened(DEVICES[kind]())
    x, buffer = on(backend.device, 4)
    backend.set_tensor_async(x, np.array([5, 6], np.float32), offset=4)
    backend.synchronize()
    assert read(x) == [0, 5, 6, 0]
    assert buffer.size >= 16


def test_bytes_outside_a_tensor_are_refused(opened: Open) -> None:
    backend = opened(SimDevice("SIM0"))
    x, buffer = on(backend.device, 4)
    backend.set_tensor_async(x, bytes(8), offset=12)
    with pytest.raises(LamellaError, match="outside the tensor of 16 bytes"):
        backend.synchronize()
    assert not buffer.freed


SLOW = 10_000  # bytes per second; 400 bytes take 40 ms
COPIES: dict[str, Callable[[SimBackend, SimBackend, Tensor, Tensor], object]] = {
    "set": lambda slow, fast, x, y: slow.set_tensor_async(y, bytes(400)),
    "copy": lambda slow, fast, x, y: slow.cpy_tensor_async(fast, x, y),
}


@pytest.mark.parametrize("name", COPIES)
def test_copies_take_their_time(name: str, opened: Open) -> None:
    slow = opened(SimDevice("SIM0", bandwidth=SLOW))
    fast = opened(SimDevice("SIM1"))
    (x, kept), (y, there) = on(fast.device, 100), on(slow.device, 100)
    begin = time.perf_counter()
    COPIES[name](slow, fast, x, y)
    slow.synchronize()
    assert time.perf_counter() - begin >= 0.04
    assert kept is not there


@pytest.mark.parametrize("source", ["another", "a synchronous one", "itself"])
def test_tensors_of_other_devices_are_copied(source: str, opened: Open) -> None:
    gate = Gate()
    second = opened(SimDevice("SIM1", delay=gate))
    sources = {
        "another": opened(SimDevice("SIM0")),
        "a synchronous one": opened(SimDevice("CPU", DeviceType.CPU)),
        "itself": second,
    }
    first = sources[source]
    (x, kept), (y, there) = on(first.device, 2), on(second.device, 2)
    write(x, [1, 2])
    assert second.cpy_tensor_async(first, x, y)
    assert read(y) == [0, 0]  # submitted, but not done
    gate.open.set()
    second.synchronize()
    assert read(y) == [1, 2]
    assert kept is not there


@pytest.mark.parametrize(
    "device",
    [SimDevice("SIM1", async_=False), SimDevice("SIM1", async_copies=False)],
    ids=["synchronous", "cannot"],
)
def test_a_device_without_async_copies_returns_false(device: SimDevice, opened: Open) -> None:
    first, second = opened(SimDevice("SIM0")), opened(device)
    (x, kept), (y, there) = on(first.device, 2), on(device, 2)
    write(x, [1, 2])
    assert not second.cpy_tensor_async(first, x, y)
    second.synchronize()
    assert read(y) == [0, 0]
    assert kept is not there


def test_copies_from_inaccessible_memory_are_left_to_the_caller(opened: Open) -> None:
    backend = opened(SimDevice("SIM0"))
    null = NullDevice("NULL", DeviceType.GPU, NullBufferType("NULL"))
    x = inp("x", 2)
    kept = alloc_tensors([x], null.buffer_type)
    y, there = on(backend.device, 2)
    assert not backend.cpy_tensor_async(NullBackend(null), x, y)
    assert read(y) == [0, 0]
    assert kept != [there]


class OtherAsync(Backend):
    """An asynchronous backend of another kind."""

    is_async = True

    def graph_compute(self, graph: Graph) -> None: ...


def test_copies_from_other_asynchronous_backends_are_left_to_the_caller(opened: Open) -> None:
    """Their work cannot be ordered with the stream of a simulated device."""
    backend = opened(SimDevice("SIM0"))
    (x, kept), (y, there) = on(backend.device, 2), on(backend.device, 2)
    assert not backend.cpy_tensor_async(OtherAsync(SimDevice("OTHER")), x, y)
    assert kept is not there


def test_freeing_a_backend_ends_its_thread(opened: Open) -> None:
    backend = opened(SimDevice("A"))
    x, buffer = on(backend.device, 2)
    backend.set_tensor_async(x, bytes(8))
    assert "A" in [t.name for t in threading.enumerate()]
    backend.free()
    assert "A" not in [t.name for t in threading.enumerate()]
    assert buffer.size == 128


# --- events ---


class HostEvent(Event):
    """An event of another kind of device."""

    def __init__(self) -> None:
        self.n_waits = 0

    def synchronize(self) -> None:
        self.n_waits += 1


def test_a_backend_waits_for_another(opened: Open) -> None:
    gate = Gate()
    slow, fast = opened(SimDevice("SIM0", delay=gate)), opened(SimDevice("SIM1"))
    (x, kept), (y, there) = on(slow.device, 2), on(fast.device, 2)
    event = slow.device.event_new()
    assert event is not None
    slow.set_tensor_async(x, np.array([1, 2], np.float32))
    slow.event_record(event)
    fast.event_wait(event)
    assert fast.cpy_tensor_async(fast, x, y)
    threading.Timer(0.02, gate.open.set).start()
    fast.synchronize()
    assert read(y) == [1, 2]
    assert kept.size == there.size


def test_the_host_waits_for_events_of_other_kinds(opened: Open) -> None:
    backend, event = opened(SimDevice("SIM0")), HostEvent()
    backend.event_wait(event)
    assert event.n_waits == 1
    with pytest.raises(AssertionError, match="no event of a simulated device"):
        backend.event_record(event)
