"""Models on remote devices: equal bits, overlapping ubatches, failures, and lost workers."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from matrix import combinations, first
from pipeline_run import (
    MODEL,
    N_UBATCH,
    TEXT,
    decode_mixed,
    decode_prompts,
    failing,
    loaded,
    opened,
    overlapping,
    start,
    start_in_pieces,
)
from remote_workers import Workers, stop, workers
from tiny_models import write_model
from watched_devices import Watch

from lamella.base.errors import BackendError, DeviceLostError, ModelFileError
from lamella.base.settings import STRICT
from lamella.kernels.cpu import CpuDevice
from lamella.kernels.remote import pulse
from lamella.kernels.remote.device import RemoteDevice
from lamella.kernels.remote.process import WorkerProcess, start_process
from lamella.kernels.sim import SimDevice
from lamella.model.context import Context
from lamella.model.params import ContextParams
from lamella.sched.backend import Device
from lamella.sched.profile import Profiler

Decode = Callable[[Context], list[bytes]]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_model(MODEL, path)
    return path


@pytest.fixture
def lent() -> Iterator[Workers]:
    with workers() as found:
        yield found


def bits(path: Path, devices: Sequence[Device], decode: Decode, **params: bool) -> list[bytes]:
    with opened(path, devices, **params) as context:
        return decode(context)


# --- equal bits ---


@pytest.mark.parametrize("decode", first(1, [decode_mixed, decode_prompts]))
def test_remote_processors_have_the_bits_of_the_local_one(
    path: Path, lent: Workers, decode: Decode
) -> None:
    expected = bits(path, [], decode)
    one, two = lent.lend(CpuDevice(1)), lent.lend(CpuDevice(1))
    assert bits(path, [one], decode) == expected
    for strict in (0, 1):
        with STRICT.set(strict), opened(path, [one, two]) as context:
            assert context.no_pipeline == ""
            assert [d.name for d in context.model.devices] == [one.name, two.name, "CPU"]
            assert decode(context) == expected
    assert bits(path, [one, two], decode, pipeline=False) == expected


def test_layers_on_the_local_and_a_remote_processor(path: Path, lent: Workers) -> None:
    expected = bits(path, [], decode_mixed)
    with loaded(path, [lent.lend(CpuDevice(1))], n_gpu_layers=2) as model:
        names = [device.name for device in model.layers]
        assert names == ["CPU", "CPU", "ray:node1/CPU", "ray:node1/CPU"]
        with Context(model, ContextParams(n_ctx=512, n_ubatch=N_UBATCH)) as context:
            assert decode_mixed(context) == expected


def test_a_remote_and_a_local_device_beside_each_other(path: Path, lent: Workers) -> None:
    expected = bits(path, [SimDevice("SIM0")], decode_mixed)
    remote = lent.lend(SimDevice("SIM1"))
    assert bits(path, [SimDevice("SIM0"), remote], decode_mixed) == expected
    assert bits(path, [remote, SimDevice("SIM0")], decode_mixed) == expected


def test_two_contexts_share_a_remote_device(path: Path, lent: Workers) -> None:
    devices = [lent.lend(CpuDevice(1)), lent.lend(CpuDevice(1))]
    with opened(path, devices) as first, opened(path, devices) as second:
        seqs = [c.pool.new_sequence() for c in (first, second)]
        for begin in range(0, 32, N_UBATCH):
            for context, seq in zip((first, second), seqs, strict=True):
                start(context, seq, TEXT[begin : begin + N_UBATCH])
        a, b = (start(c, s, [1], 1) for c, s in zip((first, second), seqs, strict=True))
        assert a == b


def test_a_profile_names_the_machines_and_has_the_same_bits(path: Path, lent: Workers) -> None:
    devices = [lent.lend(CpuDevice(1)), lent.lend(CpuDevice(1))]
    with opened(path, devices) as context:
        seq = context.pool.new_sequence()
        expected = start(context, seq, TEXT[:5], 1)
        seq.free()
        profiler = Profiler(each_call=True)
        context.set_profiler(profiler)
        begin = time.perf_counter_ns()
        assert start(context, context.pool.new_sequence(), TEXT[:5], 1) == expected
        end = time.perf_counter_ns()
        splits, copies = profiler.take()
        calls = [call for split in splits for call in split.calls]
        assert {split.device for split in splits} == {"CPU", *(d.name for d in devices)}
        assert ("ray:node1/CPU", "ray:node2/CPU") in {(c.from_device, c.device) for c in copies}
        assert any(call.kind.startswith("MUL_MAT") for call in calls)
        assert all(begin < call.begin <= call.end < end for call in calls)


def test_the_driver_reads_no_weights_of_a_remote_layer(
    path: Path, lent: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = lent.lend(CpuDevice(1))
    sent: list[int] = []
    monkeypatch.setattr(device.control, "write", lambda id, at, data: sent.append(data.size))
    monkeypatch.setattr(device.control, "set_packed", lambda *args: sent.append(-1))
    with loaded(path, [device]) as model:
        assert any(b.buft is device.buffer_type for b in model.buffers)
    assert sent == []


def test_a_worker_without_the_file_is_named(
    path: Path, lent: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = Path.exists
    monkeypatch.setattr(Path, "exists", lambda self: self != path and there(self))
    with (
        pytest.raises(ModelFileError, match=r"ray:node1/CPU: .*tiny.gguf: this machine does not"),
        loaded(path, [lent.lend(CpuDevice(1))]),
    ):
        pass


# --- overlap and failures ---


def test_a_machine_starts_while_the_next_one_computes(path: Path, lent: Workers) -> None:
    watch = Watch()
    devices = [lent.lend(watch.device(name)) for name in ("SIM0", "SIM1")]
    with opened(path, devices) as context:
        start(context, context.pool.new_sequence(), TEXT[: 6 * N_UBATCH], 1)  # makes the plans
        for last in (6, 5):
            watch.clear()
            watch.on_begin = overlapping(watch, last)
            start(context, context.pool.new_sequence(), TEXT[: last * N_UBATCH], 1)
            assert watch.is_before(("SIM0", "begin", 3), ("SIM1", "end", 2))


@pytest.mark.parametrize(("device", "number"), combinations(["SIM0", "SIM1"], [1, 3]))
def test_a_failure_is_raised_once_and_the_context_stays_usable(
    path: Path, lent: Workers, device: str, number: int
) -> None:
    watch = Watch()
    devices = [lent.lend(watch.device(name), name) for name in ("SIM0", "SIM1")]
    with opened(path, devices) as context:
        seq = context.pool.new_sequence()
        expected = start(context, seq, TEXT[:50], 1)
        seq.free()
        watch.clear()
        watch.on_begin = failing(device, number)
        seq = context.pool.new_sequence()
        with pytest.raises(BackendError, match=r"on fire|its input failed"):
            start_in_pieces(context, seq)
        seq.free()
        context.synchronize()
        seq = context.pool.new_sequence()
        assert start(context, seq, TEXT[:50], 1) == expected


@pytest.mark.parametrize("lost", [0, 1])
def test_a_lost_worker_fails_the_step_and_is_named(path: Path, lent: Workers, lost: int) -> None:
    devices = [lent.lend(CpuDevice(1)), lent.lend(CpuDevice(1))]
    with opened(path, devices) as context:
        seq = context.pool.new_sequence()
        start(context, seq, TEXT[:20], 1)
        lent.workers[lost].close()
        for _ in range(2):
            with pytest.raises(DeviceLostError, match="ray:node"):
                start(context, seq, TEXT[:20], 1)
        assert devices[lost].control.lost is not None


def test_a_killed_process_fails_a_prompt_in_flight(path: Path) -> None:
    with (
        start_process("CPU", 1) as one,
        start_process("CPU", 1, one.secret) as two,
        opened(path, [one.device("ray:one/CPU"), two.device("ray:two/CPU")]) as context,
    ):
        seq = context.pool.new_sequence()
        start(context, seq, TEXT[:50])
        assert context.in_flight
        two.process.kill()
        two.process.wait()
        with pytest.raises(DeviceLostError, match="ray:two/CPU: the connection"):
            start(context, seq, TEXT[:50], 1)
        assert not context.in_flight


@pytest.mark.parametrize("stopped", first(1, [0, 1]))
def test_a_stopped_process_fails_a_prompt_in_flight(
    path: Path, monkeypatch: pytest.MonkeyPatch, stopped: int
) -> None:
    """Its system answers for it, and the other worker waits for its tensors."""
    monkeypatch.setattr(pulse, "EVERY_SECONDS", 0.1)
    with start_process("CPU", 1) as one, start_process("CPU", 1, one.secret) as two:
        devices = [one.device("ray:one/CPU"), two.device("ray:two/CPU")]
        check_stopped(path, devices, (one, two)[stopped], devices[stopped])


def check_stopped(
    path: Path, devices: Sequence[RemoteDevice], process: WorkerProcess, device: RemoteDevice
) -> None:
    with opened(path, devices) as context:
        seq = context.pool.new_sequence()
        for _ in range(6):  # makes the plans: from then on, nothing waits for a reply
            start(context, seq, TEXT[:50], 1)
        assert device.control._pulse is not None
        device.control._pulse._channel.set_timeout(0.5)  # the other one may be slow
        stop(process.process.pid)
        with pytest.raises(DeviceLostError, match=f"{device.name}: its process does not answer"):
            start(context, seq, TEXT[:50], 1)
        assert not context.in_flight


DRIVER = """
import sys, time
from lamella.kernels.remote import pulse
from lamella.kernels.remote.process import start_process
process = start_process("CPU", 1)
device = process.device("ray:one/CPU")
device.buffer_type.alloc_buffer(1 << 20)
print(process.process.pid, flush=True)
time.sleep(600)
"""


def test_a_killed_driver_leaves_no_worker() -> None:
    driver = subprocess.Popen([sys.executable, "-c", DRIVER], stdout=subprocess.PIPE)
    assert driver.stdout is not None
    with driver.stdout:
        pid = int(driver.stdout.readline())
    driver.kill()
    driver.wait()
    end = time.monotonic() + 20
    while Path(f"/proc/{pid}/status").exists():  # or a zombie, if nothing adopts it
        if "State:\tZ" in Path(f"/proc/{pid}/status").read_text():
            break
        assert time.monotonic() < end
        time.sleep(0.05)
