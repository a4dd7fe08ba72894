"""`lamella.load`: the behavior that the README describes, and errors."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from golden_data import STORIES, TINY, check_golden, golden_cases, model_path
from open_params import open_params
from tiny_models import N_VOCAB, write_model
from tiny_models import TINY as SHAPES

import lamella
from lamella import (
    ClosedError,
    ContextSizeError,
    ModelFileError,
    OutOfMemoryError,
    RequestError,
    UnknownDeviceError,
    UnsupportedModelError,
)
from lamella.model.sampling import SamplingParams
from lamella.runtime.open import open_instance


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("api") / "tiny.gguf"
    write_model(SHAPES["llama"], file)
    return file


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[lamella.Model]:
    with lamella.load(path, n_ctx=128) as model:
        yield model


@pytest.mark.parametrize("name", [*STORIES, *TINY])
def test_goldens(name: str) -> None:
    kv = "f32" if name in TINY else "f16"
    with lamella.load(model_path(name), type_k=kv, type_v=kv) as model:
        for case in golden_cases(name):
            logits = model.logits(case["prompt_tokens"])
            assert logits.dtype == np.float32
            check_golden(name, case, logits)
            if name == "stories260K-F32":
                assert model.tokenize(case["prompt"]) == case["prompt_tokens"]
                pieces = list(model.generate(case["prompt"], n_predict=64, temperature=0))
                assert "".join(pieces) == case["greedy_text"]
                whole = case["prompt_tokens"] + case["greedy_tokens"]
                assert model.detokenize(whole) == case["prompt"] + case["greedy_text"]


def test_text_and_back(model: lamella.Model) -> None:
    ids = model.tokenize("a b c")
    assert model.tokenize("a b c", add_special=False) == ids[1:]
    assert model.detokenize(ids) == "a b c"


def test_logits_have_a_row_for_every_token(model: lamella.Model) -> None:
    logits = model.logits([1, 2, 3])
    assert logits.shape == (3, N_VOCAB)
    assert logits[:2].tobytes() == model.logits([1, 2]).tobytes()


def test_seeds(model: lamella.Model) -> None:
    def text(seed: int) -> str:
        return "".join(model.generate("a b", n_predict=16, temperature=1.5, seed=seed))

    assert text(1) == text(1)
    assert text(1) != text(2)


def test_cached_prefixes_change_nothing(model: lamella.Model) -> None:
    def run(cache_prompt: bool) -> tuple[str, int]:
        """The text, and the number of evaluated prompt tokens."""
        before = model._generator().engine.counters.n_prompt
        pieces = model.generate("a b c d", n_predict=8, seed=1, cache_prompt=cache_prompt)
        return "".join(pieces), model._generator().engine.counters.n_prompt - before

    text, n = run(False)
    assert n == len(model.tokenize("a b c d"))
    assert run(True)[0] == text
    assert run(True) == (text, 1)
    assert run(False) == (text, n)


def test_parallel_generations_give_the_same_texts_as_alone(model: lamella.Model) -> None:
    def text(i: int) -> str:
        return "".join(model.generate("abcdef"[: 1 + i % 5], n_predict=20, seed=i))

    alone = [text(i) for i in range(8)]
    parallel = [""] * 8

    def work(i: int) -> None:
        parallel[i] = text(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert parallel == alone


def test_stop_ends_a_generation(model: lamella.Model) -> None:
    text = "".join(model.generate("a", n_predict=30, seed=2, temperature=1))
    stop = text[len(text) // 2]
    assert (
        "".join(model.generate("a", n_predict=30, seed=2, temperature=1, stop=stop))
        == (text[: text.index(stop)])
    )


def test_leaving_the_loop_early_cancels(path: Path) -> None:
    with lamella.load(path, n_ctx=100_000, n_parallel=1) as model:
        for _ in range(3):
            for _ in model.generate("a", logit_bias=((2, -1e9),)):
                break
        assert len(list(model.generate("a", n_predict=3))) > 0


def test_dropping_a_generation_cancels(path: Path) -> None:
    with lamella.load(path, n_ctx=1_000_000, n_parallel=1) as model:
        unused = model.generate("a", logit_bias=((2, -1e9),))
        del unused
        assert len(list(model.generate("a", n_predict=3))) > 0


def test_a_dropped_model_is_closed_after_its_generations(path: Path) -> None:
    pieces = lamella.load(path).generate("a", n_predict=5, seed=1)
    assert "".join(pieces) == "".join(lamella.load(path).generate("a", n_predict=5, seed=1))
    model = lamella.load(path)
    n_threads = threading.active_count()
    del model
    gc.collect()
    assert threading.active_count() < n_threads


def test_a_forked_child_gets_an_error(path: Path) -> None:
    code = f"""
import os, lamella
model = lamella.load({str(path)!r})
if os.fork() == 0:
    try:
        list(model.generate("a", n_predict=2))
    except lamella.ClosedError as e:
        os._exit(7 if "forked" in str(e) else 8)
    os._exit(9)
_, status = os.wait()
assert os.waitstatus_to_exitcode(status) == 7, status
assert list(model.generate("a", n_predict=2))
"""
    command = [sys.executable, "-W", "ignore", "-c", code]
    assert subprocess.run(command, timeout=250, check=False).returncode == 0


def test_a_context_larger_than_memory_is_an_error(path: Path) -> None:
    with pytest.raises(OutOfMemoryError, match="does not fit: CPU lacks"):
        lamella.load(path, n_ctx=2_000_000_000)


def test_closing(path: Path) -> None:
    model = lamella.load(path)
    pieces = model.generate("a", temperature=0)
    model.close()
    model.close()
    for use in (
        lambda: model.tokenize("a"),
        lambda: model.detokenize([1]),
        lambda: model.logits([1]),
        lambda: model.generate("a"),
    ):
        with pytest.raises(ClosedError, match="the model is closed"):
            use()
    with pytest.raises(lamella.LamellaError):
        list(pieces)


def test_split_over_a_simulated_gpu(path: Path) -> None:
    ids = [1, 5, 9]
    # F32: with halves, small differences become large
    kv: dict[str, Any] = {"type_k": "f32", "type_v": "f32"}
    with lamella.load(path, **kv) as alone:
        logits = alone.logits(ids)
        text = list(alone.generate(ids, n_predict=8, temperature=0))
    for n_gpu_layers in range(4):
        with lamella.load(path, devices=["sim"], n_gpu_layers=n_gpu_layers, **kv) as model:
            np.testing.assert_allclose(model.logits(ids), logits, rtol=0, atol=1e-5)
            assert list(model.generate(ids, n_predict=8, temperature=0)) == text


def test_without_repacking_all_splits_give_the_same_bits(path: Path) -> None:
    # packed weights are summed in another order than on other devices
    def bits(**split: Any) -> bytes:
        with lamella.load(path, repack=False, **split) as model:
            return model.logits([1, 5, 9]).tobytes()

    alone = bits()
    for n_gpu_layers in range(4):
        assert bits(devices=["sim"], n_gpu_layers=n_gpu_layers) == alone


def test_recommended_values_are_defaults(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    recommended = {"general.sampling.temp": 0.0, "general.sampling.top_k": 3}
    write_model(SHAPES["llama"], path, metadata=recommended)
    with open_instance(open_params(path, devices=["none"])) as instance:
        assert instance.request_params().sampling == SamplingParams(temperature=0.0, top_k=3)
        given = {"temperature": 0.7, "min_p": 0.2}
        assert instance.request_params(given).sampling == SamplingParams(
            temperature=0.7, top_k=3, min_p=0.2
        )
    with lamella.load(path, devices=["none"]) as model:
        greedy, again = (list(model.generate("ab", n_predict=8)) for _ in range(2))
        assert greedy == again == list(model.generate("ab", n_predict=8, temperature=0.0))


def test_bad_arguments(model: lamella.Model, path: Path) -> None:
    with pytest.raises(ContextSizeError, match="129 tokens, the context holds 128"):
        model.logits([1] * 129)
    with pytest.raises(ContextSizeError):
        model.generate([1] * 128)
    with pytest.raises(RequestError, match="no ids"):
        model.logits([])
    with pytest.raises(RequestError, match=r"id 288 must be 0 to 287"):
        model.logits([288])
    for ids in ([1.9], ["1"], [None], 7):
        with pytest.raises(RequestError, match="are not token ids"):
            model.logits(ids)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="5 is not a string"):
        model.tokenize(5)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match=r"stop is \[1\]: must be a string"):
        model.generate("a", stop=[1])  # type: ignore[list-item]
    with pytest.raises(RequestError, match="temprature"):
        model.generate("a", temprature=1)  # type: ignore[call-arg]
    with pytest.raises(RequestError, match="min_p"):
        model.generate("a", min_p="much")  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="type_k is 'q4_k'"):
        lamella.load(path, type_k="q4_k")
    with pytest.raises(UnknownDeviceError, match="'gpu'"):
        lamella.load(path, devices=["gpu"])
    with pytest.raises(OutOfMemoryError, match="SIM0"):
        lamella.load(path, devices=["sim:1KiB"], n_gpu_layers=-1)


def test_bad_files(tmp_path: Path) -> None:
    for wrong in (5, ["a"], 1.5):
        with pytest.raises(RequestError, match="must be a text or a path"):
            lamella.load(wrong)  # type: ignore[arg-type]
    with pytest.raises(ModelFileError, match=r"nothing\.gguf"):
        lamella.load(tmp_path / "nothing.gguf")
    other = tmp_path / "other.gguf"
    text = tmp_path / "page.gguf"
    text.write_text("<!DOCTYPE html><html></html>")
    with pytest.raises(ModelFileError, match="HTML"):
        lamella.load(text)
    write_model(SHAPES["llama"], other)
    data = other.read_bytes().replace(b"llama", b"lluma")
    other.write_bytes(data)
    with pytest.raises(UnsupportedModelError, match=r"lluma.*llama.*qwen3moe"):
        lamella.load(other)


def test_a_file_whose_name_is_not_utf8(path: Path, tmp_path: Path) -> None:
    odd = os.fsencode(tmp_path) + b"/caf\xe9.gguf"
    os.symlink(path, odd)
    with lamella.load(odd) as model:  # type: ignore[arg-type]
        assert model.name == "caf?"


def test_plan_and_strict_placement(path: Path) -> None:
    with lamella.load(path, devices=["sim:1GiB"], n_gpu_layers=2, n_ctx=64) as model:
        assert next((d.name, d.n_layers) for d in model.plan.devices) == ("SIM0", 2)
        assert model.plan.fits
    # --fit-target keeps 1 GiB free
    with lamella.load(path, devices=["sim:1GiB"], n_ctx=64) as model:
        assert model.plan.n_gpu_layers == 0
    on_cpu = [("ffn_down", "CPU")]
    # overrides do not displace nodes
    lamella.load(path, devices=["sim"], n_ctx=64, overrides=on_cpu, placement="strict").close()
    with pytest.raises(RequestError, match=r"unknown buffer type 'GPU'; buffer types: CPU, "):
        lamella.load(path, overrides=[("ffn_down", "GPU")])
    with pytest.raises(RequestError, match="placement is 'never': must be one of strict, warn"):
        lamella.load(path, placement="never")


def test_an_unknown_option(path: Path) -> None:
    options = "n_ctx, fit_ctx, n_batch, "
    with pytest.raises(RequestError, match=f"unknown option 'xyz'; options are .*{options}"):
        lamella.load(path, xyz=3)  # type: ignore[call-arg]
    with pytest.raises(RequestError, match=r"'n_layers'; did you mean n_gpu_layers\?"):
        lamella.load(path, n_layers=3)  # type: ignore[call-arg]
