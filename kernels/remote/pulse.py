"""The pulse of a worker: a process that does not answer is lost, even if its connections are open.

The system of a machine answers for a process that is stopped or hangs. So each worker answers short
messages on a connection of their own. Knows no devices. Tested by
tests/kernels/test_remote_pulse.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from ...base.background import begin
from ...base.errors import DeviceLostError
from .wire import Channel, Kind

EVERY_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 10.0  # most time for an answer

OnLoss = Callable[[DeviceLostError], None]


class Pulse:
    """Asks a worker again and again if it is there, on a thread of its own, until `stop`."""

    def __init__(self, channel: Channel, on_loss: OnLoss) -> None:
        self._channel = channel
        self._on_loss = on_loss
        self._stopped = threading.Event()
        channel.set_timeout(ANSWER_SECONDS)
        begin(self._run, "lamella-pulse")

    def stop(self) -> None:
        """May be called again, also by the thread itself."""
        self._stopped.set()
        self._channel.close()

    def _run(self) -> None:
        while not self._stopped.wait(EVERY_SECONDS):
            try:
                self._channel.send(Kind.ECHO)
                self._channel.receive()
            except DeviceLostError as e:
                if not self._stopped.is_set():
                    self._on_loss(e)
                return


def answer(channel: Channel) -> None:
    """The worker's side: answer until the connection ends, which raises DeviceLostError."""
    while True:
        channel.receive()
        channel.send(Kind.RESULT)
