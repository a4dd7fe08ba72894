"""Compiles the grammars of waiting jobs, one after the other, on a thread of its own.

A large grammar takes half a second, in which other jobs go on. Tested by
tests/runtime/test_engine_grammar.py.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

from ...model.guide import Matcher
from .ticket import Ticket


class GrammarQueue:
    """The grammar that is compiled now. Used by the engine's thread only."""

    def __init__(self) -> None:
        self._compiler = ThreadPoolExecutor(1, "lamella-grammar")
        self._last: tuple[Matcher, Future[bool]] | None = None

    def awaited(self, ticket: Ticket) -> Future[bool] | None:
        """The grammar of a job that is not compiled yet, or the one before it; None if there is
        nothing to wait for."""
        matcher = ticket.matcher if ticket.lazy is None else ticket.lazy.matcher
        if matcher is None or matcher.is_compiled():
            return None
        last = self._last
        if last is None or (last[0] is not matcher and last[1].done()):
            last = self._last = matcher, self._compiler.submit(matcher.prepare)
        return None if last[0] is matcher and last[1].done() else last[1]

    def close(self) -> None:
        """Start no more. Does not wait."""
        self._compiler.shutdown(wait=False)
