"""Models with states: their plans, to the byte, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from open_params import open_params
from state_models import write_state_model

from lamella.base.errors import UnsupportedModelError
from lamella.cli.main import main
from lamella.model import kv_groups
from lamella.runtime.fit import plan_model
from lamella.runtime.open import open_embedding, open_instance

CPU = open_params("", devices=("none",), n_threads=1, n_ctx=512, n_parallel=2)
# two layers: a convolution of four tokens over 64 + 2 * 2 * 16 channels, and matrices of 64 * 16
SLOT = 4 * 2 * (3 * 128 + 64 * 16)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_state_model("qwen35", path)
    return path


@pytest.mark.parametrize(("n_checkpoints", "n_slots"), [(None, 20), (0, 4), (3, 10)])
def test_the_plan_of_states_is_what_a_context_takes(
    path: Path, n_checkpoints: int | None, n_slots: int
) -> None:
    params = CPU.change(path=path, ctx_checkpoints=n_checkpoints)
    with open_instance(params) as instance:
        full, state = instance.plan.groups
        assert (state.name, state.layers, state.n_slots) == ("state", (0, 2), n_slots)
        assert (state.cell_bytes, state.n_bytes) == (SLOT, (n_slots + 1) * SLOT)
        assert state.is_fixed
        assert state.n_more_bytes(100_000) == 0
        buffers = instance.context.kv.buffers
        assert sum(buffer.size for buffer in buffers) == full.n_bytes + state.n_bytes


@pytest.mark.parametrize(("n_bytes", "n_each"), [(1 << 29, 8), (13 * SLOT, 3), (0, 1)])
def test_the_default_number_of_large_states_is_limited(
    path: Path, monkeypatch: pytest.MonkeyPatch, n_bytes: int, n_each: int
) -> None:
    monkeypatch.setattr(kv_groups, "CHECKPOINT_BYTES", n_bytes)
    states = plan_model(CPU.change(path=path, n_parallel=4)).groups[1]
    assert states.n_slots == 4 * (2 + n_each)


def test_plan_and_explain_show_the_states(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = [str(path), "-dev", "none", "-c", "512", "-np", "2"]
    assert main(["plan", *flags]) == 0
    line = "state: 2 layers (0, 2), 20 slots of 11.00 KiB, 231.00 KiB"
    text = " ".join(capsys.readouterr().out.split())
    assert line in text
    assert "for prompts that leave the context (-cram)" in text
    assert main(["explain", *flags]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert line in lines
    assert any("SSM_CONV" in each for each in lines)
    assert any("GATED_DELTA_NET" in each for each in lines)
    assert main(["plan", *flags, "--json"]) == 0
    groups = json.loads(capsys.readouterr().out)["groups"]
    assert [group["n_slots"] for group in groups] == [0, 20]


def test_what_models_with_states_cannot_do(path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="embeddings of 'qwen35' are not supported"):
        open_embedding(CPU.change(path=path, embeddings=True))
    with pytest.raises(UnsupportedModelError, match="draft_model: its layers keep states"):
        plan_model(CPU.change(path=path, draft_model=str(path)))
