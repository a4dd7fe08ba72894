"""Backends of remote devices: order, copies, events, outputs that come along, and errors."""

from __future__ import annotations

import gc
import socket
import threading
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from remote_workers import Workers, workers

from lamella.alloc import GraphAllocator, HostBufferType, alloc_tensors, tensor_get, tensor_set
from lamella.base.errors import BackendError, DeviceLostError
from lamella.graph import GGMLType, Graph, Tensor, ops
from lamella.kernels.cpu import CpuDevice
from lamella.kernels.remote.backend import RemoteBackend
from lamella.kernels.remote.device import RemoteDevice
from lamella.kernels.remote.wire import Kind
from lamella.kernels.sim import SimDevice
from lamella.sched import Device

SOON = 20.0


class World:
    """Backends on workers of this process, which are freed after the test."""

    def __init__(self, lent: Workers) -> None:
        self.lent = lent
        self.backends: list[RemoteBackend] = []

    def open(self, device: Device) -> RemoteBackend:
        return self.again(self.lent.lend(device))

    def again(self, device: RemoteDevice) -> RemoteBackend:
        self.backends.append(device.init_backend())
        return self.backends[-1]


@pytest.fixture
def world() -> Iterator[World]:
    with workers() as lent:
        world = World(lent)
        yield world
        for backend in world.backends:
            backend.free()


@pytest.fixture(params=["cpu", "sim"])
def backend(world: World, request: pytest.FixtureRequest) -> RemoteBackend:
    return world.open(CpuDevice(1) if request.param == "cpu" else SimDevice("SIM0"))


class Gate:
    """The delay of a device that begins no work until the gate opens."""

    def __init__(self) -> None:
        self.open = threading.Event()

    def __call__(self) -> float:
        assert self.open.wait(SOON)
        return 0.0


def inp(*ne: int, type: GGMLType = GGMLType.F32) -> Tensor:
    return Tensor(type, ne, name="x").set_input()


def place(backend: RemoteBackend, *outputs: Tensor) -> tuple[Graph, GraphAllocator]:
    graph, galloc = Graph(*outputs), GraphAllocator([backend.device.buffer_type])
    galloc.alloc_graph(graph)
    return graph, galloc


def host(*values: float) -> Tensor:
    tensor = Tensor(GGMLType.F32, (len(values),), name="host")
    alloc_tensors([tensor], HostBufferType("CPU"))
    tensor_set(tensor, np.asarray(values, np.float32))
    return tensor


def values(tensor: Tensor) -> list[float]:
    return [float(v) for v in tensor_get(tensor).view(np.float32)]


def requests(backend: RemoteBackend, monkeypatch: pytest.MonkeyPatch) -> list[Kind]:
    """The requests to the worker from now on."""
    asked: list[Kind] = []
    ask = backend.control._ask

    def record(kind: Kind, *numbers: int, data: object = b"") -> object:
        asked.append(kind)
        return ask(kind, *numbers, data=data)

    monkeypatch.setattr(backend.control, "_ask", record)
    return asked


def test_a_graph_is_computed(backend: RemoteBackend) -> None:
    x = inp(4, 2)
    out = ops.add(ops.cont(ops.view(ops.sqr(x), (4,), offset=16)), ops.view(x, (4,)))
    graph, _memory = place(backend, out.set_output())
    tensor_set(x, np.arange(8, dtype=np.float32))
    backend.graph_compute(graph)
    backend.synchronize()
    assert values(out) == [16, 26, 38, 52]


def test_plans_run_again_with_new_inputs_in_order(backend: RemoteBackend) -> None:
    x = inp(4).set_output()
    out = ops.sqr(x).set_output()
    graph, _memory = place(backend, out)
    plan, found = backend.graph_plan_create(graph), []
    for n in range(3):
        source = host(*[n] * 4)
        assert backend.set_input_async(source, x)
        tensor_set(source, bytes(16))  # it has been read
        backend.graph_plan_compute(plan)
        backend.synchronize()
        found.append(values(out))
    assert found == [[n * n] * 4 for n in range(3)]


def test_computing_is_asynchronous(world: World) -> None:
    gate = Gate()
    backend = world.open(SimDevice("SIM0", delay=gate))
    x = inp(4).set_output()
    graph, _memory = place(backend, ops.sqr(x).set_output())
    plan = backend.graph_plan_create(graph)
    event = backend.device.event_new()
    assert event is not None
    event.synchronize()  # it was never recorded
    for _ in range(3):
        backend.graph_plan_compute(plan)
    backend.event_record(event)
    reached: list[bool] = []

    def wait() -> None:
        event.synchronize()
        reached.append(True)

    waits = threading.Thread(target=wait)
    waits.start()
    waits.join(0.1)
    assert not reached
    gate.open.set()
    waits.join(SOON)
    assert reached


def test_outputs_come_with_the_reply(
    backend: RemoteBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading an output needs no further request, until the memory changes."""
    x = inp(4).set_output()
    out = ops.sqr(x).set_output()
    graph, _memory = place(backend, out)
    plan = backend.graph_plan_create(graph)
    tensor_set(x, np.full(4, 3, np.float32))
    backend.graph_plan_compute(plan)
    backend.synchronize()
    asked = requests(backend, monkeypatch)
    assert values(out) == [9] * 4
    assert tensor_get(out, 4, 4).tobytes() == np.float32(9).tobytes()
    assert asked == []
    out.buffer.memset_tensor(out, 0)
    assert values(out) == [0] * 4
    backend.set_tensor_async(out, np.full(4, 7, np.float32))
    backend.synchronize()
    assert values(out) == [7] * 4
    assert asked == [Kind.FILL, Kind.READ, Kind.READ]


def test_an_idle_backend_sends_nothing(
    backend: RemoteBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[object] = []
    monkeypatch.setattr(backend._channel, "flush", lambda: sent.append(1))
    backend.synchronize()
    event = backend.device.event_new()
    assert event is not None
    backend.event_record(event)
    event.synchronize()
    assert sent == []


# --- copies ---


def copied(src: RemoteBackend, dst: RemoteBackend, n: int = 4) -> list[float]:
    x = inp(n).set_output()
    out = ops.sqr(x).set_output()
    graph, _here = place(src, out)
    y = Tensor(GGMLType.F32, (n,), name="y")
    alloc_tensors([y], dst.device.buffer_type)
    tensor_set(x, np.arange(n, dtype=np.float32))
    src.graph_plan_compute(src.graph_plan_create(graph))
    assert dst.cpy_tensor_async(src, out, y)
    dst.synchronize()
    src.synchronize()
    return values(y)


def test_a_tensor_goes_from_worker_to_worker(world: World) -> None:
    a, b = world.open(CpuDevice(1)), world.open(SimDevice("SIM0"))
    assert copied(a, b) == copied(b, a) == [0, 1, 4, 9]
    large = copied(a, b, 100_000)
    assert large[:4] == [0, 1, 4, 9]
    assert len(large) == 100_000


def test_copies_within_a_stream_and_from_the_host(backend: RemoteBackend) -> None:
    assert copied(backend, backend) == [0, 1, 4, 9]
    y = Tensor(GGMLType.F32, (2,), name="y")
    alloc_tensors([y], backend.device.buffer_type)
    local = CpuDevice(1).init_backend()
    assert backend.cpy_tensor_async(local, host(5, 6), y)
    backend.synchronize()
    assert values(y) == [5, 6]
    local.free()


def test_a_worker_keeps_few_inputs(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host waits when more bytes are in flight than allowed."""
    monkeypatch.setattr("lamella.kernels.remote.backend.IN_FLIGHT_BYTES", 3 * 4096)
    gate = Gate()
    backend = world.open(SimDevice("SIM0", delay=gate))
    x = inp(1024).set_output()
    _graph, _memory = place(backend, ops.sqr(x).set_output())
    written: list[int] = []

    def write() -> None:
        for n in range(6):
            backend.set_tensor_async(x, np.full(1024, n, np.float32))
            written.append(n)
        backend.synchronize()

    thread = threading.Thread(target=write)
    thread.start()
    thread.join(0.2)
    assert written == [0, 1, 2]
    gate.open.set()
    thread.join(SOON)
    assert written == [0, 1, 2, 3, 4, 5]
    assert values(x)[:2] == [5, 5]


def test_a_worker_keeps_few_tensors_of_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lamella.kernels.remote.backend.IN_FLIGHT_BYTES", 100)
    a, b = world.open(CpuDevice(1)), world.open(SimDevice("SIM0"))
    waits: list[int] = []
    wait_for = b.wait_for

    def wait(n_messages: int) -> None:
        waits.append(n_messages)
        wait_for(n_messages)

    monkeypatch.setattr(b, "wait_for", wait)
    x, y = Tensor(GGMLType.F32, (16,), name="x"), Tensor(GGMLType.F32, (16,), name="y")
    alloc_tensors([x], a.device.buffer_type)
    alloc_tensors([y], b.device.buffer_type)
    for n in range(4):
        a.set_tensor_async(x, np.full(16, n, np.float32))
        assert b.cpy_tensor_async(a, x, y)
    b.synchronize()
    assert values(y) == [3] * 16
    assert waits == [1, 2, 3]


def test_a_source_in_host_memory_is_read_at_once(backend: RemoteBackend) -> None:
    y = Tensor(GGMLType.F32, (2,), name="y")
    alloc_tensors([y], backend.device.buffer_type)
    local, source = CpuDevice(1).init_backend(), host(5, 6)
    assert backend.reads_at_once
    assert backend.cpy_tensor_async(local, source, y)
    tensor_set(source, bytes(8))
    backend.synchronize()
    assert values(y) == [5, 6]
    local.free()


def test_the_host_copies_between_streams_of_a_worker(world: World) -> None:
    a = world.open(CpuDevice(1))
    b = world.again(a.device)
    x = Tensor(GGMLType.F32, (4,), name="x")
    alloc_tensors([x], a.device.buffer_type)
    assert not b.cpy_tensor_async(a, x, x)


def test_workers_that_cannot_connect_leave_it_to_the_host(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = world.open(CpuDevice(1)), world.open(CpuDevice(1))
    x = Tensor(GGMLType.F32, (4,), name="x")
    alloc_tensors([x], a.device.buffer_type)
    monkeypatch.setattr(b.control, "address", ("127.0.0.1", 1))
    for _ in range(2):
        assert not b.cpy_tensor_async(a, x, x)
    assert caplog.text.count("tensors go over this process") == 1
    assert a.control.lost is None


def test_empty_tensors(world: World) -> None:
    a, b = world.open(CpuDevice(1)), world.open(CpuDevice(1))
    x, y = (Tensor(GGMLType.F32, (0,), name="x") for _ in "xy")
    alloc_tensors([x], a.device.buffer_type)
    alloc_tensors([y], b.device.buffer_type)
    for tensor, backend in ((x, a), (y, b)):
        tensor.buffer = tensor.buffer or backend.device.buffer_type.alloc_buffer(0)
    assert b.cpy_tensor_async(a, x, y)
    b.synchronize()


# --- errors ---


def rows_graph(backend: RemoteBackend) -> tuple[Tensor, Tensor, Graph, GraphAllocator]:
    data, ids = inp(2, 4).set_output(), inp(2, type=GGMLType.I32).set_output()
    out = ops.get_rows(data, ids).set_output()
    graph, memory = place(backend, out)
    tensor_set(data, np.arange(8, dtype=np.float32))
    return ids, out, graph, memory


def test_a_bad_index_is_raised_once_and_work_goes_on(backend: RemoteBackend) -> None:
    ids, out, graph, _memory = rows_graph(backend)
    plan = backend.graph_plan_create(graph)

    def run(indices: Sequence[int]) -> None:
        tensor_set(ids, np.asarray(indices, np.int32))
        backend.graph_plan_compute(plan)

    run([1, 99])
    with pytest.raises(BackendError, match=r"ray:node1/.*99"):
        backend.synchronize()
    backend.synchronize()
    run([3, 0])
    backend.synchronize()
    assert values(out) == [6, 7, 0, 1]


def test_a_graph_in_foreign_memory_is_refused(backend: RemoteBackend) -> None:
    y = ops.sqr(host(1, 2))
    alloc_tensors([y], backend.device.buffer_type)
    with pytest.raises(BackendError, match=r"cannot run SQR .* cannot use host\[2\] F32 in CPU"):
        backend.graph_plan_create(Graph(y))


def test_dropped_plans_end_at_the_worker(world: World) -> None:
    backend = world.open(CpuDevice(1))
    graph, _memory = place(backend, ops.sqr(inp(4).set_output()).set_output())
    plans = [backend.graph_plan_create(graph) for _ in range(3)]
    kept = plans.pop()
    del plans
    gc.collect()
    backend.graph_plan_compute(kept)
    backend.synchronize()
    assert not backend._dropped


def test_a_lost_worker_ends_all_waits(world: World) -> None:
    gate = Gate()
    backend = world.open(SimDevice("SIM0", delay=gate))
    graph, _memory = place(backend, ops.sqr(inp(4).set_output()).set_output())
    plan, event = backend.graph_plan_create(graph), backend.device.event_new()
    assert event is not None
    backend.graph_plan_compute(plan)
    backend.event_record(event)
    world.lent.workers[0]._streams[0]._channel._sock.shutdown(socket.SHUT_RDWR)
    gate.open.set()
    with pytest.raises(DeviceLostError, match="ray:node1/SIM0"):
        event.synchronize()
    backend.synchronize()  # nothing is left to wait for
    with pytest.raises(DeviceLostError):
        backend.graph_plan_compute(plan)
    assert backend.device.lost


def with_work(world: World) -> RemoteBackend:
    """A backend whose scratch memory is the worker's."""
    backend = world.open(CpuDevice(1))
    backend.workspace(64)
    graph, _memory = place(backend, ops.sqr(inp(4).set_output()).set_output())
    backend.graph_compute(graph)
    backend.synchronize()
    return backend


def test_a_stream_that_ends_frees_no_memory_of_the_driver(world: World) -> None:
    backend = with_work(world)
    stream = world.lent.workers[0]._streams[0]
    stream._channel.cut()
    assert stream.ended.wait(SOON)
    assert backend.work is not None
    backend.work.clear(1)


def test_a_stream_whose_device_cannot_be_freed_ends_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = with_work(world)
    (stream,) = world.lent.workers[0]._streams
    other = RemoteBackend(backend.device)
    monkeypatch.setattr(stream._backend, "free", lambda: 1 / 0)
    stream._channel.cut()
    assert stream.ended.wait(SOON)
    graph, _memory = place(other, ops.sqr(inp(4).set_output()).set_output())
    other.graph_compute(graph)
    other.synchronize()
    other.free()


def test_a_worker_that_closes_answers_no_request_about_freed_memory(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, errors = with_work(world), list[str]()
    work, reactor = backend.work, world.lent.workers[0]._reactor
    assert work is not None
    close = reactor.close

    def close_and_ask() -> None:
        close()
        with pytest.raises(DeviceLostError, match="ray:node1/CPU: the connection") as found:
            work.clear(1)
        errors.append(str(found.value))

    monkeypatch.setattr(reactor, "close", close_and_ask)
    world.lent.workers[0].close()
    assert len(errors) == 1


def test_a_freed_backend_has_no_work_in_flight(world: World) -> None:
    gate = Gate()
    backend = world.open(SimDevice("SIM0", delay=gate))
    graph, _memory = place(backend, ops.sqr(inp(4).set_output()).set_output())
    backend.graph_compute(graph)
    frees = threading.Thread(target=backend.free)
    frees.start()
    frees.join(0.1)
    assert frees.is_alive()
    gate.open.set()
    frees.join(SOON)
    assert not frees.is_alive()
