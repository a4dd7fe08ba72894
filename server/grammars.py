"""Compiles the grammars of requests, before a request is submitted.

An invalid grammar is an error before the first token, and nothing is queued. Clients are not
trusted: one grammar compiles at a time, in a sandbox, and other requests go first.
Tested by tests/server/test_http_structured.py and test_http_hostile.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from ..base.errors import OverloadedError
from ..base.log import get_logger
from ..model.guide import GrammarSpec, Loosened
from ..model.guide.sandbox import Sandbox
from ..runtime.instance import Instance

N_WAITING_MAX: Final = 32  # grammars; each takes a few ms, a second at most

log = get_logger("server")
_LOGGED: set[tuple[str, str]] = set()  # keywords and paths already logged
_N_LOGGED_MAX: Final = 100


class GrammarQueue:
    """Compiles the grammars of a model, one after another. Belongs to the event loop."""

    def __init__(self, model: Instance) -> None:
        self._sandbox = Sandbox(model.vocab)
        self._compiler = model.engine.compiler
        self._compiler.translate = self._sandbox.translate
        self._thread = ThreadPoolExecutor(1, "lamella-grammars")
        self._n_waiting = 0

    async def compile(self, spec: GrammarSpec) -> None:
        """Compile a grammar, and log what is not enforced, once.

        The engine finds the compiled grammar in the compiler's cache. If the caller is cancelled
        while it waits for its turn, nothing is compiled.

        Raises:
            GrammarError: it is invalid or too large, or has a keyword that cannot be enforced.
            OverloadedError: too many grammars are waiting.
        """
        compiled = self._compiler.cached(spec)
        if compiled is None:
            if self._n_waiting == N_WAITING_MAX:
                raise OverloadedError(f"{N_WAITING_MAX} grammars are already waiting")
            self._n_waiting += 1
            try:
                work = self._thread.submit(self._compiler.compile, spec)
                compiled = await asyncio.wrap_future(work)
            finally:
                self._n_waiting -= 1
        _log(compiled.loosened)

    def close(self) -> None:
        """End the helper process. Waiting requests fail with ClosedError."""
        self._sandbox.close()
        self._thread.shutdown(wait=False)


def _log(loosened: Sequence[Loosened]) -> None:
    new = {(each.keyword, each.path) for each in loosened} - _LOGGED
    if new and len(_LOGGED) < _N_LOGGED_MAX:
        _LOGGED.update(new)
        named = ", ".join(f"{keyword!r} at {path}" for keyword, path in sorted(new))
        log.warning("a JSON schema is not enforced in full: %.400s", named)
