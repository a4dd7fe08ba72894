"""The order in which the grammars of clients compile."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fake_context import VOCAB, WAIT_S

from lamella.base.errors import ClientLimitError, ClosedError, GrammarError
from lamella.model.guide import CompiledGrammar, Compiler, GrammarKind, GrammarSpec
from lamella.model.guide.limits import QUICK_SECONDS, SANDBOX_SECONDS
from lamella.model.guide.sandbox import Sandbox, SlowGrammarError
from lamella.model.guide.spec import Lark
from lamella.model.guide.translate import to_lark
from lamella.runtime.instance import Instance
from lamella.server import grammars
from lamella.server.grammars import N_WAITING_MAX, GrammarQueue

SLOW = "s"  # regular expressions that begin so need more than a first try
Tries = list[tuple[str, float]]


@pytest.fixture
def tries(monkeypatch: pytest.MonkeyPatch) -> Tries:
    """The sources and times of all tries; a sandbox notes them."""
    found: Tries = []

    def translate(_: Sandbox, spec: GrammarSpec, seconds: float = SANDBOX_SECONDS) -> Lark:
        found.append((spec.source, seconds))
        if spec.source.startswith(SLOW) and seconds < SANDBOX_SECONDS:
            raise SlowGrammarError("a first try is too short")
        if "!" in spec.source:
            raise GrammarError("never")
        return to_lark(spec)

    monkeypatch.setattr(Sandbox, "translate", translate)
    return found


def grammar_queue() -> GrammarQueue:
    model: Any = SimpleNamespace(vocab=VOCAB, engine=SimpleNamespace(compiler=Compiler(VOCAB)))
    return GrammarQueue(cast(Instance, model))


def regex(text: str) -> GrammarSpec:
    return GrammarSpec(GrammarKind.REGEX, text)


def test_slow_grammars_wait_for_the_others(tries: Tries) -> None:
    async def compile_all() -> None:
        queue = grammar_queue()
        await asyncio.gather(*(queue.compile(regex(text)) for text in ("sa", "sb", "a", "b")))
        queue.close()

    asyncio.run(compile_all())
    first = [(text, QUICK_SECONDS) for text in ("sa", "sb", "a", "b")]
    assert sorted(tries[:4]) == sorted(first)
    assert tries[4:] == [("sa", SANDBOX_SECONDS), ("sb", SANDBOX_SECONDS)]


def test_clients_take_turns(tries: Tries, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()
    compile_spec = Compiler.compile

    def wait(self: Compiler, *args: Any) -> CompiledGrammar:
        begun.set()
        assert go_on.wait(WAIT_S)
        return compile_spec(self, *args)

    async def compile_all() -> None:
        queue = grammar_queue()
        tasks = [asyncio.create_task(queue.compile(regex("x"), "many"))]
        await asyncio.to_thread(begun.wait, WAIT_S)
        monkeypatch.setattr(grammars, "N_CLIENT_WAITING_MAX", 4)
        for text, client in (("a", "many"), ("b", "many"), ("c", "many"), ("d", "one")):
            tasks.append(asyncio.create_task(queue.compile(regex(text), client)))
        await asyncio.sleep(0)  # all wait now
        with pytest.raises(ClientLimitError, match="4 grammars of this client"):
            await queue.compile(regex("e"), "many")
        tasks.append(asyncio.create_task(queue.compile(regex("f"), "two")))
        await asyncio.sleep(0)
        go_on.set()
        await asyncio.gather(*tasks)
        queue.close()
        assert not queue._n_waiting

    monkeypatch.setattr(Compiler, "compile", wait)
    asyncio.run(compile_all())
    assert [text for text, _ in tries] == ["x", "d", "f", "a", "b", "c"]


def test_the_same_grammar_compiles_once_for_many_requests(tries: Tries) -> None:
    async def compile_all() -> None:
        queue = grammar_queue()
        await asyncio.gather(*(queue.compile(regex("a")) for _ in range(3 * N_WAITING_MAX)))
        queue.close()
        assert not queue._same

    asyncio.run(compile_all())
    assert tries == [("a", QUICK_SECONDS)]


def test_a_grammar_that_fails_is_not_tried_again(tries: Tries) -> None:
    async def compile() -> None:
        queue = grammar_queue()
        with pytest.raises(GrammarError, match="never"):
            await queue.compile(regex("a!"))
        queue.close()

    asyncio.run(compile())
    assert tries == [("a!", QUICK_SECONDS)]


def test_grammars_fail_after_the_queue_is_closed() -> None:
    async def compile() -> None:
        queue = grammar_queue()
        queue.close()
        with pytest.raises(ClosedError):
            await queue.compile(regex("a"))

    asyncio.run(compile())
