"""The helper process that compiles grammars which are not trusted."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from guides import accepts, byte_vocab, schema

from lamella.base.background import begin
from lamella.base.errors import ClosedError, GrammarError, LamellaError
from lamella.model.chat.formats import GENERIC
from lamella.model.chat.message import Tool
from lamella.model.guide import Compiler, GrammarKind, GrammarSpec, chat_spec
from lamella.model.guide import sandbox as sandbox_module
from lamella.model.guide.sandbox import Sandbox, SlowGrammarError
from lamella.model.guide.token_names import TokenNames
from lamella.model.guide.translate import to_lark

WAIT_S = 20.0


def lark(text: str) -> GrammarSpec:
    return GrammarSpec(GrammarKind.LARK, f"%llguidance {{}}\n{text}")


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    sandbox = Sandbox(byte_vocab())
    yield sandbox
    sandbox.close()


def product(n: int) -> str:
    """A schema whose alternatives triple with each of `n` parts."""
    names = [[f"{letter}{i}" for letter in "abc"] for i in range(n)]
    return json.dumps({"allOf": [{"anyOf": [{"required": [n]} for n in each]} for each in names]})


def optional(n: int) -> str:
    """A schema with optional properties."""
    return json.dumps({"type": "object", "properties": {f"p{i}": {} for i in range(n)}})


def chain(n: int) -> str:
    """Rules in a chain, which compile by recursion."""
    rules = [f"a{i}: {'(' * 12}a{i + 1}{')' * 12}" for i in range(n)]
    return "\n".join(["start: a0", *rules, f'a{n}: "x"'])


REGEX = GrammarSpec(GrammarKind.REGEX, "a?b?" * 4000)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (schema(product(40)), "alternatives"),
        (lark(chain(3500)), "too deeply nested"),
        # a slow processor reaches the limit of time first
        (lark("start: A\nA: " + '"a"? ' * 20_000), r"more than (256 MiB of memory|1 s of comp)"),
        (REGEX, "too complex"),
        (GrammarSpec(GrammarKind.REGEX, "a" * (1 << 20)), "1048576 bytes are too many"),
    ],
    ids=["product", "chain", "optional", "regex", "bytes"],
)
def test_a_hostile_grammar_ends_in_an_error(
    sandbox: Sandbox, spec: GrammarSpec, message: str
) -> None:
    with pytest.raises(GrammarError, match=message):
        sandbox.translate(spec)


def test_a_grammar_that_takes_too_long(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, seconds = schema(optional(1000)), 0.02
    with pytest.raises(SlowGrammarError):
        sandbox.translate(spec, seconds)
    monkeypatch.setattr("lamella.model.guide.limits.SANDBOX_SECONDS", seconds)
    with pytest.raises(GrammarError, match=r"more than 0\.02 s of computing time"):
        sandbox.translate(spec, seconds)


@pytest.mark.parametrize(
    "spec",
    [
        GrammarSpec.of_grammar('root ::= "é" [b-d]*'),
        lark('start: <unk> "a" | <[256-257]>'),
        GrammarSpec(GrammarKind.REGEX, "a{1,1000}"),
        schema('{"properties": {"a": {"type": "number"}}}'),
        chat_spec(GENERIC, [Tool(name="f", parameters={"properties": {"a": {"format": 1}}})]),
    ],
    ids=["gbnf", "lark", "regex", "schema", "chat"],
)
def test_it_translates_like_the_process_itself(sandbox: Sandbox, spec: GrammarSpec) -> None:
    assert sandbox.translate(spec) == to_lark(spec, TokenNames.of(byte_vocab()))


def test_an_error_is_the_same(sandbox: Sandbox) -> None:
    spec, messages = lark("start: missing"), []
    for compiler in Compiler(byte_vocab()), Compiler(byte_vocab(), sandbox.translate):
        with pytest.raises(GrammarError) as error:
            compiler.compile(spec)
        messages.append(str(error.value))
    assert messages[0] == messages[1] and "missing" in messages[0]


def test_a_compiler_with_a_sandbox(sandbox: Sandbox) -> None:
    compiler = Compiler(byte_vocab(), sandbox.translate)
    for _ in range(2):
        with pytest.raises(GrammarError):
            compiler.compile(REGEX)
        grammar = compiler.compile(schema('{"type": "boolean"}'))
        assert accepts(grammar, "true") and not accepts(grammar, "1")


def test_a_closed_sandbox() -> None:
    sandbox = Sandbox(byte_vocab())
    sandbox.close()
    with pytest.raises(ClosedError):
        sandbox.translate(schema("{}"))


def test_a_helper_that_does_not_read_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_module, "_COMMAND", ["sleep", "1000"])
    monkeypatch.setattr(sandbox_module, "SANDBOX_WALL_SECONDS", 0.1)
    with closing(Sandbox(byte_vocab())) as sandbox:
        sandbox._hello["named"] = {"x" * 1_000_000: 1}  # more than a pipe holds
        with pytest.raises(LamellaError, match="does not start"):
            begin(lambda: sandbox.translate(schema("{}")), "test").result(WAIT_S)


def test_a_sandbox_that_is_closed_while_its_helper_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox, started = Sandbox(byte_vocab()), []

    class Popen(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **more: Any) -> None:
            super().__init__(*args, **more)
            started.append(self)
            sandbox.close()

    monkeypatch.setattr(subprocess, "Popen", Popen)
    with pytest.raises(ClosedError):
        sandbox.translate(schema("{}"))
    (helper,) = started
    assert helper.wait(WAIT_S) == -signal.SIGKILL
