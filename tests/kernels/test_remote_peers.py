"""The mailbox of a worker: tensors of other workers, in any order, failed and lost ones."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from lamella.base.errors import BackendError, DeviceLostError
from lamella.kernels.remote.peers import Mailbox
from lamella.kernels.remote.wire import Channel, Kind, Role

SOON = 20.0


class Sender:
    """Another worker with a link to the mailbox."""

    def __init__(self, mailbox: Mailbox, link: int) -> None:
        mine, theirs = socket.socketpair()
        self.channel = Channel(mine, "receiver", Role.PEER)
        self._received = Channel(theirs, "sender", Role.PEER)
        self.channel.send(Kind.LINK, link, data=b"ray:a/CPU")
        self._thread = threading.Thread(target=self._receive, args=(mailbox,))
        self._thread.start()

    def _receive(self, mailbox: Mailbox) -> None:
        with pytest.raises(DeviceLostError):
            mailbox.receive_all(self._received)

    def close(self) -> None:
        self.channel.close()
        self._thread.join(SOON)
        self._received.close()


@pytest.fixture
def mailbox() -> Mailbox:
    return Mailbox()


@pytest.fixture
def sender(mailbox: Mailbox) -> Iterator[Sender]:
    sender = Sender(mailbox, 7)
    yield sender
    sender.close()


def test_tensors_are_taken_by_their_tags(mailbox: Mailbox, sender: Sender) -> None:
    for tag in (3, 1, 2):
        sender.channel.send(Kind.TENSOR, tag, data=bytes([tag] * 4))
    assert [mailbox.take(tag, 7) for tag in (1, 2, 3)] == [bytes([tag] * 4) for tag in (1, 2, 3)]


def test_take_waits(mailbox: Mailbox, sender: Sender) -> None:
    timer = threading.Timer(0.05, lambda: sender.channel.send(Kind.TENSOR, 5, data=b"late"))
    timer.start()
    assert mailbox.take(5, 7) == b"late"
    timer.join()


def test_a_failed_sender_is_an_error(mailbox: Mailbox, sender: Sender) -> None:
    sender.channel.send(Kind.FAILED, 4)
    with pytest.raises(BackendError, match="that computes its input failed"):
        mailbox.take(4, 7)


def test_dropped_tensors_leave_nothing_behind(mailbox: Mailbox, sender: Sender) -> None:
    mailbox.drop(1)  # before it arrives
    sender.channel.send(Kind.TENSOR, 1, data=b"one")
    sender.channel.send(Kind.TENSOR, 2, data=b"two")
    sender.channel.send(Kind.TENSOR, 3, data=b"three")
    assert mailbox.take(3, 7) == b"three"
    mailbox.drop(2)  # after that
    assert not mailbox._arrived
    assert not mailbox._unwanted


def test_a_lost_link_ends_its_waits_only(mailbox: Mailbox, sender: Sender) -> None:
    other = Sender(mailbox, 8)
    other.channel.send(Kind.TENSOR, 1, data=b"arrived before")
    other.close()
    assert mailbox.take(1, 8) == b"arrived before"
    with pytest.raises(DeviceLostError, match="ray:a/CPU, which sends its input, is gone"):
        mailbox.take(2, 8)
    sender.channel.send(Kind.TENSOR, 3, data=b"x")
    assert mailbox.take(3, 7) == b"x"


def test_a_closed_mailbox_ends_all_waits(mailbox: Mailbox) -> None:
    timer = threading.Timer(0.05, lambda: mailbox.close("the driver is gone"))
    timer.start()
    with pytest.raises(DeviceLostError, match="the driver is gone"):
        mailbox.take(1, 1)
    timer.join()
