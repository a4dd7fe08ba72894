"""Servers in this process for fuzzers, and what their answers may not be.

One has a tiny model with adapters, tokens for infill and a folder for slots; the others are fake
ones, for vectors and for scores. An answer with status 500, a log record with a traceback, a file
outside the folder of the slots, and no answer are findings.
"""

from __future__ import annotations

import logging
import os
import re
import select
import shutil
import socket
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

from embed_world import make_embedder
from fuzz_target import Outcome
from http_world import listening
from make_adapter import arch_of, named, random_matrices, write_adapter
from open_params import open_params
from scripted import write_scripted_model

from lamella.model.pooling import Pooling
from lamella.runtime.open import open_instance
from lamella.server.config import ServerConfig
from lamella.server.state import ServedModel

ANSWER_SECONDS: Final = 50.0  # as a machine may be busy
SILENCE_SECONDS: Final = 0.1  # then an incomplete request is ended
N_REPLY_MAX: Final = 64 << 20
STATUS: Final = re.compile(rb"HTTP/1\.[01] (\d{3}) ")
FILL: Final = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
HEALTH: Final = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
REFUSALS: Final = (501, 503, 505)  # of the 5xx, those with a meaning for the client


class Tracebacks(logging.Handler):
    """The exceptions that the server logged."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1]:
            self.texts.append(f"{record.getMessage()}: {record.exc_info[1]!r}")


def text_server() -> FuzzedServer:
    """A server of a tiny model that can do all."""
    folder = Path(tempfile.mkdtemp(prefix="lamella-fuzz-"))
    path = write_scripted_model(folder / "tiny.gguf", special=FILL)
    for i in range(2):
        tensors = named(random_matrices(path, 4, seed=i))
        write_adapter(folder / f"{i}.gguf", arch_of(path), tensors)
    lora = [str(folder / f"{i}.gguf") for i in range(2)]
    sizes = {"n_ctx": 1024, "n_ubatch": 64, "n_batch": 256, "n_parallel": 4}
    params = open_params(path, devices=("none",), lora=lora, **sizes)
    (folder / "slots").mkdir()
    # no download, and nothing to remove
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(folder / "hub")}
    config = ServerConfig(port=0, slot_save_path=str(folder / "slots"), props=True, metrics=True)
    return FuzzedServer(lambda: open_instance(params), config, folder)


def vectors_server() -> FuzzedServer:
    """A server of a fake embedding model."""
    return FuzzedServer(make_embedder)


def scores_server() -> FuzzedServer:
    """A server of a fake model that ranks."""
    return FuzzedServer(lambda: make_embedder(pooling=Pooling.RANK))


class FuzzedServer:
    """A running server. `exchange` sends bytes and judges the answers."""

    def __init__(
        self,
        load: Callable[[], ServedModel],
        config: ServerConfig | None = None,
        folder: Path | None = None,
    ) -> None:
        """
        Args:
            load: makes the model.
            folder: of its own; nothing may appear in it.
        """
        self._stack = ExitStack()
        self._port = self._stack.enter_context(listening(load, config or ServerConfig(port=0)))
        self._folder = folder
        self._files = self._listed()
        self._log = Tracebacks()
        logging.getLogger().addHandler(self._log)

    def close(self) -> None:
        logging.getLogger().removeHandler(self._log)
        self._stack.close()
        if self._folder is not None:
            shutil.rmtree(self._folder)

    def _listed(self) -> set[str]:
        return set(os.listdir(self._folder)) if self._folder else set()

    def exchange(self, data: bytes, ends: bool = False) -> Outcome:
        """Send bytes on a connection of their own, and read until the server closes it.

        `ends` tells the server that no more bytes come.
        """
        self._log.texts.clear()
        begin = time.monotonic()
        try:
            reply = self._reply(data, ends)
        except TimeoutError:
            return Outcome("no answer", f"the connection is open after {ANSWER_SECONDS:g} s")
        seconds = time.monotonic() - begin
        statuses = [int(status) for status in STATUS.findall(reply)]
        what = f"status {statuses[0]}" if statuses else "closed"
        wrong = [status for status in statuses if status >= 500 and status not in REFUSALS]
        return Outcome(what, self._finding(wrong), seconds)

    def _finding(self, wrong: list[int]) -> str:
        if wrong:
            return f"status {wrong[0]}"
        if self._log.texts:
            return f"logged {self._log.texts[0]}"[:500]
        if new := self._listed() - self._files:
            return f"wrote {min(new)}"
        try:
            health = self._reply(HEALTH)
        except OSError as e:
            return f"/health after it: {e!r}"
        return "" if health.startswith(b"HTTP/1.1 200 ") else f"/health after it: {health[:80]!r}"

    def _reply(self, data: bytes, ends: bool = False) -> bytes:
        """The bytes that the server sends. With `ends` it is told of the end once it is silent."""
        found, address = bytearray(), ("127.0.0.1", self._port)
        # it may close the connection while it reads
        with socket.create_connection(address, ANSWER_SECONDS) as client, suppress(ConnectionError):
            client.sendall(data)
            while len(found) < N_REPLY_MAX:
                if ends and not select.select([client], [], [], SILENCE_SECONDS)[0]:
                    client.shutdown(socket.SHUT_WR)
                    ends = False
                part = client.recv(1 << 16)
                if not part:
                    break
                found += part
        return bytes(found)
