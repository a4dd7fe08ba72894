"""A model's process, as its router sees it: start, plan, load, requests, end.

The process serves on a unix socket in a private folder, so nothing but the router reaches it. It
ends with the router, however that ends: see `link.py`. Knows no other model.
Tested by tests/server/test_router_fleet.py and tests/cli/test_serve_models.py.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from asyncio.subprocess import Process
from collections.abc import Callable, Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Final, NamedTuple

import aiohttp

from ...base.errors import UnavailableError
from ...base.log import get_logger
from .link import ERROR, LOAD, LOADED, MEMORY, PLAN, PROGRESS, READY, Message, to_line
from .starter import Starter

log = get_logger("router")

N_REPLY_SECONDS: Final = 2.0  # for a question that takes no work
N_SILENT_SECONDS: Final = 600.0  # of one that plans or loads; then it hangs
N_SETTLE_SECONDS: Final = 0.5
N_CONNECT_SECONDS: Final = 10.0
N_GET_SECONDS: Final = 10.0  # for a short reply
ORIGIN: Final = "http://model"  # of its URLs; the socket decides what they reach


class Verdict(NamedTuple):
    """Says if a plan fits. `lacking` says what it lacks. `is_hopeless`: the weights alone would not
    fit without all other models."""

    fits: bool
    lacking: str
    is_hopeless: bool


class Child:
    """A running process. Belongs to one event loop.

    Attributes:
        session: sends requests to it.
        pid: its id.
    """

    def __init__(self, name: str, process: Process, socket: str) -> None:
        self.name, self.pid = name, process.pid
        self._process, self._socket = process, socket
        self._replies: dict[str, asyncio.Future[Any]] = {}
        self._on_progress: Callable[[float], None] = lambda _: None
        self._error = ""
        self._is_heard = True  # it has said something since the last look
        self._ready = self._expect(READY)
        self.session = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(socket, limit=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=N_CONNECT_SECONDS),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
        )
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(
        cls, name: str, starter: Starter, arguments: Sequence[str], socket: str
    ) -> Child:
        """Start the process. Raises UnavailableError if the system does not."""
        try:
            process = await starter.start(arguments)
        except OSError as error:
            cause = error.strerror or error
            raise UnavailableError(f'the process of "{name}" cannot start: {cause}') from None
        return cls(name, process, socket)

    @property
    def exit_code(self) -> int | None:
        """Its exit status, minus the signal that ended it; None while it runs."""
        return self._process.returncode

    async def ready(self) -> None:
        """Wait until it can plan: it may download its model before. Raises UnavailableError."""
        await self._ready

    async def plan(self, n_bytes_others: int, n_caches: int) -> Verdict:
        """Let it plan. `n_bytes_others`: allocated by other models and not yet written. `n_caches`:
        so many models share the memory of `-cram`.

        Raises:
            UnavailableError: it cannot, or has ended.
        """
        return Verdict(
            **await self._ask(PLAN, {"do": PLAN, "others": n_bytes_others, "caches": n_caches})
        )

    async def load(self, on_progress: Callable[[float], None]) -> None:
        """Let it load as it has planned, until it serves. Raises UnavailableError."""
        self._on_progress = on_progress
        await self._ask(LOADED, {"do": LOAD})

    async def untouched_bytes(self) -> int:
        """The bytes that it has allocated and not yet written; 0 if it does not say."""
        with suppress(UnavailableError, TimeoutError):
            async with asyncio.timeout(N_REPLY_SECONDS):
                return int(await self._ask(MEMORY, {"do": MEMORY}))
        return 0

    async def get(self, path: str) -> Any:
        """The JSON reply to a request that takes no work. Raises UnavailableError."""
        try:
            async with asyncio.timeout(N_GET_SECONDS), self.session.get(ORIGIN + path) as response:
                if response.status != HTTPStatus.OK:
                    raise self.ended_error(f"status {response.status}")
                return json.loads(await response.read())
        except TimeoutError:
            raise self.ended_error(f"no reply within {N_GET_SECONDS:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise self.ended_error(error) from None

    async def wait(self) -> int:
        """Wait until it has ended. Return its exit status."""
        return await self._process.wait()

    async def settled(self) -> None:
        """Wait a little: a connection that broke often means that the process is ending."""
        with suppress(TimeoutError):
            async with asyncio.timeout(N_SETTLE_SECONDS):
                await self._process.wait()

    async def stop(self, n_seconds: float) -> None:
        """End it with SIGTERM, after `n_seconds` by force."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.terminate()
            try:
                async with asyncio.timeout(n_seconds):
                    await self._process.wait()
            except TimeoutError:
                log.warning('the process of "%s" does not end: killed', self.name)
                self._kill()
        await self.close()

    async def end(self) -> int | None:
        """End a process that failed. Return its exit status if it ended by itself."""
        if self._error or self._reading.done():
            with suppress(TimeoutError):
                async with asyncio.timeout(N_REPLY_SECONDS):
                    await self._process.wait()
        status = self.exit_code
        await self.stop(N_REPLY_SECONDS)
        return status

    async def close(self) -> None:
        """Kill it if it still runs, and free what the router has for it."""
        self._kill()
        await self._process.wait()
        self._reading.cancel()
        await self.session.close()
        if self._process.stdin is not None:
            self._process.stdin.close()
        with suppress(OSError):
            os.unlink(self._socket)  # left by a process that was killed

    def ended_error(self, cause: object = "") -> UnavailableError:
        """The error of a request that it does not answer."""
        if self._error:
            return UnavailableError(f'the model "{self.name}" cannot be loaded: {self._error}')
        if self.exit_code is None:
            return UnavailableError(f'the model "{self.name}" does not answer: {cause}')
        return UnavailableError(
            f'the process of the model "{self.name}" {exit_text(self.exit_code)}'
        )

    def _kill(self) -> None:
        """Kill it with its helpers, which are in its session."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    async def _ask(self, reply: str, order: Message) -> Any:
        assert self._process.stdin is not None
        if self._reading.done():
            raise self.ended_error()
        future = self._expect(reply)
        self._process.stdin.write(to_line(order))
        while not (await asyncio.wait({future}, timeout=N_SILENT_SECONDS))[0]:
            if not self._is_heard:
                raise UnavailableError(f'the process of the model "{self.name}" hangs')
            self._is_heard = False
        return future.result()

    def _expect(self, reply: str) -> asyncio.Future[Any]:
        """The next reply of a kind. A failure is no error if nothing waits for it."""
        future = self._replies[reply] = asyncio.get_running_loop().create_future()
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        return future

    async def _read(self) -> None:
        """Take its messages until it ends."""
        assert self._process.stdout is not None
        try:
            async for line in self._process.stdout:
                self._is_heard = True
                for kind, value in json.loads(line).items():
                    self._take(kind, value)
            await self._process.wait()
        finally:
            for future in self._replies.values():
                if not future.done():
                    future.set_exception(self.ended_error("it has closed its end"))

    def _take(self, kind: str, value: Any) -> None:
        if kind == PROGRESS:
            self._on_progress(value)
        elif kind == ERROR:
            self._error = value
        elif (future := self._replies.pop(kind, None)) is not None and not future.done():
            future.set_result(value)


def exit_text(status: int) -> str:
    """How a process ended, as the end of a sentence."""
    if status >= 0:
        return f"has ended with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    cause = ": out of memory?" if -status == signal.SIGKILL else ""
    return f"was ended by {name}{cause}"
