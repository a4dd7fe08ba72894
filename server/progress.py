"""What a loading model does now. Imports no HTTP, so that loading can begin before it is imported.

Tested by tests/server/test_page.py and tests/cli/test_start.py.
"""

from __future__ import annotations

from threading import Event


class LoadProgress:
    """What a loading model does now, as a text. Any thread may set or read it.

    Attributes:
        reading: set once the weights are being read.
    """

    def __init__(self) -> None:
        self.text = ""
        self.reading = Event()

    def on_load(self, done: int, total: int) -> None:
        """Report that `done` of `total` bytes of weights are loaded."""
        self.reading.set()
        self.text = f"loading weights, {100 * done // max(total, 1)}%"

    def on_compile(self, done: int, total: int, name: str, seconds: float) -> None:
        """Report that `done` of `total` kernels are compiled."""
        self.text = f"preparing: compiling kernels, {done} of {total}"
