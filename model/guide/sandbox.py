"""Translates and compiles grammars that are not trusted in a helper process first.

llguidance limits its fuel, not its stack, and not all of its time and memory: `$ref`s with siblings
double a schema at each level, a conjunction of 20 patterns takes minutes, a chain of a thousand
rules overflows the usual stack. So a helper process (`sandbox_process`) does the work once within
limits, and only a grammar that it survives is compiled here, with the same limits and stack.
Tested by tests/model/test_guide_sandbox.py.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from ...base.errors import ClosedError, GrammarError, LamellaError
from ...base.process_limits import took_long
from .limits import SANDBOX_BYTES, SANDBOX_WALL_SECONDS, check_source, sandbox_seconds
from .spec import GrammarSpec, Lark, Loosened

if TYPE_CHECKING:
    from ..vocab import Vocab

CLOSED: Final = "the model is closed"
_COMMAND: Final = [sys.executable, "-m", f"{__package__}.sandbox_process"]


class SlowGrammarError(GrammarError):
    """A grammar needs more time than a first try has."""


class Sandbox:
    """A helper process, which starts on first use. Several threads may use it, one after another.

    `translate` is like `to_lark`, and a `Compiler` takes it instead.
    """

    def __init__(self, vocab: Vocab) -> None:
        special = {id: vocab.piece(id, special=True) for id in vocab.control_ids | vocab.eog}
        self._hello = {
            "n_tokens": vocab.n_tokens,
            "special": [[id, text.decode("latin-1")] for id, text in sorted(special.items())],
            "ends": sorted(vocab.eog),
            "named": dict(vocab.special_ids),
        }
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ready = False  # the helper has begun to read
        self._closed = False

    def translate(self, spec: GrammarSpec, seconds: float | None = None) -> Lark:
        """Translate a grammar, and make sure that compiling the result does no harm.

        `seconds` of computing time are allowed; None for as many as its kind may take.

        Raises:
            SlowGrammarError: it takes more than `seconds`, which are fewer than allowed.
            GrammarError: it is invalid, too large, too complex or cannot be enforced.
            ClosedError: the sandbox was closed.
            LamellaError: the helper process does not start.
        """
        check_source(spec)
        allowed = sandbox_seconds(spec.kind)
        seconds = allowed if seconds is None else seconds
        with self._lock:
            if self._closed:
                raise ClosedError(CLOSED)
            question = {"kind": spec.kind, "source": spec.source, "strict": spec.strict}
            reply = self._ask(question | {"seconds": seconds})
        if "died" in reply:
            if seconds < allowed and took_long(reply["died"]):
                raise SlowGrammarError(f"{spec.kind}: takes more than {seconds} s")
            raise GrammarError(f"{spec.kind}: {_why(reply['died'], allowed)}")
        if "error" in reply:
            raise GrammarError(reply["error"])
        return Lark(reply["text"], tuple(Loosened(*each) for each in reply["loosened"]))

    def close(self) -> None:
        """End the helper. A second call does nothing."""
        self._closed = True
        self._end()  # also what another thread waits for

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """The helper's reply; `died` has the exit status if the question was too hard."""
        process = self._process or self._start()
        timer = threading.Timer(2 * SANDBOX_WALL_SECONDS, _kill, [process])
        timer.start()
        try:
            reply = self._exchange(process, question)
        finally:
            timer.cancel()
        if not reply.endswith(b"\n"):
            self._end()
            return {"died": 0}
        result: dict[str, Any] = json.loads(reply)
        return result

    def _exchange(self, process: subprocess.Popen[bytes], question: dict[str, Any]) -> bytes:
        assert process.stdout is not None
        if not self._is_ready:
            with suppress(OSError):  # it dies while it reads
                _send(process, self._hello)
            if not process.stdout.readline():
                self._end()
                raise LamellaError(f"the helper that compiles grammars does not start: {_COMMAND}")
        self._is_ready = True
        with suppress(OSError):
            _send(process, question)
        return process.stdout.readline()

    def _start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            _COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # where clients could fill a log
            start_new_session=True,  # with its forks: Ctrl-C ends this process, and this ends them
        )
        self._process, self._is_ready = process, False
        if self._closed:  # since it was asked
            self._end()
            raise ClosedError(CLOSED)
        return process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        _kill(process)
        process.wait()
        for pipe in process.stdin, process.stdout:
            if pipe is not None:
                with suppress(OSError):  # the rest of a question
                    pipe.close()


def _send(process: subprocess.Popen[bytes], message: dict[str, Any]) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(message).encode() + b"\n")
    process.stdin.flush()


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a helper and its forks."""
    if sys.platform == "win32":
        process.kill()
    else:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _why(status: int, seconds: float) -> str:
    """Why a grammar ended its process, and what to do."""
    if sys.platform != "win32" and status == -signal.SIGSEGV:
        return "too deeply nested: use fewer rules, groups or references inside each other"
    limit = f"{seconds:g} s of computing time"
    if sys.platform != "win32" and not took_long(status):
        limit = f"{SANDBOX_BYTES >> 20} MiB of memory"
    return (
        f"too complex: compiling it takes more than {limit}; make it smaller, with fewer "
        "alternatives, optional parts and repetitions"
    )
