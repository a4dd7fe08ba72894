"""Tensors that arrive from other workers, until a stream takes them.

Each connection from another worker is a link with a number that the driver knows, too.
Tested by tests/kernels/test_remote_peers.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

from ...base.errors import BackendError, DeviceLostError
from .wire import Kind, Message

OnChange = Callable[[], None]


class _Waiting(NamedTuple):
    link: int
    on_change: OnChange


class Mailbox:
    """Tensors by their tags. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._arrived: dict[int, memoryview | None] = {}  # None: the sender failed
        self._unwanted: set[int] = set()
        self._lost: dict[int, str] = {}  # links, and why they are lost
        self._waiting: dict[int, _Waiting] = {}  # by tag

    def put(self, tag: int, data: memoryview | None) -> OnChange | None:
        """Keep a tensor; None: its sender failed. Return the stream that waits for it."""
        with self._lock:
            if tag in self._unwanted:
                self._unwanted.remove(tag)
                return None
            self._arrived[tag] = data
            waiting = self._waiting.pop(tag, None)
        return None if waiting is None else waiting.on_change

    def take(self, tag: int, link: int, on_change: OnChange) -> memoryview | None:
        """A tensor. None if it has not arrived: `on_change` is called when that changes.

        Raises:
            BackendError: its sender failed. DeviceLostError: the link is lost.
        """
        with self._lock:
            if tag in self._arrived:
                data = self._arrived.pop(tag)
                if data is None:
                    raise BackendError("the device that computes its input failed")
                return data
            if link in self._lost:
                raise DeviceLostError(self._lost[link])
            self._waiting[tag] = _Waiting(link, on_change)
        return None

    def drop(self, tag: int) -> None:
        """Do without a tensor, which may not have arrived yet."""
        with self._lock:
            self._waiting.pop(tag, None)
            if tag in self._arrived:
                del self._arrived[tag]
            else:
                self._unwanted.add(tag)

    def lose(self, link: int, why: str) -> None:
        """Nothing more will arrive over a link: all waits for it end."""
        with self._lock:
            self._lost.setdefault(link, why)
            ended = [tag for tag, waiting in self._waiting.items() if waiting.link == link]
            calls = [self._waiting.pop(tag).on_change for tag in ended]
        for on_change in calls:
            on_change()


class PeerLink:
    """The connection from another worker; a handler of the reactor."""

    is_busy = False

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._number = 0
        self._name = ""
        self._calls: list[OnChange] = []

    def take(self, message: Message) -> None:
        kind, (number, *_), data = message
        if not self._name:
            if kind != Kind.LINK:
                raise ValueError(f"the first message has kind {kind}, must be {Kind.LINK}")
            self._number, self._name = number, bytes(data).decode() or "?"
            return
        call = self._mailbox.put(number, data if kind == Kind.TENSOR else None)
        if call is not None:
            self._calls.append(call)

    def go_on(self) -> None:
        calls, self._calls = self._calls, []
        for call in calls:
            call()

    def end(self) -> None:
        self.go_on()
        self._mailbox.lose(self._number, f"{self._name}, which sends its input, is gone")
