"""Remote devices: memory, weights from the worker's own file, and answers about graphs."""

from __future__ import annotations

import gc
import random
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest
from remote_workers import Workers, has_ipv6, workers

from lamella.alloc import HostBufferType, Usage, alloc_tensors, tensor_copy, tensor_get, tensor_set
from lamella.alloc.buffer import FilePart
from lamella.base.background import begin
from lamella.base.errors import (
    BackendError,
    DeviceLostError,
    ModelFileError,
    OutOfMemoryError,
    TensorAccessError,
)
from lamella.graph import GGMLType, Graph, Op, Tensor, ops
from lamella.kernels.cpu import CpuDevice
from lamella.kernels.remote import control, worker
from lamella.kernels.remote.control import Control
from lamella.kernels.remote.device import RemoteDevice
from lamella.kernels.remote.failures import remote_error
from lamella.kernels.remote.memory import RemoteBuffer
from lamella.kernels.remote.process import start_process
from lamella.kernels.remote.wire import Channel, Kind, Message, Role, connect, new_secret
from lamella.kernels.sim import SimDevice
from lamella.sched import DeviceType

SOON = 20.0
F32, Q8_0 = GGMLType.F32, GGMLType.Q8_0


@pytest.fixture
def lent() -> Iterator[Workers]:
    with workers() as found:
        yield found


@pytest.fixture
def cpu() -> CpuDevice:
    return CpuDevice(1)


def placed(device: RemoteDevice, *ne: int, type: GGMLType = F32) -> Tensor:
    tensor = Tensor(type, ne, name="t")
    alloc_tensors([tensor], device.buffer_type, Usage.WEIGHTS)
    return tensor


# --- what a device says of itself ---


def test_it_describes_the_workers_device(lent: Workers, cpu: CpuDevice) -> None:
    device = lent.lend(cpu, "ray:node2/CPU")
    assert device.name == device.buffer_type.name == "ray:node2/CPU"
    assert [buft.name for buft in device.extra_buffer_types] == ["ray:node2/CPU_REPACK"]
    assert device.description == cpu.description
    assert device.type is DeviceType.ACCEL  # only the driver's own processor is the CPU
    assert device.few_tokens == cpu.few_tokens
    assert not device.buffer_type.is_host
    free, total = device.memory()
    assert 0 < free <= total
    report = device.report()
    assert report.facts["name"] == "ray:node2/CPU"
    assert report.lines[-1].startswith("link: ")


def test_its_link_is_measured(lent: Workers, cpu: CpuDevice) -> None:
    link = lent.lend(cpu).link
    assert link is not None
    assert 0 < link.seconds < 0.1
    assert link.bytes_per_second > 1e6
    assert link.cost(2**30) > link.cost(2**20) > link.cost(0) == link.seconds


def test_a_gpu_stays_a_gpu(lent: Workers) -> None:
    assert lent.lend(SimDevice("SIM0")).type is DeviceType.GPU


def test_another_version_of_lamella_is_refused(
    lent: Workers, cpu: CpuDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "version", lambda package: "0.0.7")
    with pytest.raises(DeviceLostError, match=r"ray:node1/CPU: .* Lamella 0\.0\.7, this one"):
        lent.lend(cpu)


# --- memory ---


def test_bytes_are_written_read_and_filled(lent: Workers, cpu: CpuDevice) -> None:
    tensor = placed(lent.lend(cpu), 8, 2)
    data = np.arange(16, dtype=np.float32)
    tensor_set(tensor, data)
    assert tensor_get(tensor).tobytes() == data.tobytes()
    tensor_set(tensor, bytes(4), 4)
    assert tensor_get(tensor, 4, 8).tobytes() == bytes(4) + data[2].tobytes()
    tensor.buffer.memset_tensor(tensor, 7, 60)
    assert tensor_get(tensor, 60).tobytes() == bytes([7] * 4)
    tensor.buffer.clear(1)
    assert set(tensor_get(tensor).tobytes()) == {1}


def test_the_host_cannot_look_into_it(lent: Workers, cpu: CpuDevice) -> None:
    tensor = placed(lent.lend(cpu), 4)
    with pytest.raises(TensorAccessError, match="cannot read ray:node1/CPU in place"):
        tensor.buffer.memory  # noqa: B018


def test_copies_between_host_and_device(lent: Workers, cpu: CpuDevice) -> None:
    there, back = placed(lent.lend(cpu), 64), Tensor(F32, (64,))
    here = Tensor(F32, (64,))
    alloc_tensors([here, back], HostBufferType("CPU"))
    tensor_set(here, np.arange(64, dtype=np.float32))
    tensor_copy(here, there)
    tensor_copy(there, back)
    assert tensor_get(back).tobytes() == tensor_get(here).tobytes()


def test_freed_memory_is_free_at_the_worker(lent: Workers, cpu: CpuDevice) -> None:
    device = lent.lend(cpu)
    tensor = placed(device, 1024)
    assert len(lent.workers[0].buffers) == 1
    assert device.buffer_type.used == 4096
    del tensor
    gc.collect()
    device.memory()  # the next request takes the news along
    assert not lent.workers[0].buffers
    assert device.buffer_type.used == 0


def test_an_error_of_freeing_is_no_reply(
    lent: Workers, cpu: CpuDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = lent.lend(cpu)
    there = lent.workers[0].buffers
    first, second = placed(device, 8), placed(device, 8)
    assert isinstance(first.buffer, RemoteBuffer)
    monkeypatch.setattr(there[first.buffer.id], "free", lambda: 1 / 0)
    first.buffer.free()
    tensor_set(second, np.arange(8, dtype=np.float32))
    assert tensor_get(second).tobytes() == np.arange(8, dtype=np.float32).tobytes()
    assert len(there) == 1
    monkeypatch.setattr(there[next(iter(there))], "free", lambda: 1 / 0)
    lent.workers[0].close()
    assert not there


def test_out_of_memory_names_the_device(lent: Workers) -> None:
    device = lent.lend(SimDevice("SIM0", memory=1 << 20), "ray:a/SIM0")
    with pytest.raises(OutOfMemoryError) as raised:
        device.buffer_type.alloc_buffer(1 << 21)
    error = raised.value
    assert (error.where, error.wanted, error.free) == ("ray:a/SIM0", 1 << 21, 1 << 20)
    assert device.memory() == (1 << 20, 1 << 20)


def test_packed_weights_have_the_workers_size_and_the_files_bytes(
    lent: Workers, cpu: CpuDevice
) -> None:
    device = lent.lend(cpu)
    packed, here = device.extra_buffer_types[0], cpu.extra_buffer_types[0]
    weight = Tensor(Q8_0, (64, 40), name="w")
    assert packed.get_alloc_size(weight) == here.get_alloc_size(weight) > weight.nbytes
    alloc_tensors([weight], packed, Usage.WEIGHTS)
    data = np.random.default_rng(1).integers(0, 100, weight.nbytes, np.uint8)
    tensor_set(weight, data)
    assert tensor_get(weight).tobytes() == data.tobytes()
    assert tensor_get(weight, 34, 10).tobytes() == data[34:44].tobytes()
    with pytest.raises(TensorAccessError, match="whole tensors only"):
        tensor_set(weight, bytes(34))


# --- weights from a file ---


def test_weights_come_from_the_workers_file(lent: Workers, cpu: CpuDevice, tmp_path: Path) -> None:
    path, tensor = tmp_path / "w.bin", placed(lent.lend(cpu), 8, 2)
    data = np.arange(20, dtype=np.float32)
    path.write_bytes(data.tobytes())
    parts = [FilePart(path, 48, 32), FilePart(path, 0, 32)]
    assert tensor.buffer.load_tensor(tensor, parts, F32)
    assert tensor_get(tensor).tobytes() == data[12:20].tobytes() + data[:8].tobytes()


def test_vectors_are_converted_there(lent: Workers, cpu: CpuDevice, tmp_path: Path) -> None:
    path, tensor = tmp_path / "w.bin", placed(lent.lend(cpu), 8)
    data = np.arange(8, dtype=np.float16)
    path.write_bytes(data.tobytes())
    assert tensor.buffer.load_tensor(tensor, [FilePart(path, 0, 16)], GGMLType.F16)
    assert tensor_get(tensor).tobytes() == data.astype(np.float32).tobytes()


def test_a_file_that_the_worker_lacks_is_an_error(
    lent: Workers, cpu: CpuDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, tensor = tmp_path / "w.bin", placed(lent.lend(cpu), 8)
    path.write_bytes(bytes(32))
    there = Path.exists
    monkeypatch.setattr(Path, "exists", lambda self: self != path and there(self))
    with pytest.raises(ModelFileError, match=r"ray:node1/CPU: .*w.bin: this machine does not have"):
        tensor.buffer.load_tensor(tensor, [FilePart(path, 0, 32)], F32)


# --- graphs ---


def test_it_supports_what_the_workers_device_supports(lent: Workers, cpu: CpuDevice) -> None:
    device, x = lent.lend(cpu), Tensor(F32, (64, 3))
    for weight in (Tensor(Q8_0, (64, 8)), Tensor(GGMLType.F16, (64, 8))):
        node = ops.mul_mat(weight, x)
        assert device.supports_op(node) == cpu.supports_op(node)
    packed, here = Tensor(Q8_0, (64, 8)), Tensor(Q8_0, (64, 8))
    packed.buffer = device.extra_buffer_types[0].alloc_buffer(0)
    here.buffer = cpu.extra_buffer_types[0].alloc_buffer(0)
    assert device.supports_op(ops.mul_mat(packed, x)) == cpu.supports_op(ops.mul_mat(here, x))
    assert not device.supports_op(ops.cont(ops.view(packed, (64, 4), nb=packed.nb[:2])))
    assert device.supports_op(x)


def test_a_device_without_an_op_says_so(lent: Workers) -> None:
    device = lent.lend(SimDevice("SIM0", ops=[Op.ADD]))
    x = Tensor(F32, (4,))
    assert device.supports_op(ops.add(x, x))
    assert not device.supports_op(ops.sqr(x))


def test_it_uses_no_memory_of_others(lent: Workers, cpu: CpuDevice) -> None:
    a, b = lent.lend(cpu), lent.lend(cpu)
    assert a.supports_buft(a.buffer_type)
    assert a.supports_buft(a.extra_buffer_types[0])
    assert not a.supports_buft(b.buffer_type)
    assert not a.supports_buft(cpu.buffer_type)


def norm_graph() -> tuple[Graph, list[Tensor]]:
    x = Tensor(F32, (64, 4), name="x")
    w1, w2 = Tensor(Q8_0, (64, 32), name="w1"), Tensor(Q8_0, (64, 32), name="w2")
    weight = Tensor(F32, (64,), name="norm")
    y = ops.mul(ops.rms_norm(x, 1e-5), weight)
    a = ops.mul_mat(w1, y)
    b = ops.silu(a)
    c = ops.mul_mat(w2, y)
    return Graph(ops.mul(b, c)), [x, w1, w2, weight]


def test_it_optimizes_and_measures_as_the_workers_device(lent: Workers, cpu: CpuDevice) -> None:
    device = lent.lend(cpu)
    (mine, _), (theirs, _) = norm_graph(), norm_graph()
    keep, expected = device.graph_optimize(mine), cpu.graph_optimize(theirs)
    assert [n.name for n in mine.nodes] == [n.name for n in theirs.nodes]
    names = [(k.tensor.name, k.until.name) for k in keep]
    assert names == [(k.tensor.name, k.until.name) for k in expected] != []
    alloc_tensors([*mine.leafs, *mine.nodes], device.buffer_type)
    alloc_tensors([*theirs.leafs, *theirs.nodes], cpu.buffer_type)
    assert device.work_size(mine) == cpu.work_size(theirs) > 0


def test_answers_about_few_graphs_are_kept(
    lent: Workers, cpu: CpuDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "N_ANSWERS", 2)
    device = lent.lend(cpu)
    kept = device.control._ask_graph.cache_info
    for n in (1, 2, 3, 3):
        device.graph_optimize(Graph(ops.silu(Tensor(F32, (64, n)))))
    assert (kept().currsize, kept().hits) == (2, 1)
    device.control.close()
    assert kept().currsize == 0


# --- errors ---


def test_requests_of_many_threads_get_their_own_replies(lent: Workers, cpu: CpuDevice) -> None:
    device = lent.lend(cpu)
    tensors = [placed(device, 256) for _ in range(4)]
    wrong: list[int] = []

    def work(i: int) -> None:
        for n in range(40):
            tensor_set(tensors[i], bytes([i * 40 + n]) * 1024)
            if set(tensor_get(tensors[i]).tobytes()) != {i * 40 + n}:
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_lost_worker_is_an_error_everywhere(lent: Workers, cpu: CpuDevice) -> None:
    device = lent.lend(cpu)
    tensor = placed(device, 8)
    assert device.control.is_alive()
    lent.workers[0].close()
    with pytest.raises(DeviceLostError, match="ray:node1/CPU: the connection"):
        device.memory()
    with pytest.raises(DeviceLostError, match="ray:node1/CPU"):
        tensor_get(tensor)
    assert not device.control.is_alive()
    with pytest.raises(DeviceLostError):
        device.init_backend()
    del tensor  # frees its memory, which is gone


@pytest.mark.skipif(not has_ipv6(), reason="there is no IPv6")
def test_a_worker_on_a_machine_with_ipv6(cpu: CpuDevice) -> None:
    with closing(worker.Worker(cpu, secret := new_secret())) as lends:
        control = Control("ray:node1/CPU", lends.listen("::1"), secret)
        assert control.memory()[1] > 0
        control.close()


def test_a_worker_serves_one_driver(lent: Workers, cpu: CpuDevice) -> None:
    device = lent.lend(cpu)
    with pytest.raises(DeviceLostError, match="second: its process serves another driver"):
        Control("second", device.control.address, lent.secret)
    assert device.memory()[0] > 0
    assert not lent.workers[0]._ended.is_set()


class Interrupted:
    """A channel whose reader is interrupted once."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def __getattr__(self, name: str) -> object:
        return getattr(self._channel, name)

    def receive(self) -> Message:
        raise KeyboardInterrupt


def test_an_interrupted_request_ends_the_connection(lent: Workers, cpu: CpuDevice) -> None:
    """Else the next request would get its reply."""
    device = lent.lend(cpu)
    device.control._channel = Interrupted(device.control._channel)  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        device.memory()
    with pytest.raises(DeviceLostError, match=r"ray:node1/CPU: a request .* was interrupted"):
        device.bandwidth(1)


# --- what strangers can do to a worker's port ---


def test_a_worker_outlives_an_error_of_accept(
    lent: Workers, cpu: CpuDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "RETRY_SECONDS", 0.001)
    device, fails = lent.lend(cpu), [OSError(24, "Too many open files")] * 3
    accept = socket.socket.accept

    def failing(self: socket.socket) -> object:
        if fails:
            raise fails.pop()
        return accept(self)

    monkeypatch.setattr(socket.socket, "accept", failing)
    for _ in range(2):
        device.init_backend().free()
    assert fails == []


def test_a_worker_outlives_strangers(lent: Workers, cpu: CpuDevice) -> None:
    device, rng = lent.lend(cpu), random.Random(3)
    address = device.control.address
    hello = struct.pack("<8sHH16s", b"LAMELLA\x00", 1, 1, bytes(16))
    for n in range(60):
        with socket.create_connection(address) as stranger:
            raw = rng.randbytes(rng.randrange(200))
            stranger.sendall((b"", hello[: rng.randrange(28)], hello)[n % 3] + raw)
    for role in Role:
        with pytest.raises(DeviceLostError, match="does not know the secret"):
            connect(address, bytes(32), role, "stranger")
    assert device.memory()[0] > 0
    device.init_backend().free()


@pytest.mark.parametrize(
    "call",
    [
        b"",
        b"[]",
        b"nonsense",
        b'{"method": "no such", "arguments": {}}',
        b'{"method": "alloc", "arguments": {"buft": 7, "size": 1}}',
        b'{"method": "supports", "arguments": {"tensors": [[]]}}',
        b"[" * 100_000,
    ],
)
def test_a_wrong_request_is_an_error(lent: Workers, cpu: CpuDevice, call: bytes) -> None:
    control = lent.lend(cpu).control
    with pytest.raises(BackendError, match="ray:node1/CPU: "):
        control._ask(Kind.CALL, data=call)
    assert control.memory()[0] > 0


@pytest.mark.parametrize("kind", [Kind.SEND, Kind.RECEIVE, Kind.PLAN, Kind.RUN, Kind.CALL])
def test_wrong_work_ends_no_other_connection(lent: Workers, cpu: CpuDevice, kind: Kind) -> None:
    device = lent.lend(cpu)
    channel = device.control.open_stream()
    channel.set_timeout(10)
    channel.send(kind, 99, 99, 99, 99, 99, data=b"nonsense")
    channel.send(Kind.SYNC)
    with suppress(DeviceLostError):
        channel.receive()
    other = device.control.open_stream()
    other.set_timeout(10)
    other.send(Kind.SYNC)
    assert other.receive().kind == Kind.DATA
    assert device.control.memory()[0] > 0


def test_many_handshakes_at_once(
    lent: Workers, cpu: CpuDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "MAX_HANDSHAKES", 2)
    device = lent.lend(cpu)
    idle = [socket.create_connection(device.control.address) for _ in range(2)]
    stream = begin(device.init_backend, "open")
    with pytest.raises(TimeoutError):
        stream.result(0.2)
    for stranger in idle:
        stranger.close()
    stream.result(SOON).free()


def test_unknown_errors_become_the_devices() -> None:
    error = remote_error("ray:a/CPU", {"kind": "SystemExit", "args": [], "text": "why"})
    assert type(error) is BackendError
    assert str(error) == "ray:a/CPU: why"


def test_a_process_lends_its_device_and_ends_with_its_driver() -> None:
    with start_process("CPU", n_threads=1) as process:
        device = process.device("worker/CPU")
        tensor = placed(device, 8)
        tensor_set(tensor, bytes(range(32)))
        assert tensor_get(tensor).tobytes() == bytes(range(32))
        assert isinstance(tensor.buffer, RemoteBuffer)
        device.control.close()
        assert process.process.wait(20) == 0


def test_a_process_for_no_device_does_not_start() -> None:
    with pytest.raises(DeviceLostError, match="the worker for nonsense ended with status 1"):
        start_process("nonsense")
