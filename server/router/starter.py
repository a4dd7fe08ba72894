"""Starts the processes of models. One is started ahead, if it may be needed soon.

A process reads its arguments from the first line of its stdin, so one that was started ahead can
become any model's. It ends with the router, which holds the other end of its stdin.
Tested by tests/server/test_router_fleet.py and tests/cli/test_serve_models.py.
"""

from __future__ import annotations

import asyncio
import json
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from contextlib import suppress


class Starter:
    """Starts processes of a program. Belongs to one event loop."""

    def __init__(self, program: Sequence[str]) -> None:
        self._program = program
        self._spare: asyncio.Task[Process] | None = None

    def prepare(self) -> None:
        """Start a process ahead, if there is none."""
        if self._spare is None:
            self._spare = asyncio.create_task(self._spawn())

    async def start(self, arguments: Sequence[str]) -> Process:
        """A process with these arguments. Raises OSError if the system starts none."""
        process = await self._take()
        assert process.stdin is not None
        process.stdin.write(json.dumps(list(arguments)).encode() + b"\n")
        return process

    async def close(self) -> None:
        """End the process that was started ahead."""
        spare, self._spare = self._spare, None
        if spare is not None:
            with suppress(OSError):
                process = await spare
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()

    async def _take(self) -> Process:
        """The process that was started ahead, or a new one."""
        spare, self._spare = self._spare, None
        if spare is not None:
            with suppress(OSError):
                process = await spare
                if process.returncode is None:
                    return process
        return await self._spawn()

    async def _spawn(self) -> Process:
        # a session of its own: Ctrl-C in the terminal is for the router, which ends it in order
        return await asyncio.create_subprocess_exec(
            *self._program, stdin=PIPE, stdout=PIPE, start_new_session=True
        )
