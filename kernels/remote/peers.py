"""Tensors that arrive from other workers, until a stream takes them.

Each connection from another worker is a link with a number that the driver knows, too.
Tested by tests/kernels/test_remote_peers.py.
"""

from __future__ import annotations

import threading

from ...base.errors import BackendError, DeviceLostError
from .wire import Channel, Kind


class Mailbox:
    """Tensors by their tags. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._arrived: dict[int, bytearray | None] = {}  # None: the sender failed
        self._unwanted: set[int] = set()
        self._lost: dict[int, str] = {}  # links, and why they are lost
        self._closed = ""

    def receive_all(self, channel: Channel) -> None:
        """Take in tensors of another worker until the connection ends, which raises
        DeviceLostError."""
        _, (link, *_), name = channel.receive()
        try:
            while True:
                kind, (tag, *_), data = channel.receive()
                self._put(tag, data if kind == Kind.TENSOR else None)
        finally:
            with self._changed:
                self._lost[link] = f"{name.decode()}, which sends its input, is gone"
                self._changed.notify_all()

    def _put(self, tag: int, data: bytearray | None) -> None:
        with self._changed:
            if tag in self._unwanted:
                self._unwanted.remove(tag)
                return
            self._arrived[tag] = data
            self._changed.notify_all()

    def take(self, tag: int, link: int) -> bytearray:
        """Wait for a tensor.

        Raises:
            BackendError: its sender failed. DeviceLostError: the link is lost.
        """

        def is_over() -> bool:
            return tag in self._arrived or link in self._lost or self._closed != ""

        with self._changed:
            self._changed.wait_for(is_over)
            if tag not in self._arrived:
                raise DeviceLostError(self._lost.get(link, self._closed))
            data = self._arrived.pop(tag)
        if data is None:
            raise BackendError("the device that computes its input failed")
        return data

    def drop(self, tag: int) -> None:
        """Do without a tensor, which may not have arrived yet."""
        with self._changed:
            if tag in self._arrived:
                del self._arrived[tag]
            else:
                self._unwanted.add(tag)

    def close(self, why: str) -> None:
        """End all waits."""
        with self._changed:
            self._closed = why
            self._changed.notify_all()
