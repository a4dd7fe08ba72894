"""Compiles the grammars of requests, before a request is submitted.

An invalid grammar is an error before the first token, and nothing is queued. Clients are not
trusted: one grammar compiles at a time, in a sandbox, and clients take turns.
Tested by tests/server/test_grammar_queue.py and test_http_hostile.py.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from itertools import count
from queue import PriorityQueue
from typing import Final
from weakref import WeakValueDictionary

from ..base.errors import ClientLimitError, ClosedError, OverloadedError
from ..base.log import get_logger
from ..model.guide import CompiledGrammar, GrammarSpec, Loosened
from ..model.guide.limits import QUICK_SECONDS, sandbox_seconds
from ..model.guide.sandbox import Sandbox, SlowGrammarError
from ..runtime.instance import Instance

N_WAITING_MAX: Final = 64  # grammars; each takes a few ms, a second at most
N_CLIENT_WAITING_MAX: Final = 32  # those of one client

log = get_logger("server")
_LOGGED: set[tuple[str, str]] = set()  # keywords and paths already logged
_N_LOGGED_MAX: Final = 100
_N_LOGGED_CHARS: Final = 200  # of a keyword and a path, which are a client's


# the seconds that a grammar may take, its turn, its number, itself (None: end), its result
_Work = tuple[float, int, int, GrammarSpec | None, "Future[CompiledGrammar]"]


class GrammarQueue:
    """Compiles the grammars of a model, one after another. Belongs to the event loop.

    Each has a first, short try. Those that need longer wait until no other is left for its first.
    In both lines, the second grammar of a client comes after the first ones of the others.
    """

    def __init__(self, model: Instance) -> None:
        self._sandbox = Sandbox(model.vocab)
        self._compiler = model.engine.compiler
        self._compiler.translate = self._sandbox.translate
        self._queue: PriorityQueue[_Work] = PriorityQueue()
        self._numbers = count()
        self._turn = 0  # of the last try that began
        self._turns: dict[str, int] = {}  # the last one of each client
        self._n_waiting: Counter[str] = Counter()  # by client
        self._same: WeakValueDictionary[GrammarSpec, asyncio.Lock] = WeakValueDictionary()
        self._closed = False
        threading.Thread(target=self._work, name="lamella-grammars", daemon=True).start()

    async def compile(self, spec: GrammarSpec, client: str = "") -> None:
        """Compile a grammar of a client, and log what is not enforced, once.

        The engine finds the compiled grammar in the compiler's cache. If the caller is cancelled
        while it waits for its turn, nothing is compiled.

        Raises:
            GrammarError: it is invalid or too large, or has a keyword that cannot be enforced.
            ClientLimitError: too many grammars of the client are waiting.
            OverloadedError: too many grammars are waiting.
        """
        compiled = self._compiler.cached(spec)
        if compiled is None:
            # requests with the same grammar, such as those of one agent, wait for the first one
            async with self._same.setdefault(spec, asyncio.Lock()):
                compiled = self._compiler.cached(spec) or await self._compiled(spec, client)
        _log(compiled.loosened)

    def close(self) -> None:
        """End the helper process. Waiting requests fail with ClosedError."""
        self._closed = True
        self._sandbox.close()
        self._put(math.inf, None)

    async def _compiled(self, spec: GrammarSpec, client: str) -> CompiledGrammar:
        if self._n_waiting.total() >= N_WAITING_MAX:
            raise OverloadedError(f"{N_WAITING_MAX} grammars are already waiting")
        if self._n_waiting[client] >= N_CLIENT_WAITING_MAX:
            raise ClientLimitError(
                f"{N_CLIENT_WAITING_MAX} grammars of this client are already waiting"
            )
        self._n_waiting[client] += 1
        try:
            return await self._tried(spec, QUICK_SECONDS, client)
        except SlowGrammarError:
            return await self._tried(spec, sandbox_seconds(spec.kind), client)
        finally:
            self._n_waiting[client] -= 1
            self._n_waiting += Counter()  # keeps no client that waits no more

    def _tried(
        self, spec: GrammarSpec, seconds: float, client: str
    ) -> asyncio.Future[CompiledGrammar]:
        if self._closed:
            raise ClosedError("the model is closed")
        now = self._turn
        turn = max(self._turns.get(client, now - 1) + 1, now)
        self._turns = {name: last for name, last in self._turns.items() if last >= now}
        self._turns[client] = turn
        return asyncio.wrap_future(self._put(seconds, spec, turn))

    def _put(
        self, seconds: float, spec: GrammarSpec | None, turn: int = 0
    ) -> Future[CompiledGrammar]:
        future: Future[CompiledGrammar] = Future()
        self._queue.put((seconds, turn, next(self._numbers), spec, future))
        return future

    def _work(self) -> None:
        while True:
            seconds, turn, _, spec, future = self._queue.get()
            if spec is None:
                return
            self._turn = max(self._turn, turn)
            if not future.set_running_or_notify_cancel():
                continue
            try:
                translate = partial(self._sandbox.translate, seconds=seconds)
                future.set_result(self._compiler.compile(spec, translate))
            except BaseException as error:
                future.set_exception(error)


def _log(loosened: Sequence[Loosened]) -> None:
    n = _N_LOGGED_CHARS
    found = {(each.keyword[:n], each.path[:n]) for each in loosened}
    new = sorted(found - _LOGGED)[: max(_N_LOGGED_MAX - len(_LOGGED), 0)]
    if new:
        _LOGGED.update(new)
        named = ", ".join(f"{keyword!r} at {path}" for keyword, path in new)
        log.warning("a JSON schema is not enforced in full: %.400s", named)
