"""The helper process of a sandbox: translates and compiles each grammar in a fork of its own.

It reads a line of JSON for each grammar, and writes one. It has the special tokens of the real
vocabulary, and bytes as its other tokens, for compiling does not depend on them. Windows has no
forks: there a grammar may end the helper itself.
Tested by tests/model/test_guide_sandbox.py.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from ...base.errors import GrammarError
from ...base.priority import lower_priority
from ...base.process_limits import limit_this_process, used_bytes
from .limits import (
    COMPILE_NICE,
    COMPILED_BYTES,
    QUICK_SECONDS,
    SANDBOX_BYTES,
    SANDBOX_WALL_SECONDS,
    SLOW_NICE,
)
from .native import cause, compile_lark
from .regex import unicode_classes
from .spec import GrammarKind, GrammarSpec
from .token_names import TokenNames
from .translate import to_lark

_N_STEPS: Final = 32  # of a random text
_STEP_SECONDS: Final = 0.05  # for each; real schemas take less than 1 ms


class _Tokens:
    """The attributes that TokenizerWrapper reads: special tokens, and a token for each byte."""

    bos_token_id: int | None = None

    def __init__(self, hello: dict[str, Any]) -> None:
        special = {id: text.encode("latin-1") for id, text in hello["special"]}
        self.n_others = hello["n_tokens"]
        self.tokens = [special.get(id, b"") for id in range(self.n_others)]
        self.tokens += [bytes([byte]) for byte in range(256)]
        for id, text in special.items():
            self.tokens[id] = text or b"<unnamed>"
        self.special_token_ids = sorted(special)
        self.ends: list[int] = hello["ends"]
        self.names = TokenNames(
            self.n_others, hello["named"], frozenset(special), frozenset(self.ends)
        )
        self.eos_token_id = min(self.ends, default=None)

    def __call__(self, text: bytes | str) -> list[int]:
        return []


def main() -> None:
    """Compile grammars until the other process closes the pipe."""
    lower_priority(nice=COMPILE_NICE)
    tokens = _Tokens(json.loads(sys.stdin.buffer.readline()))
    tokenizer = LLTokenizer(TokenizerWrapper(tokens), eos_token=tokens.ends or None)
    _write({"ready": True})
    unicode_classes()  # 0.3 s that forks save
    while line := sys.stdin.buffer.readline():
        answer = partial(_answer, tokenizer, tokens, line)
        if sys.platform == "win32":
            answer()
        else:
            _in_fork(answer, json.loads(line)["seconds"])


def _in_fork(answer: Callable[[], None], seconds: float) -> None:
    assert sys.platform != "win32"
    child = os.fork()
    if child == 0:
        if seconds > QUICK_SECONDS:
            lower_priority(nice=SLOW_NICE)
        limit_this_process(
            cpu_seconds=seconds, wall_seconds=SANDBOX_WALL_SECONDS, n_bytes=SANDBOX_BYTES
        )
        answer()
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status != 0:
        _write({"died": status})


def _answer(tokenizer: LLTokenizer, tokens: _Tokens, line: bytes) -> None:
    _write(_reply(tokenizer, tokens, json.loads(line)))


def _write(message: dict[str, Any]) -> None:
    sys.stdout.buffer.write(json.dumps(message).encode() + b"\n")
    sys.stdout.buffer.flush()


def _reply(tokenizer: LLTokenizer, tokens: _Tokens, question: dict[str, Any]) -> dict[str, Any]:
    spec = GrammarSpec(GrammarKind(question["kind"]), question["source"], question["strict"])
    before = used_bytes("VmRSS")
    try:
        lark = to_lark(spec, tokens.names)
        native = compile_lark(tokenizer, lark.text, spec.kind)
        _walk(native, tokens.n_others, spec.kind)
        if used_bytes("VmRSS") - before > COMPILED_BYTES:
            raise GrammarError(f"{spec.kind}: too large: more than {COMPILED_BYTES >> 20} MiB")
    except GrammarError as e:
        return {"error": str(e)}
    return {"text": lark.text, "loosened": lark.loosened}


def _walk(native: LLMatcher, n_others: int, kind: GrammarKind) -> None:
    """Follow a random text of bytes, and refuse a grammar with slow masks."""
    text, generator = native.deep_copy(), random.Random(0)
    for _ in range(_N_STEPS):
        begin = time.process_time()
        allowed = _allowed_bytes(text, n_others)
        if allowed:
            text.consume_token(generator.choice(allowed))
        if text.is_error():
            raise GrammarError(f"{kind}: too complex: {cause(text.get_error())}")
        if time.process_time() - begin > _STEP_SECONDS:
            raise GrammarError(f"{kind}: too ambiguous: a token takes too long to check")
        if not allowed or text.is_stopped():
            return


def _allowed_bytes(text: LLMatcher, n_others: int) -> list[int]:
    """The tokens of bytes that may follow."""
    mask = text.compute_bitmask()
    tokens = range(n_others, n_others + 256)
    return [token for token in tokens if mask[token >> 3] >> (token & 7) & 1]


if __name__ == "__main__":
    main()
