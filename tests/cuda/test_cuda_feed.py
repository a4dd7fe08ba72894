"""Greedy texts on a GPU whose steps follow each other by themselves: the same texts as with steps
that wait for the host, whatever ends them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpus import Gpus
from open_params import open_params
from random_texts import MARKS, Request, Text
from state_models import write_state_model
from tiny_models import TINY, write_model
from window_models import write_window_model

from lamella.base.errors import LamellaError
from lamella.base.settings import NO_FEED, STRICT
from lamella.graph import GGMLType
from lamella.kernels import devices
from lamella.model.context import Context, Prepared, Started
from lamella.model.gguf import open_gguf
from lamella.runtime.engine import runner
from lamella.runtime.engine.pace import Pace
from lamella.runtime.engine.thinking import Thinking
from lamella.runtime.instance import Instance
from lamella.runtime.open import open_instance

GREEDY = {
    "temperature": 0,
    "repeat_penalty": 1.0,
    "dry_multiplier": 0.0,
    "mirostat": 0,
    "xtc_probability": 0.0,
    "spec_type": "none",
}


@pytest.fixture
def fed(gpus: Gpus, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of tokens of each step that follows another one. Emulated steps are long, but
    count as short."""
    monkeypatch.setattr(devices, "find_cuda", lambda: gpus.registry)
    monkeypatch.setattr(Pace, "ms_of", lambda self, n_tokens: 1.0)
    follow, sizes = Context.follow, list[int]()

    def counted(self: Context, started: Started, prepared: Prepared) -> tuple[Started, Started]:
        sizes.append(len(prepared.ubatch.runs))
        return follow(self, started, prepared)

    monkeypatch.setattr(Context, "follow", counted)
    return sizes


@contextmanager
def opened(path: Path, gpus: Gpus, **options: Any) -> Iterator[Instance]:
    given = {"devices": (gpus.first.name,), "n_ubatch": 16, "n_parallel": 4}
    given |= {"n_gpu_layers": -1, "n_ctx": 256}
    with open_instance(open_params(path, **(given | options))) as instance:
        yield instance


def texts(instance: Instance, requests: list[Request]) -> list[Text]:
    return [text.wait() for text in [request.start(instance, **GREEDY) for request in requests]]


def request(i: int) -> Request:
    """Some end with a stop string or are cancelled; one has a forced end of its reasoning."""
    given: dict[str, Any] = {"n_predict": 18 + 3 * i, "ignore_eos": i == 1, "seed": 1}
    given["stop"] = ("b", "d ") if i == 3 else ()
    thinking = Thinking(marks=(MARKS,), opened=MARKS) if i == 4 else None
    if thinking:
        given["reasoning_budget"] = 15
    n_cancel = 12 if i == 5 else -1
    return Request((1, *range(5, 6 + 5 * i)), given, n_cancel=n_cancel, thinking=thinking)


@pytest.mark.parametrize(
    "kind", ["llama", "windows", pytest.param("lfm2", marks=pytest.mark.full), "qwen35"]
)
def test_texts_are_those_of_steps_that_wait(
    gpus: Gpus, fed: list[int], tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "tiny.gguf"
    if kind in TINY:
        write_model(TINY[kind], path, GGMLType.Q4_0)
    elif kind == "windows":
        write_window_model(path, n_layer=2, n_swa=20)
    else:  # layers with states
        write_state_model(kind, path)
    requests, found = [request(i) for i in range(6)], []
    for off in (1, 0):
        with NO_FEED.set(off), opened(path, gpus) as instance:
            found.append([text.summary() for text in texts(instance, requests)])
        assert bool(fed) != bool(off)
    assert found[0] == found[1]
    assert len(fed) > 5 and max(fed) > 2


def test_a_long_step_does_not_follow(
    gpus: Gpus, fed: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes in meanwhile would have to wait for both."""
    monkeypatch.setattr(runner, "FED_MS_MAX", 0.0)
    write_model(TINY["llama"], path := tmp_path / "tiny.gguf", GGMLType.Q4_0)
    with opened(path, gpus) as instance:
        texts(instance, [Request((1, 5), {"n_predict": 12, "ignore_eos": True})])
    assert not fed


@pytest.mark.parametrize(
    ("kind", "strict", "why"),
    [
        ("llama", 0, "NaN"),
        ("llama", 1, "the first node with a NaN is GET_ROWS"),
        ("qwen35", 1, "the first node with a NaN is not known; LAMELLA_NO_FEED=1 finds it"),
    ],
)
def test_a_text_that_fails_leaves_the_others(
    gpus: Gpus,
    fed: list[int],
    tmp_path: Path,
    kind: str,
    strict: int,
    why: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A token after which all logits are NaN: the step that follows computes with it."""
    request = Request((1, 5), {"n_predict": 30, "ignore_eos": True})
    path = tmp_path / "tiny.gguf"
    if kind in TINY:
        write_model(TINY[kind], path)
    else:
        write_state_model(kind, path)
    with opened(path, gpus) as instance:
        (text,) = texts(instance, [request])
    bad = next(t for i, t in enumerate(text.tokens) if i > 8 and t not in text.tokens[:i])
    at = text.tokens.index(bad)
    with open_gguf(path) as file:
        embd = file.tensors["token_embd.weight"]
        assert embd.type is GGMLType.F32
    with path.open("r+b") as data:
        data.seek(embd.offset + bad * 4 * embd.ne[0])
        data.write(np.full(embd.ne[0], np.nan, np.float32).tobytes())
    fed.clear()
    other = Request((1, 6, 7), {"n_predict": 30, "ignore_eos": True})
    with STRICT.set(strict), opened(path, gpus) as instance:
        first, second = texts(instance, [request, other])
        assert isinstance(first.end, LamellaError)
        assert why in str(first.end)
        assert first.tokens == text.tokens[: at + 1]
        assert strict or len(second.tokens) == 30 or bad in second.tokens
        (later,) = texts(instance, [Request((1, 5), {"n_predict": 3})])
        assert later.tokens == text.tokens[:3]
    assert fed
    caplog.clear()  # the traceback has graphs
