"""The pulse of a worker: a process that hangs is lost, and its links are cut."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest
from remote_workers import stop

from lamella.base.errors import DeviceLostError
from lamella.kernels.remote import pulse
from lamella.kernels.remote.process import WorkerProcess, start_process
from lamella.kernels.remote.pulse import Pulse, answer
from lamella.kernels.remote.wire import Channel, Role

SOON = 20.0


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse, "EVERY_SECONDS", 0.05)
    monkeypatch.setattr(pulse, "ANSWER_SECONDS", 0.5)


def channels() -> tuple[Channel, Channel]:
    mine, theirs = socket.socketpair()
    return Channel(mine, "ray:a/CPU", Role.PULSE), Channel(theirs, "driver", Role.PULSE)


def answering(channel: Channel) -> None:
    with pytest.raises(DeviceLostError):
        answer(channel)


def test_a_worker_that_answers_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse, "ANSWER_SECONDS", SOON)
    mine, theirs = channels()
    thread = threading.Thread(target=answering, args=(theirs,))
    thread.start()
    lost: list[DeviceLostError] = []
    watched = Pulse(mine, lost.append)
    time.sleep(0.3)
    watched.stop()
    watched.stop()
    thread.join(SOON)
    assert not thread.is_alive()
    assert lost == []
    theirs.close()


def test_a_worker_that_does_not_answer_is_lost() -> None:
    mine, theirs = channels()
    lost: list[DeviceLostError] = []
    told = threading.Event()

    def on_loss(error: DeviceLostError) -> None:
        lost.append(error)
        told.set()

    watched = Pulse(mine, on_loss)
    assert told.wait(SOON)
    assert str(lost[0]) == "ray:a/CPU: its process does not answer"
    watched.stop()
    theirs.close()


@pytest.fixture
def process() -> Iterator[WorkerProcess]:
    with start_process("CPU", 1) as process:
        yield process
        process.process.kill()


def test_a_stopped_process_is_lost_and_ends_all_waits(process: WorkerProcess) -> None:
    device = process.device("ray:a/CPU")
    stop(process.process.pid)
    with pytest.raises(DeviceLostError, match="ray:a/CPU: its process does not answer"):
        device.memory()
    assert "does not answer" in device.lost
    with pytest.raises(DeviceLostError, match="does not answer"):
        device.init_backend()
