"""A block of the file guesses for its model: texts stay the same, and its guesses come true."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from draft_world import PROMPTS, guess_always, opened, texts
from nextn_models import ARCHS, write_both, write_nextn
from numpy_forward import forward_block, hidden_states
from open_params import open_params
from planning import sim
from tiny_models import TINY, write_model

from lamella.alloc import buffer_of
from lamella.base.errors import BackendError, DoesNotFitError, RequestError, UnsupportedModelError
from lamella.graph import GGMLType
from lamella.runtime.engine.drafts import speculation
from lamella.runtime.engine.drafts.block import DraftBlock
from lamella.runtime.engine.drafts.source import Draft
from lamella.runtime.engine.ticket import Ticket
from lamella.runtime.fit import plan_model
from lamella.runtime.open import open_instance
from lamella.runtime.params import RequestParams
from lamella.runtime.text import generate

MTP: dict[str, Any] = {"spec_type": "draft-mtp"}


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    guess_always(monkeypatch)


def n_used(block: object) -> int:
    """The pages in use of a block that works."""
    assert isinstance(block, DraftBlock) and not block.is_broken
    pool = block.context.pool
    return pool.n_pages - pool.n_free


@pytest.mark.parametrize(
    ("name", "temperature"),
    [
        *(("deepseek2", 0.9), ("exaone-moe", 0.0), ("qwen35", 0.0)),
        *(pytest.param(*one, marks=pytest.mark.full) for one in (("llama", 0.0), ("mixtral", 0.9))),
    ],
)
def test_texts_are_the_same(tmp_path: Path, name: str, temperature: float) -> None:
    """Several at once, then with shared prefixes. Some have latent rows, windows or
    states."""
    path = tmp_path / "m.gguf"
    if name in ARCHS:
        write_both(name, path, tmp_path / "one.gguf")
    else:
        write_nextn(TINY[name], path, GGMLType.Q8_0)
    options: dict[str, Any] = {"temperature": temperature}
    with opened(path) as instance:
        expected = [probs for probs, *_ in texts(instance, **options)]
    with opened(path, draft_mtp=True) as instance:
        for _ in range(2):
            found = texts(instance, **options, **MTP)
            assert [probs for probs, *_ in found] == expected
            assert sum(n for _, n, _ in found) > 100
        assert n_used(instance.engine.draft_model) == 0  # texts that ended have no pages
        found = texts(instance, **options, spec_type="none")
        assert found == [(probs, 0, 0) for probs in expected]


def test_good_guesses_come_true(tmp_path: Path) -> None:
    """A model that looks at the last token only, and a block that does the same."""
    tiny, path = TINY["llama"], tmp_path / "m.gguf"
    write_nextn(tiny, path, GGMLType.Q8_0, like_model=True)
    with opened(path) as instance:
        expected = [probs for probs, *_ in texts(instance, temperature=0.9)]
    with opened(path, draft_mtp=True) as instance:
        for spec_type in ("draft-mtp", "auto"):
            found = texts(instance, temperature=0.9, spec_type=spec_type)
            assert [probs for probs, *_ in found] == expected
            n, n_right = sum(n for _, n, _ in found), sum(n for *_, n in found)
            assert n > 100 and n_right > 0.9 * n


def test_guesses_are_those_of_numpy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of texts whose hidden states are all known: also after wrong guesses."""
    tiny, path = TINY["mixtral"], tmp_path / "m.gguf"
    w = write_nextn(tiny, path)
    found: list[tuple[list[int], Sequence[int]]] = []
    original = DraftBlock._draft

    def draft(self: DraftBlock, tickets: Sequence[Ticket], sizes: Sequence[int]) -> list[Draft]:
        drafts = original(self, tickets, sizes)
        found.extend((list(t.tokens), d.tokens) for t, d in zip(tickets, drafts, strict=True))
        return drafts

    monkeypatch.setattr(DraftBlock, "_draft", draft)
    # as many guesses as may be, whatever the times of steps are
    monkeypatch.setattr(speculation, "best_depth", lambda _, n_texts, n_max, *__: n_max)
    with opened(path, draft_mtp=True, type_k="F32", type_v="F32", n_ubatch=64) as instance:
        texts(instance, PROMPTS[1::-1], temperature=0.0, n_predict=20, cache_prompt=False, **MTP)
    assert len(found) > 10
    n = n_right = 0
    for tokens, guesses in found:
        hidden = hidden_states(tiny, w, tokens[:-1])
        text = tokens[1:]
        for guess in guesses:
            logits, own = forward_block(tiny, w, text, hidden)
            n, n_right = n + 1, n_right + int(logits[-1].argmax() == guess)
            text, hidden = [*text, guess], np.concatenate([hidden, own[-1:]])
    assert n > 60 and n_right == n


def test_a_small_pool(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_nextn(TINY["llama"], path, GGMLType.Q8_0)
    options: dict[str, Any] = {"n_ctx": 160, "n_parallel": 3}
    with opened(path, **options) as instance:
        expected = [probs for probs, *_ in texts(instance, temperature=0.9)]
    with opened(path, draft_mtp=True, **options) as instance:
        found = texts(instance, temperature=0.9, **MTP)
        assert [probs for probs, *_ in found] == expected
        assert sum(n for _, n, _ in found) > 20
        assert n_used(instance.engine.draft_model) == 0


def test_long_prompts_and_shared_prefixes(tmp_path: Path) -> None:
    """The block sees a text from where hidden states are known: the end of a long prompt, or what
    follows a shared prefix."""
    path = tmp_path / "m.gguf"
    write_nextn(TINY["llama"], path, GGMLType.Q8_0)
    first = [1, *(3 + i % 250 for i in range(120))]
    with opened(path) as instance:
        expected = [probs for probs, *_ in texts(instance, [first], temperature=0.0)]
    with opened(path, draft_mtp=True) as instance:
        block = instance.engine.draft_model
        assert isinstance(block, DraftBlock)
        seen: list[int] = []
        original = block.context.decode_rows

        def decode_rows(batch: Any) -> Any:
            seen.append(batch.runs[0].pos + len(batch.runs[0].tokens))
            return original(batch)

        block.context.decode_rows = decode_rows  # type: ignore[method-assign]
        for longest in (32, 1):  # of 121 tokens the last ubatch; of shared ones the last
            seen.clear()
            found = texts(instance, [first], temperature=0.0, **MTP)
            assert [probs for probs, *_ in found] == expected
            assert found[0][1] > 20
            assert seen[0] == longest


def test_a_cancelled_text_gives_its_pages_back(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_nextn(TINY["llama"], path, GGMLType.Q8_0)
    with opened(path, draft_mtp=True) as instance:
        params = RequestParams.make({"n_predict": 400, "ignore_eos": True, **MTP})
        generation = generate(instance.engine, instance.vocab, PROMPTS[0], params)
        for _, _ in zip(generation, range(10), strict=False):
            pass
        generation.cancel()
        texts(instance, PROMPTS[1:2])  # the engine has handled the end
        assert n_used(instance.engine.draft_model) == 0


def test_a_broken_block_fails_no_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.gguf"
    write_nextn(TINY["llama"], path, GGMLType.Q8_0)
    with opened(path, draft_mtp=True) as instance:
        expected = [probs for probs, *_ in texts(instance, temperature=0.0, spec_type="none")]
        block = instance.engine.draft_model
        assert isinstance(block, DraftBlock)

        def broken(batch: object) -> Any:
            raise BackendError("the device is gone")

        monkeypatch.setattr(block.context, "decode_rows", broken)
        found = texts(instance, temperature=0.0, **MTP)
        assert found == [(probs, 0, 0) for probs in expected]
        assert block.is_broken


def test_devices(tmp_path: Path) -> None:
    """The model on an emulated GPU and the CPU, the block on either."""
    path = tmp_path / "m.gguf"
    write_nextn(TINY["llama"], path, GGMLType.Q8_0)
    options: dict[str, Any] = {"devices": ("sim",), "n_gpu_layers": 2, "op_offload": False}
    with opened(path, **options) as instance:
        expected = [probs for probs, *_ in texts(instance, temperature=0.0)]
    for draft_devices in (("sim",), ("none",)):
        with opened(path, draft_mtp=True, draft_devices=draft_devices, **options) as instance:
            found = texts(instance, temperature=0.0, **MTP)
            assert [probs for probs, *_ in found] == expected
            assert sum(n for _, n, _ in found) > 100


def test_a_plan_has_the_block(tmp_path: Path) -> None:
    tiny, path = TINY["mixtral"], tmp_path / "m.gguf"
    w = write_nextn(tiny, path, own_head=True)
    params = open_params(path, draft_mtp=True, n_ctx=256, devices=("none",))
    plan = plan_model(params)
    assert plan.draft is not None and plan.draft.is_block
    assert (plan.draft.n_layers, plan.draft.n_ctx) == (2, plan.n_ctx)
    own = [values.nbytes for name, values in w.items() if name.startswith("blk.2.")]
    assert plan.draft.n_bytes == sum(own)
    assert plan.no_pipeline
    with opened(path, draft_mtp=True, n_ctx=256) as instance:
        block = instance.engine.draft_model
        assert block is not None and instance.plan.draft is not None
        texts(instance, temperature=0.0, **MTP)
        for context, own_plan in (
            (instance.context, instance.plan),
            (block.context, instance.plan.draft),
        ):
            used = sum(context.buffer_bytes().values())
            assert used == sum(device.needed for device in own_plan.devices)
    without = plan_model(params.change(draft_mtp=False))
    assert without.draft is None and without.n_bytes == plan.n_bytes


BOTH = {"token_embd.weight", "output.weight"}
GPU: dict[str, Any] = {"devices": ("sim",), "n_gpu_layers": -1, "op_offload": False}
# where the model and the block are; the weights in common that are in memory once, and why not all
PLACES: dict[str, tuple[dict[str, Any], set[str], str]] = {
    "cpu": ({}, BOTH, ""),
    "a device": (GPU, BOTH, ""),
    "the embeddings, too": (GPU | {"embd_offload": True}, BOTH, ""),
    "a part on a device": (GPU | {"n_gpu_layers": 2}, BOTH, ""),
    "nothing on the device": (GPU | {"n_gpu_layers": 0}, BOTH, ""),
    "the block's layer on the cpu": (GPU | {"draft_gpu_layers": 0}, BOTH, ""),
    "a device and the cpu": (
        GPU | {"draft_devices": ("none",)},
        {"token_embd.weight"},
        "the model's is on SIM0, none of the block's devices",
    ),
    "two devices": (GPU | {"devices": ("sim:1GiB:2",), "embd_offload": True}, BOTH, ""),
    "two devices, and the first": (
        GPU | {"devices": ("sim:1GiB:2",), "draft_devices": ("sim",), "embd_offload": True},
        {"token_embd.weight"},
        "the model's is on SIM1, none of the block's devices",
    ),
    "an override": (
        GPU | {"draft_overrides": (("output.weight", "CPU"),)},
        {"token_embd.weight"},
        "the model's is in SIM0, an override says CPU_REPACK",
    ),
    "an override of the model": (GPU | {"overrides": (("output.weight", "CPU"),)}, BOTH, ""),
    "plain layout": ({"repack": False}, BOTH, ""),
}


@pytest.mark.parametrize("name", PLACES)
def test_weights_in_common_are_in_memory_once(tmp_path: Path, name: str) -> None:
    """The plan counts every byte: those of the model, and what the block has beside it."""
    options, shared, why = PLACES[name]
    path = tmp_path / "m.gguf"
    write_nextn(TINY["llama"], path, GGMLType.Q8_0)
    with opened(path, draft_mtp=True, placement="strict", **options) as instance:
        block = instance.engine.draft_model
        assert block is not None and instance.plan.draft is not None
        texts(instance, PROMPTS[:2], temperature=0.0, **MTP)
        plans = (instance.plan, instance.plan.draft)
        models = (instance.context.model, block.context.model)
        for context, plan in zip((instance.context, block.context), plans, strict=True):
            found = {key: n for key, n in context.buffer_bytes().items() if n}
            memory = [m for device in plan.devices for m in device.memory]
            assert found == {
                (m.buffer_type, use): n for m in memory for use, n in m.by_usage().items() if n
            }
        assert {name for weight in plans[1].shared for name in weight.name.split(", ")} == shared
        for weight in BOTH:
            same = models[0].weights[weight] is models[1].weights[weight]
            assert same is (weight in shared)
        bufts = {buffer_of(w).buft for model in models for w in model.weights.values()}
        owned = [buffer for model in models for buffer in model.buffers]
        for buft in bufts:
            assert buft.used >= sum(b.size for b in owned if b.buft is buft) > 0
    assert all(buft.used == 0 for buft in bufts)
    twice = "output.weight is in memory twice (19.12 KiB): "
    assert list(instance.plan.draft.copied) == ([twice + why] if why else [])


@pytest.mark.parametrize("name", ["llama", "llama-tied"])
def test_a_shared_weight_saves_its_bytes(tmp_path: Path, name: str) -> None:
    """A block with its own embeddings and matrix needs as much more memory as these take."""
    own_weights = []
    for own_head in (False, True):
        path = tmp_path / f"{own_head}.gguf"
        write_nextn(TINY[name], path, own_head=own_head)
        draft = plan_model(open_params(path, draft_mtp=True, n_ctx=256, devices=("none",))).draft
        assert draft is not None and bool(draft.shared) is not own_head
        own_weights.append(sum(m.weights for device in draft.devices for m in device.memory))
    tiny = TINY[name]
    assert own_weights[1] - own_weights[0] == 2 * 4 * tiny.n_vocab * tiny.n_embd


def test_both_fill_a_device_to_the_byte(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_nextn(TINY["llama"], path, GGMLType.Q8_0)
    options: dict[str, Any] = {**GPU, "draft_gpu_layers": -1, "embd_offload": True, "fit": False}
    plan = plan_model(open_params(path, draft_mtp=True, n_ctx=640, n_ubatch=32, **options))
    assert plan.draft is not None and len(plan.draft.shared) == 2
    needed = plan.devices[0].needed + plan.draft.devices[0].needed
    for lacking in (0, 1):
        given = options | {"devices": (sim(needed - lacking),)}
        with (
            pytest.raises(DoesNotFitError) if lacking else nullcontext(),
            opened(path, draft_mtp=True, **given) as instance,
        ):
            assert sum(n for _, n, _ in texts(instance, temperature=0.0, **MTP)) > 100


def test_what_is_refused(tmp_path: Path) -> None:
    path, other = tmp_path / "m.gguf", tmp_path / "n.gguf"
    write_nextn(TINY["llama"], path, GGMLType.Q8_0)
    write_model(TINY["llama"], other)
    with pytest.raises(UnsupportedModelError, match=r"n\.gguf: draft-mtp: the file has no block"):
        plan_model(open_params(other, draft_mtp=True))
    with pytest.raises(RequestError, match=r"draft_mtp: .*leave out draft_model"):
        plan_model(open_params(path, draft_mtp=True, draft_model=str(other)))
    with opened(path) as instance, pytest.raises(RequestError, match="start with --mtp"):
        texts(instance, **MTP)
    params = open_params(path, devices=("none",), n_ctx=256)
    for defaults in ({"spec_type": "draft-mtp"}, {"spec_type": ("draft-mtp", "ngram-simple")}):
        with open_instance(params, defaults=defaults) as instance:
            assert isinstance(instance.engine.draft_model, DraftBlock)
            with pytest.raises(RequestError, match="needs a draft model"):
                texts(instance, spec_type="draft-simple")
