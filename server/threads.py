"""Work in threads that leaves cores to others: in turns of clients, with rests.

A thread in Python competes with the event loop and the engine for the interpreter's lock, and with
kernels for cores. Knows no request. Tested by tests/server/test_threads.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, TypeVar

from ..base.errors import LamellaError
from .turns import Turns

Result = TypeVar("Result")

# seconds of rest for each second of work: it takes a fifth or a tenth of a core
N_REST: Final = 4.0
N_REST_LONG: Final = 9.0


async def in_turn(
    turns: Turns, client: str, work: Callable[[], Result], *, rest: Callable[[], float]
) -> Result:
    """Return `work()`, called in a thread in a turn of the client.

    After the work, the turn ends `rest()` seconds later for each second of work. If the caller is
    cancelled, the thread works on, and so does the turn.
    """
    await turns.begin(client)
    in_thread = asyncio.ensure_future(asyncio.to_thread(_timed, work))

    def end_turn(done: asyncio.Future[tuple[Result | Exception, float]]) -> None:
        n_seconds = 0.0 if done.cancelled() else done.result()[1]
        turns.end(client, rest() * n_seconds)

    in_thread.add_done_callback(end_turn)
    result, _ = await asyncio.shield(in_thread)
    try:
        if isinstance(result, Exception):
            raise result
        return result
    finally:
        del result, in_thread  # the error's traceback has this frame


def _timed(work: Callable[[], Result]) -> tuple[Result | Exception, float]:
    """The result of `work()`, or its error, and the processor time in seconds."""
    begin = time.thread_time()
    try:
        return work(), time.thread_time() - begin
    except LamellaError as error:
        # frames below have what the work had, and refer to each other: a large body would stay
        # until the garbage collector finds it
        error.__traceback__ = error.__context__ = None
        return error, time.thread_time() - begin
    except Exception as error:
        return error, time.thread_time() - begin
