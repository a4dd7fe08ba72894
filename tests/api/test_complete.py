"""Results of `Model.complete`: the text, its tokens, how it ended; and streams of text."""

from __future__ import annotations

import gc
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from api_models import N_CTX, WAIT_S, becomes_idle, endless, tiny_file

import lamella
from lamella import CancelledError, ClosedError, ContextSizeError, RequestError, TextStream


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_file(tmp_path_factory)


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[lamella.Model]:
    with lamella.load(path, n_ctx=N_CTX) as model:
        yield model


def test_a_completion_has_what_a_stream_yields(model: lamella.Model) -> None:
    pieces = list(model.complete_stream("a b", max_tokens=12, temperature=1, seed=3))
    whole = model.complete("a b", max_tokens=12, temperature=1, seed=3)
    assert whole.text == str(whole) == f"{whole}" == "".join(pieces)
    assert model.detokenize(whole.tokens) == whole.text
    assert list(model.generate("a b", n_predict=12, temperature=1, seed=3)) == pieces


def test_how_a_generation_ended(model: lamella.Model) -> None:
    whole = model.complete("a b c", max_tokens=7, seed=5, ignore_eos=True, cache_prompt=False)
    assert (whole.finish_reason, whole.stop, whole.seed) == ("length", None, 5)
    n_prompt = len(model.tokenize("a b c"))
    assert whole.usage == lamella.Usage(
        prompt_tokens=n_prompt, completion_tokens=7, cached_tokens=0
    )
    assert whole.usage.total_tokens == n_prompt + 7
    assert whole.timings.predicted_n == 7
    assert whole.timings.predicted_per_second > 0
    assert whole.message == {"role": "assistant", "content": whole.text}

    word = whole.text[len(whole.text) // 2]
    stopped = model.complete("a b c", seed=5, ignore_eos=True, stop=["never in it", word])
    assert (stopped.finish_reason, stopped.stop) == ("stop", word)
    assert stopped.text == whole.text[: whole.text.index(word)]
    assert model.complete("a b c", max_tokens=1).usage.cached_tokens == n_prompt - 1


def test_a_random_seed_is_reported(model: lamella.Model) -> None:
    first = model.complete("a", max_tokens=16, temperature=1.5)
    assert first.seed >= 0
    again = model.complete("a", max_tokens=16, temperature=1.5, seed=first.seed)
    assert again.text == first.text


def test_the_result_of_a_stream(model: lamella.Model) -> None:
    stream = model.complete_stream("a", max_tokens=9, seed=2, ignore_eos=True)
    first = next(stream)
    assert stream.text == first
    result = stream.result()
    assert result.text == stream.text
    assert result.text.startswith(first)
    assert list(stream) == []
    assert stream.result() == result


def test_closing_a_stream_cancels_it(model: lamella.Model) -> None:
    with endless(model) as stream:
        next(stream)
    assert becomes_idle(model)
    assert list(stream) == []
    with pytest.raises(CancelledError, match="closed before its end"):
        stream.result()
    stream.close()


def test_a_stream_that_is_closed_by_another_thread_ends(model: lamella.Model) -> None:
    stream = endless(model)
    next(stream)
    closer = threading.Thread(target=stream.close)
    closer.start()
    list(stream)
    closer.join()


def test_a_stream_has_one_reader_at_a_time(model: lamella.Model) -> None:
    stream, errors, has_failed = endless(model), list[Exception](), threading.Event()

    def read() -> None:
        try:
            list(stream)
        except Exception as error:
            errors.append(error)
            has_failed.set()

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    assert has_failed.wait(WAIT_S)
    stream.close()
    for reader in readers:
        reader.join()
    assert [str(error) for error in errors] == [
        "another thread reads this stream: each thread needs its own stream"
    ]
    assert isinstance(errors[0], RequestError)


def test_an_abandoned_stream_is_cancelled(model: lamella.Model) -> None:
    stream = endless(model)
    next(stream)
    del stream
    gc.collect()
    assert becomes_idle(model)


def test_ctrl_c_interrupts_a_completion(model: lamella.Model) -> None:
    main, engine = threading.get_ident(), model._generator().engine

    def press() -> None:
        while not engine.n_running:
            time.sleep(0.001)
        time.sleep(0.05)  # until the main thread waits
        signal.pthread_kill(main, signal.SIGINT)

    presser = threading.Thread(target=press)
    presser.start()
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        endless(model).result()
    assert time.monotonic() - begin < WAIT_S / 2
    presser.join()
    assert becomes_idle(model)


def test_closing_the_model_ends_its_streams(path: Path) -> None:
    model = lamella.load(path, n_ctx=100_000)
    streams = [endless(model) for _ in range(6)]  # more than run at once
    for stream in streams[:4]:
        next(stream)
    closer = threading.Timer(0.05, model.close)
    closer.start()
    for stream in streams:
        with pytest.raises(CancelledError, match="the engine was closed"):
            list(stream)
        with pytest.raises(CancelledError, match="the engine was closed"):
            stream.result()
    closer.join()
    with pytest.raises(ClosedError, match="the model is closed"):
        model.complete("a")
    with pytest.raises(ClosedError, match="the model is closed"):
        model.chat_stream("a")


def test_errors_come_before_the_first_piece(model: lamella.Model) -> None:
    with pytest.raises(ContextSizeError):
        model.complete_stream([1] * N_CTX)
    with pytest.raises(ContextSizeError):
        model.chat("a" * N_CTX)


def test_a_stream_is_an_iterator(model: lamella.Model) -> None:
    stream = model.complete_stream("a", max_tokens=2)
    assert isinstance(stream, TextStream)
    assert iter(stream) is stream
    stream.close()
