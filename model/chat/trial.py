"""Compiles long chat templates in a process that may die, before they are compiled here.

Python and Jinja need seconds and gigabytes for a megabyte of `{{a}}`, and nothing can stop them.
Real templates are shorter than LENGTH_TRUSTED, and compile at once. Knows no messages.
Tests: tests/model/test_chat_trial.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, Final

from ...base.errors import RequestError
from ...base.process_limits import limit_this_process, took_long

LENGTH_TRUSTED: Final = 24 << 10  # characters; the worst of them take 0.4 s and 50 MiB
CPU_SECONDS: Final = 2.0
WALL_SECONDS: Final = 60.0  # as a machine may be busy
N_BYTES: Final = 256 << 20
_COMMAND: Final = [sys.executable, "-m", __name__]


def check_compiles(source: str) -> None:
    """Compile a template in another process, within limits.

    Raises:
        RequestError: it is invalid, or takes too much time or memory.
    """
    limits = {"cpu_seconds": CPU_SECONDS, "wall_seconds": WALL_SECONDS, "n_bytes": N_BYTES}
    question = json.dumps({"source": source, "limits": limits}).encode()
    try:
        # errors of the process say nothing that its status does not
        done = subprocess.run(
            _COMMAND, input=question, capture_output=True, timeout=2 * WALL_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise _too_complex(source, f"{WALL_SECONDS:g} s") from None
    if done.returncode != 0:
        is_time = took_long(done.returncode)
        limit = f"{CPU_SECONDS:g} s" if is_time else f"{N_BYTES >> 20} MiB of memory"
        raise _too_complex(source, limit)
    reply: dict[str, Any] = json.loads(done.stdout)
    if "error" in reply:
        raise RequestError(reply["error"])


def _too_complex(source: str, limit: str) -> RequestError:
    return RequestError(
        f"the chat template has {len(source)} characters and takes more than {limit} to compile: "
        f"templates of up to {LENGTH_TRUSTED} characters always compile"
    )


def main() -> None:
    """Compile the template that the other process sends."""
    from .sandbox import compile_template  # noqa: PLC0415 - imports jinja2

    question = json.loads(sys.stdin.buffer.read())
    limit_this_process(**question["limits"])
    reply = {}
    try:
        compile_template(question["source"])
    except RequestError as e:
        reply["error"] = str(e)
    sys.stdout.write(json.dumps(reply))


if __name__ == "__main__":
    main()
