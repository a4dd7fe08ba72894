"""Iterating over a generation: its text, its end, early exits, Ctrl-C."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator

import pytest
from fake_context import VOCAB, WAIT_S, FakeContext, expected, make_engine, request, sampling

from lamella.base.errors import BackendError, CancelledError, ContextSizeError, RequestError
from lamella.runtime.engine.engine import Engine
from lamella.runtime.engine.job import StopType
from lamella.runtime.text import Generation, generate


@pytest.fixture
def context() -> FakeContext:
    return FakeContext()


@pytest.fixture
def engine(context: FakeContext) -> Iterator[Engine]:
    engine = make_engine(context)
    engine.start()
    yield engine
    engine.close()
    assert context.pool.n_free == context.pool.n_pages


def start(engine: Engine, n_predict: int = 20, *stop: str, ignore_eos: bool = False) -> Generation:
    params = request(sampling(), n_predict=n_predict, ignore_eos=ignore_eos, stop=stop)
    return generate(engine, VOCAB, [5, 6], params)


def becomes_idle(engine: Engine) -> bool:
    end = time.monotonic() + WAIT_S
    while engine.n_running and time.monotonic() < end:
        time.sleep(0.001)
    return not engine.n_running


def test_the_pieces_are_the_text(engine: Engine) -> None:
    generation = start(engine)
    text = "".join(piece.text for piece in generation)
    assert text == VOCAB.detokenize(expected([5, 6], sampling(), 20))
    assert generation.result.n_prompt == 2
    assert list(generation) == []


def test_stop_strings_end_a_generation(engine: Engine) -> None:
    text = VOCAB.detokenize(expected([5, 6], sampling(), 20))
    word = text[4:7]
    generation = start(engine, 20, word)
    assert "".join(piece.text for piece in generation) == text[: text.index(word)]
    assert generation.result.stop_type == StopType.WORD
    assert generation.result.stopping_word == word


def test_parallel_generations(engine: Engine) -> None:
    generations = [start(engine) for _ in range(6)]
    texts = {"".join(piece.text for piece in g) for g in generations}
    assert len(texts) == 1


def test_the_result_comes_last(engine: Engine) -> None:
    generation = start(engine)
    with pytest.raises(RequestError, match="only after its last piece"):
        generation.result  # noqa: B018
    for _ in generation:
        pass
    assert generation.result.n_predicted


def test_leaving_the_loop_cancels(engine: Engine, context: FakeContext) -> None:
    left = threading.Event()

    def hold(step: int) -> None:
        if step == 100:  # it would continue to step 500
            assert left.wait(WAIT_S)

    context.on_decode = hold
    generation = start(engine, 500, ignore_eos=True)
    for _ in generation:
        break
    left.set()
    assert becomes_idle(engine)
    with pytest.raises(CancelledError):
        list(generation)
    with pytest.raises(CancelledError):  # the second iteration does not block
        list(generation)


def test_an_exception_in_the_loop_cancels(engine: Engine) -> None:
    def consume() -> None:
        for _ in start(engine, 500, ignore_eos=True):
            raise KeyError

    with pytest.raises(KeyError):
        consume()
    assert becomes_idle(engine)


def test_cancelling_ends_the_iteration(engine: Engine, context: FakeContext) -> None:
    started = threading.Event()

    def cancel(step: int) -> None:
        if step == 10:
            assert started.wait(WAIT_S)
            generation.cancel()

    context.on_decode = cancel
    generation = start(engine, 500, ignore_eos=True)
    started.set()
    with pytest.raises(CancelledError):
        list(generation)
    generation.cancel()


def test_iterating_raises_the_generation_s_error(engine: Engine, context: FakeContext) -> None:
    def fail(step: int) -> None:
        if step == 5:
            raise BackendError("the device is gone")

    context.on_decode = fail
    generation = start(engine, ignore_eos=True)
    with pytest.raises(BackendError, match="the device is gone"):
        list(generation)


def test_invalid_requests_are_refused_by_generate(engine: Engine) -> None:
    with pytest.raises(ContextSizeError):
        generate(engine, VOCAB, [5] * 512, request(sampling()))


def test_ctrl_c_interrupts_the_wait(engine: Engine, context: FakeContext) -> None:
    opened, reached, main = threading.Event(), threading.Event(), threading.get_ident()

    def hold(step: int) -> None:
        if step == 3:
            reached.set()
            opened.wait(WAIT_S)

    def press() -> None:
        reached.wait(WAIT_S)
        time.sleep(0.05)  # until the main thread waits for the third token
        signal.pthread_kill(main, signal.SIGINT)

    context.on_decode = hold
    presser = threading.Thread(target=press)
    presser.start()
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        list(start(engine, 500, ignore_eos=True))
    assert time.monotonic() - begin < WAIT_S / 2
    opened.set()
    presser.join()
    assert becomes_idle(engine)
