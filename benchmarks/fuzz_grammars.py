"""Fuzzes grammars: random and hostile schemas, GBNF, Lark and regular expressions.

Each input is compiled as a server does it. Checked are: no error but GrammarError, a second of
time, and for what compiles that random texts by the masks end without an exception, and that
finished texts match (by `jsonschema` and `re`). Tested by tests/model/test_fuzz_grammars.py.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from fuzz_inputs import make_input
from fuzz_target import Outcome
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from lamella.base.errors import GrammarError
from lamella.model.gguf import open_gguf
from lamella.model.guide import (
    CompiledGrammar,
    Compiler,
    GrammarKind,
    GrammarSpec,
    MaskComputer,
    n_mask_bits,
)
from lamella.model.guide.sandbox import Sandbox
from lamella.model.shipped import shipped_model
from lamella.model.vocab import Vocab, load_vocab

CPU_SECONDS: Final = 0.75  # of a compilation in this process; the sandbox has its own limit
WALL_SECONDS: Final = 1.5  # of a compilation, unless the machine is busy
N_TOKENS: Final = 200
N_TEXTS: Final = 3
CHECK_SECONDS: Final = 2.0  # of `re` and `jsonschema`, which hostile patterns stop


class Grammars:
    """Compiles and follows grammars, as a server does."""

    def __init__(self) -> None:
        self.vocab = _vocab()
        self.sandbox = Sandbox(self.vocab)
        self.compiler = Compiler(self.vocab, self.sandbox.translate)
        self.masks = MaskComputer(n_mask_bits(self.vocab), 1)
        self.compiler.compile(GrammarSpec(GrammarKind.REGEX, "a"))  # starts the helper

    def show(self, number: int) -> str:
        spec = make_input(number)
        return f"{spec.kind} strict={spec.strict}\n{spec.source}"

    def try_input(self, number: int) -> Outcome:
        spec = make_input(number)
        begin, cpu = time.perf_counter(), time.process_time()
        try:
            grammar: CompiledGrammar | None = self.compiler.compile(spec)
        except GrammarError as e:
            grammar, what = None, _kind_of(str(e))
        wall, cpu = time.perf_counter() - begin, time.process_time() - cpu
        is_busy = os.getloadavg()[0] > 0.8 * (os.cpu_count() or 1)
        if cpu > CPU_SECONDS or (wall > WALL_SECONDS and not is_busy):
            return Outcome("slow", f"{wall:.2f} s to compile, {cpu:.2f} s of it here", wall)
        if grammar is not None:
            what = "compiled"
            for i in range(N_TEXTS):
                what, finding = self._text(spec, grammar, random.Random(number + i))
                if finding:
                    return Outcome(what, finding, wall)
        return Outcome(what, "", wall)

    def _text(
        self, spec: GrammarSpec, grammar: CompiledGrammar, rng: random.Random
    ) -> tuple[str, str]:
        """Follow a random text. Return how it ended, and a finding."""
        matcher, data, begin = grammar.matcher(), b"", time.process_time()
        try:
            for _ in range(N_TOKENS):
                if matcher.is_finished:
                    break
                self.masks.begin([matcher])
                [mask] = self.masks.take()
                matcher.check()
                allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
                if not len(allowed):
                    return "stuck", f"no token may follow {data!r}"
                ends = [int(id) for id in allowed if int(id) in self.vocab.eog]
                if bool(ends) != matcher.is_complete:
                    return "end", f"{data!r} is complete: {matcher.is_complete}, may end: {ends}"
                if ends and rng.random() < 0.2:
                    break
                token = self._choice(allowed, rng)
                matcher.accept(token)
                data += self.vocab.piece(token)
        except GrammarError as e:
            seconds = time.process_time() - begin
            return _kind_of(str(e)), f"{seconds:.1f} s for a text" if seconds > 2 else ""
        if not matcher.is_complete:
            return "unfinished", ""
        return "finished", _within(CHECK_SECONDS, lambda: wrong(spec, data)) or ""

    def _choice(self, allowed: np.ndarray[Any, Any], rng: random.Random) -> int:
        """A random token; often a short one, for these end lexemes."""
        others = [int(id) for id in rng.sample(list(allowed), min(len(allowed), 64))]
        others = [id for id in others if id not in self.vocab.eog] or [int(allowed[0])]
        short = [id for id in others if len(self.vocab.piece(id)) <= 2]
        return rng.choice(short if short and rng.random() < 0.6 else others)


def _vocab() -> Vocab:
    with open_gguf(shipped_model()) as file:
        return load_vocab(file.metadata)


def wrong(spec: GrammarSpec, data: bytes) -> str:
    """Why a finished text does not match its grammar; "" if it does."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return f"{data!r} is not UTF-8"
    if spec.kind is GrammarKind.REGEX:
        try:
            return "" if re.fullmatch(spec.source, text) else f"{text!r} does not match"
        except (re.error, OverflowError):
            return ""  # not Python's syntax
    if spec.kind is GrammarKind.JSON_SCHEMA and spec.strict:
        return _invalid(json.loads(spec.source), text)
    return ""


def _invalid(schema: Any, text: str) -> str:
    try:
        value = json.loads(text)
        Draft202012Validator(schema).validate(value)
    except ValidationError as e:
        return f"{text!r} is invalid: {e.message:.200}"
    except ValueError as e:
        return f"{text!r} is not JSON: {e}"
    except BaseException:  # references and patterns it does not know, panics of its native code
        return ""
    return "" if text == text.strip() else f"space around {text!r}"


def _within(seconds: float, check: Callable[[], str]) -> str | None:
    """The result of a check; None if it takes too long."""

    def stop(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        return check()
    except (TimeoutError, RecursionError):
        return None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _kind_of(message: str) -> str:
    """The kind of an error, for counting."""
    for word in ("too complex", "too ambiguous", "too large", "too many", "no text matches"):
        if word in message:
            return f"refused: {word}"
    return "refused" if "cannot be followed" not in message else "failed in the text"
