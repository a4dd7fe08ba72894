"""What the faults of `scripts/chaos` share: a model, checks of a server, and waiting.

Knows no fault. Tested by tests/server/test_chaos.py.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from chaos_server import Server, started
from raw_http import HOME, Answer, ask, connect, message

PROGRAM: Final = Path(__file__).with_name("chaos_program.py")
WAIT_SECONDS: Final = 60.0
ENDLESS: Final = {"prompt": "a", "stream": True, "ignore_eos": True, "n_predict": 100_000}
GREEDY: Final = {"prompt": "Once upon a time", "n_predict": 16, "temperature": 0}


class World(NamedTuple):
    """What faults need: a model, a folder for files, and the text that the model makes."""

    model: str
    folder: Path
    text: str

    def check(self, server: Server) -> None:
        """Assert that the server is well: healthy, and with the same text as always."""
        assert health_of(server) == 200, f"/health is {health_of(server)}"
        assert text_of(server) == self.text, "the text has changed"

    @property
    def flags(self) -> list[str]:
        return ["-m", self.model, "-np", "2", "-c", "2048"]


class Fault(NamedTuple):
    effect: str
    cause: Callable[[World], None]
    is_short: bool = False


def health_of(server: Server) -> int:
    return ask(server.port, message("GET", "/health")).status


def text_of(server: Server) -> str:
    found = complete(server)
    assert found.status == 200, found
    return str(found.json["content"])


def complete(
    server: Server,
    headers: dict[str, str] | None = None,
    *,
    body: object = GREEDY,
    source: str = HOME,
) -> Answer:
    return ask(server.port, message("POST", "/completion", body, headers), source=source)


def stream(
    server: Server, headers: dict[str, str] | None = None, source: str = HOME
) -> socket.socket:
    """A connection on which a text streams that does not end."""
    client = connect(server.port, source=source)
    client.sendall(message("POST", "/completion", ENDLESS, headers))
    assert client.recv(1000)[9:12] == b"200"
    return client


def wait_for(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, f"after {WAIT_SECONDS:.0f} s: not {what}"
        time.sleep(0.05)


def ended(server: Server, what: str = "") -> int:
    """Wait until the server has ended. Return its exit status."""
    wait_for(lambda: server.status is not None, f"ended{what}; its log: {server.log[-500:]!r}")
    assert server.status is not None
    return server.status


@contextmanager
def faulty(
    world: World, flags: Sequence[str] = ()
) -> Iterator[tuple[Server, Callable[[str], object]]]:
    """A server, and a function that sets its fault: see chaos_program.py."""
    file = world.folder / "fault"
    file.write_text("")
    command = [sys.executable, str(PROGRAM), str(file), "serve"]
    with started([*world.flags, *flags], command=command) as server:
        yield server, file.write_text
