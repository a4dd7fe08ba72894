"""The reactor of a worker: one thread that reads many connections, and does short work itself.

    reactor = Reactor()
    reactor.add(channel, handler)

A message thus wakes one thread at most. While work is going on that is likely to be followed by
more, the thread spins for a moment before it sleeps. Knows no devices. Tested by
tests/kernels/test_remote_reactor.py.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections import deque
from contextlib import suppress
from typing import Final, Protocol

from ...base.errors import DeviceLostError
from ...base.log import get_logger
from .spin import Spin
from .wire import Channel, Message

log = get_logger("remote")

JOIN_SECONDS: Final = 5.0


class Handler(Protocol):
    """The user of a connection. The reactor's thread calls it, which must not wait for long."""

    def take(self, message: Message) -> None:
        """A message arrived. An error ends the connection."""

    def go_on(self) -> None:
        """All messages that have arrived were taken."""

    def end(self) -> None:
        """The connection has ended. Called once."""

    @property
    def is_busy(self) -> bool:
        """True if another thread works for it: spinning would delay that."""


class Reactor:
    """A thread that reads connections until `close`."""

    def __init__(self, name: str) -> None:
        self._selector = selectors.DefaultSelector()
        self._new: deque[tuple[Channel, Handler]] = deque()
        self._wakes, self._woken = socket.socketpair()
        self._woken.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._handlers: list[Handler] = []
        self._closed = False
        self._lock = threading.Lock()  # guards the next one, and what comes in
        self._takes = True  # connections; the thread ends with those that came before
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def add(self, channel: Channel, handler: Handler) -> None:
        """Read a connection from now on. After the end of the thread, it ends at once."""
        with self._lock:
            if self._takes:
                self._new.append((channel, handler))
                self._wake()
                return
        channel.close()
        handler.end()

    def close(self) -> None:
        """End all connections, and the thread. May be called again, also by the thread itself."""
        self._closed = True
        self._wake()
        if threading.current_thread() is not self._thread:
            self._thread.join(JOIN_SECONDS)

    def _wake(self) -> None:
        with suppress(OSError):  # the thread has ended
            self._wakes.send(b"\0")

    # --- the thread ---

    def _run(self) -> None:
        spin, last = Spin(), 0.0  # the time of the last message
        while not self._closed:
            found = self._selector.select(0)
            if not found and not (self._may_spin() and spin.goes_on(last)):
                found = self._selector.select()
            for key, _ in found:
                if key.data is None:
                    self._accept()
                else:
                    self._read(*key.data)
                    last = time.perf_counter()
        for key in list(self._selector.get_map().values()):
            if key.data is not None:
                self._end(*key.data)
        with self._lock:
            self._takes = False
        while self._new:  # they came with the close
            channel, handler = self._new.popleft()
            channel.close()
            handler.end()
        self._selector.close()
        self._wakes.close()
        self._woken.close()

    def _may_spin(self) -> bool:
        return not any(handler.is_busy for handler in self._handlers)

    def _accept(self) -> None:
        with suppress(BlockingIOError):
            self._woken.recv(4096)
        while self._new:
            channel, handler = self._new.popleft()
            self._selector.register(channel, selectors.EVENT_READ, (channel, handler))
            self._handlers.append(handler)

    def _read(self, channel: Channel, handler: Handler) -> None:
        try:
            while (message := channel.receive_ready()) is not None:
                handler.take(message)
        except DeviceLostError as e:
            log.debug(f"{e}")
            self._end(channel, handler)
        except Exception as e:  # whatever the other side sent must not end this thread
            log.warning(f"{channel.name}: {type(e).__name__}: {e}: its connection is closed")
            self._end(channel, handler)
        else:
            handler.go_on()

    def _end(self, channel: Channel, handler: Handler) -> None:
        self._selector.unregister(channel)
        self._handlers.remove(handler)
        channel.close()
        handler.end()
