"""Compiles the grammars of requests, before a request is submitted.

An invalid grammar is an error before the first token, and nothing is queued. Knows no request.
Tested by tests/server/test_http_structured.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from ..base.log import get_logger
from ..model.guide import Compiler, GrammarSpec, Loosened

log = get_logger("server")
_LOGGED: set[tuple[str, str]] = set()  # keywords and paths already logged
_N_LOGGED_MAX: Final = 100


async def compile_grammar(compiler: Compiler, spec: GrammarSpec) -> Sequence[Loosened]:
    """Compile a grammar in a thread. Return what is not enforced, and log it once.

    The engine finds the compiled grammar in the compiler's cache.

    Raises:
        GrammarError: it is invalid or too large, or has a keyword that cannot be enforced.
    """
    compiled = await asyncio.to_thread(compiler.compile, spec)
    _log(compiled.loosened)
    return compiled.loosened


def _log(loosened: Sequence[Loosened]) -> None:
    new = {(each.keyword, each.path) for each in loosened} - _LOGGED
    if new and len(_LOGGED) < _N_LOGGED_MAX:
        _LOGGED.update(new)
        named = ", ".join(f"{keyword!r} at {path}" for keyword, path in sorted(new))
        log.warning("a JSON schema is not enforced in full: %.400s", named)
