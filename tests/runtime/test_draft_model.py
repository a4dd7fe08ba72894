"""A draft model guesses for others: texts stay the same, and its guesses come true."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from draft_world import guess_always, opened, texts
from matrix import combinations
from tiny_models import TINY, write_model

from lamella.base.errors import (
    BackendError,
    DoesNotFitError,
    PlacementError,
    RequestError,
)
from lamella.graph import GGMLType, Op
from lamella.kernels.sim import SimDevice
from lamella.model.outputs import TopLogits
from lamella.runtime.check import check, enforce
from lamella.runtime.engine.drafts.drafter import probability
from lamella.runtime.engine.drafts.model import DraftModel
from lamella.runtime.engine.drafts.translation import Translation, same_vocabulary
from lamella.runtime.fit import plan_model
from lamella.runtime.instance import Instance
from lamella.runtime.params import OpenParams, RequestParams
from lamella.runtime.text import generate

SHIPPED = Path(__file__).parents[2] / "models" / "lamella-stories-Q8_0.gguf"


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    guess_always(monkeypatch)


def tiny(folder: Path, name: str = "llama", seed: int = 0) -> Path:
    path = folder / f"{name}-{seed}.gguf"
    if not path.exists():
        write_model(TINY[name], path, GGMLType.Q8_0, seed=seed)
    return path


@pytest.mark.parametrize(("name", "temperature"), combinations(["llama", "mixtral"], [0.0, 0.9]))
def test_its_own_guesses_come_true(tmp_path: Path, name: str, temperature: float) -> None:
    """A model that guesses for itself is right, at any temperature: it draws the same numbers."""
    path = tiny(tmp_path, name)
    options: dict[str, Any] = {"temperature": temperature, "spec_type": "draft-simple"}
    with opened(path) as instance:
        expected = texts(instance, temperature=temperature)
    with opened(path, path) as instance:
        for _ in range(2):  # then prefixes are shared
            found = texts(instance, **options)
            assert [probs for probs, *_ in found] == [probs for probs, *_ in expected]
            n, n_right = sum(n for _, n, _ in found), sum(n for *_, n in found)
            assert n > 100 and n_right > 0.97 * n
        assert instance.engine.draft_model is not None
        pool = instance.engine.draft_model.context.pool
        assert pool.n_free == pool.n_pages  # texts that ended have none


def test_wrong_guesses_change_nothing(tmp_path: Path) -> None:
    path = tiny(tmp_path)
    with opened(path) as instance:
        expected = texts(instance, temperature=0.9)
    with opened(path, tiny(tmp_path, seed=1)) as instance:
        found = texts(instance, temperature=0.9, repeat_penalty=1.2, spec_type="draft-simple")
        other = texts(instance, temperature=0.9, spec_type="draft-simple")
    assert [probs for probs, *_ in other] == [probs for probs, *_ in expected]
    assert sum(n for _, n, _ in found) > 100


def test_devices_of_its_own(tmp_path: Path) -> None:
    path = tiny(tmp_path)
    options: dict[str, Any] = {
        "devices": ("sim",),
        "n_gpu_layers": 1,
        "op_offload": False,
        "draft_devices": ("none",),
    }
    with opened(path, **options) as instance:
        expected = texts(instance, temperature=0.0)
    with opened(path, path, **options) as instance:
        found = texts(instance, temperature=0.0)
        assert instance.engine.draft_model is not None
        devices = instance.engine.draft_model.context.model.devices
        assert [device.name for device in devices] == ["CPU"]
        assert {d.name for d in instance.context.model.devices} == {"SIM0", "CPU"}
    assert [probs for probs, *_ in found] == [probs for probs, *_ in expected]
    assert sum(n for _, n, _ in found) > 50


def test_another_vocabulary_is_translated(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    prompt = "Once upon a time, there was a little girl named"
    draft = SHIPPED.parent.parent / ".." / "shared" / "models" / "stories260K-Q8_0.gguf"
    if not draft.exists():
        pytest.skip("the other model is not there")

    def text(instance: Instance) -> tuple[str, int]:
        params = RequestParams.make({"n_predict": 60, "temperature": 0})
        tokens = instance.vocab.tokenize(prompt)
        generation = generate(instance.engine, instance.vocab, tokens, params)
        return "".join(piece.text for piece in generation), generation.result.timings.draft_n

    options: dict[str, Any] = {"n_ctx": 512, "n_ubatch": 512}
    with opened(SHIPPED, **options) as instance:
        expected, _ = text(instance)
    caplog.set_level(logging.WARNING, "lamella")
    with opened(SHIPPED, draft, **options) as instance:
        assert "has another vocabulary" in caplog.text
        found, n = text(instance)
        vocab = instance.vocab
    assert found == expected
    assert n > 0
    assert same_vocabulary(vocab, vocab)
    there = Translation(vocab, vocab, {vocab.piece(i): i for i in range(3, vocab.n_tokens)})
    some = vocab.tokenize(prompt, add_special=False)
    assert there.back(some, 99)[:3] == some[:3]


def test_a_broken_draft_model_fails_no_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tiny(tmp_path)
    with opened(path) as instance:
        expected = texts(instance, temperature=0.0)
    with opened(path, path) as instance:
        model = instance.engine.draft_model
        assert model is not None

        def broken(batch: object) -> Any:
            raise BackendError("the device is gone")

        monkeypatch.setattr(model.context, "decode_rows", broken)
        assert texts(instance, temperature=0.0, spec_type="draft-simple") == [
            (probs, 0, 0) for probs, *_ in expected
        ]
        assert model.is_broken
    assert caplog.text.count("the draft model failed, and guesses no more: the device is gone") == 1


def test_a_long_prompt_is_evaluated_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny(tmp_path)
    sizes: list[int] = []
    original = DraftModel._evaluate

    def evaluate(self: DraftModel, text: Any, tokens: Sequence[int]) -> None:
        sizes.append(len(tokens))
        original(self, text, tokens)

    monkeypatch.setattr(DraftModel, "_evaluate", evaluate)
    with opened(path, path) as instance:
        params = RequestParams.make({"n_predict": 30, "temperature": 0, "ignore_eos": True})
        generation = generate(instance.engine, instance.vocab, [1, *range(3, 103)], params)
        for _ in generation:
            pass
        assert generation.result.timings.draft_n > 0
    assert sizes[:3] == [32, 32, 32]
    assert max(sizes) == 32


def test_options() -> None:
    params = OpenParams.make({"path": str(SHIPPED), "draft_model": str(SHIPPED), "n_ctx": 256})
    plan = plan_model(params)
    assert plan.draft is not None
    assert (plan.draft.n_ctx, plan.draft.n_seq_max) == (plan.n_ctx, plan.n_seq_max)
    host = plan.devices[-1]
    assert plan.draft.devices[-1].free <= host.free - host.needed + (64 << 20)


@pytest.mark.parametrize(("name", "value"), [("draft_model", str(SHIPPED)), ("draft_mtp", True)])
def test_an_embedding_model_has_none(name: str, value: object) -> None:
    params = OpenParams.make({"path": str(SHIPPED), "embeddings": True, name: value})
    with pytest.raises(RequestError, match=f"{name}: embeddings need no guesses"):
        plan_model(params)


def test_what_a_draft_model_s_plan_says(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its flags without effect, and nodes on other devices, also by --placement strict."""
    given = {"path": str(SHIPPED), "draft_model": str(SHIPPED), "devices": ("none",), "n_ctx": 512}
    params = OpenParams.make({**given, "draft_overrides": (("ffn_dwon", "CPU"),)})
    enforce(plan_model(params))
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == [
        "-otd: no weight matches 'ffn_dwon'"
    ]
    enforce(plan_model(params.change(draft_overrides=(), draft_cpu_moe=-1)))
    assert caplog.messages[-1].startswith("-cmoed and -ncmoed have no effect")
    supports_op = SimDevice.supports_op
    monkeypatch.setattr(
        SimDevice, "supports_op", lambda self, t: t.op is not Op.ROPE and supports_op(self, t)
    )
    params = OpenParams.make({**given, "draft_devices": ("sim",), "draft_gpu_layers": -1})
    enforce(plan_model(params))
    assert "the draft model: 10 ROPE nodes run on CPU, not on SIM0" in caplog.messages[-1]
    with pytest.raises(PlacementError, match="ROPE nodes run on CPU, not on SIM0"):
        enforce(plan_model(params.change(placement="strict")))


def test_a_draft_model_is_where_the_model_is() -> None:
    given = {"path": str(SHIPPED), "n_ctx": 256, "devices": ("sim:1GiB:2",), "fit": False}
    both = {**given, "draft_model": str(SHIPPED), "kv_offload": False}
    for name, value in (("split_mode", "none"), ("tensor_split", (0.0, 1.0))):
        params = OpenParams.make({**both, name: value, "main_gpu": int(name == "split_mode")})
        plan = plan_model(params)
        assert plan.draft is not None
        for each in (plan, plan.draft):
            gpu, cpu = each.devices
            assert gpu.name == "SIM1" and gpu.n_layers == each.n_layers
            assert sum(m.kv for m in gpu.memory) == 0 < sum(m.kv for m in cpu.memory)
    draft = plan_model(params.change(draft_devices=("sim",))).draft
    assert draft is not None and [device.name for device in draft.devices] == ["SIM0", "CPU"]


def test_a_draft_model_that_does_not_fit() -> None:
    options = {"path": str(SHIPPED), "n_ctx": 256, "devices": ("sim:12MiB",), "fit": False}
    fits = plan_model(OpenParams.make({**options, "n_gpu_layers": -1}))
    check(fits)
    plan = plan_model(
        OpenParams.make(
            {**options, "n_gpu_layers": -1, "draft_model": str(SHIPPED), "draft_gpu_layers": -1}
        )
    )
    with pytest.raises(DoesNotFitError):
        check(plan)


def test_a_request_needs_a_draft_model(tmp_path: Path) -> None:
    with (
        opened(tiny(tmp_path)) as instance,
        pytest.raises(RequestError, match="needs a draft model"),
    ):
        texts(instance, spec_type="draft-simple")


def test_probabilities() -> None:
    row = np.log(np.array([0.1, 0.2, 0.7], np.float32))
    assert probability(row, 1) == pytest.approx(0.2)
    top = TopLogits(np.array([2, 1], np.int32), row[[2, 1]])
    assert probability(top, 2) == pytest.approx(0.7 / 0.9)


def test_texts_share_a_small_pool_of_the_draft_model(tmp_path: Path) -> None:
    """Where there is no page for its guesses, a text has none; the others go on."""
    path = tiny(tmp_path)
    with opened(path, n_ctx=320) as instance:
        expected = texts(instance, temperature=0.0, n_predict=30)
    with opened(path, path, n_ctx=320) as instance:
        for _ in range(2):
            found = texts(instance, temperature=0.0, n_predict=30)
            assert [probs for probs, *_ in found] == [probs for probs, *_ in expected]
        assert instance.engine.draft_model is not None
        assert not instance.engine.draft_model.is_broken
        assert sum(n for _, n, _ in found) > 20


def test_a_token_that_the_draft_model_has_not(tmp_path: Path) -> None:
    large, small = tmp_path / "large.gguf", tmp_path / "small.gguf"
    write_model(replace(TINY["llama"], n_vocab=400), large, GGMLType.Q8_0)
    write_model(TINY["llama"], small, GGMLType.Q8_0)
    with opened(large, small) as instance:
        model = instance.engine.draft_model
        assert model is not None
        params = RequestParams.make({"n_predict": 20, "temperature": 0, "ignore_eos": True})
        for prompt in ([1, 5, 395], [1, 5, 6]):
            for _ in generate(instance.engine, instance.vocab, prompt, params):
                pass
        assert not model.is_broken
