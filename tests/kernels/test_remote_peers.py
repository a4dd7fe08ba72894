"""The mailbox of a worker: tensors of other workers, in any order, failed and lost ones."""

from __future__ import annotations

import pytest

from lamella.base.errors import BackendError, DeviceLostError
from lamella.kernels.remote.peers import Mailbox, PeerLink
from lamella.kernels.remote.wire import Kind, Message


class Sender:
    """Another worker with a link to the mailbox."""

    def __init__(self, mailbox: Mailbox, number: int) -> None:
        self.link = PeerLink(mailbox)
        self.send(Kind.LINK, number, b"ray:a/CPU")

    def send(self, kind: Kind, number: int, data: bytes = b"") -> None:
        self.link.take(Message(kind, (number, 0, 0, 0, 0), memoryview(data)))
        self.link.go_on()


def taken(mailbox: Mailbox, tag: int, link: int, waiter: Waiter) -> bytes | None:
    data = mailbox.take(tag, link, waiter)
    return None if data is None else bytes(data)


class Waiter:
    """Counts its calls."""

    def __init__(self) -> None:
        self.n = 0

    def __call__(self) -> None:
        self.n += 1


@pytest.fixture
def mailbox() -> Mailbox:
    return Mailbox()


@pytest.fixture
def sender(mailbox: Mailbox) -> Sender:
    return Sender(mailbox, 7)


@pytest.fixture
def waiter() -> Waiter:
    return Waiter()


def test_tensors_are_taken_by_their_tags(mailbox: Mailbox, sender: Sender, waiter: Waiter) -> None:
    for tag in (3, 1, 2):
        sender.send(Kind.TENSOR, tag, bytes([tag] * 4))
    found = [taken(mailbox, tag, 7, waiter) for tag in (1, 2, 3)]
    assert found == [bytes([tag] * 4) for tag in (1, 2, 3)]
    assert waiter.n == 0


def test_a_waiting_stream_is_called_once(mailbox: Mailbox, sender: Sender, waiter: Waiter) -> None:
    assert taken(mailbox, 5, 7, waiter) is None
    sender.send(Kind.TENSOR, 6, b"other")
    assert waiter.n == 0
    sender.send(Kind.TENSOR, 5, b"late")
    assert waiter.n == 1
    assert taken(mailbox, 5, 7, waiter) == b"late"
    assert taken(mailbox, 5, 7, waiter) is None  # it is gone


def test_a_failed_sender_is_an_error(mailbox: Mailbox, sender: Sender, waiter: Waiter) -> None:
    sender.send(Kind.FAILED, 4)
    with pytest.raises(BackendError, match="that computes its input failed"):
        taken(mailbox, 4, 7, waiter)


def test_dropped_tensors_leave_nothing_behind(
    mailbox: Mailbox, sender: Sender, waiter: Waiter
) -> None:
    mailbox.drop(1)  # before it arrives
    sender.send(Kind.TENSOR, 1, b"one")
    sender.send(Kind.TENSOR, 2, b"two")
    mailbox.drop(2)  # after that
    assert taken(mailbox, 3, 7, waiter) is None
    mailbox.drop(3)
    sender.send(Kind.TENSOR, 3, b"three")
    assert waiter.n == 0
    assert not mailbox._arrived
    assert not mailbox._unwanted
    assert not mailbox._waiting


def test_a_lost_link_ends_its_waits_only(mailbox: Mailbox, sender: Sender, waiter: Waiter) -> None:
    other, others = Sender(mailbox, 8), Waiter()
    other.send(Kind.TENSOR, 1, b"arrived before")
    assert taken(mailbox, 2, 8, others) is None
    assert taken(mailbox, 3, 7, waiter) is None
    other.link.end()
    assert (others.n, waiter.n) == (1, 0)
    assert taken(mailbox, 1, 8, others) == b"arrived before"
    with pytest.raises(DeviceLostError, match="ray:a/CPU, which sends its input, is gone"):
        taken(mailbox, 2, 8, others)
    sender.send(Kind.TENSOR, 3, b"x")
    assert taken(mailbox, 3, 7, waiter) == b"x"


def test_a_link_begins_with_its_number(mailbox: Mailbox) -> None:
    link = PeerLink(mailbox)
    with pytest.raises(ValueError, match="the first message has kind"):
        link.take(Message(Kind.TENSOR, (1, 0, 0, 0, 0), memoryview(b"x")))
