"""make.py: makes all files, and repeats no step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tiny_model import tiny_shape

import lamella

torch = pytest.importorskip("torch", reason="PyTorch is only there with the extra `recipe`")

import evaluate  # noqa: E402
import make  # noqa: E402 - it needs PyTorch
import train  # noqa: E402

torch.set_num_threads(1)  # other tests may run at the same time


def test_make_creates_a_model_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate, "story_words", lambda seed: {"fox"})
    settings = make.Settings(
        n_bytes=400_000,
        n_bytes_held_out=200_000,
        n_documents_vocabulary=300,
        shape=replace(tiny_shape(), n_ctx=640),
        plan=train.Plan(n_steps=3, n_tokens=1280, n_warmup=1, measure_every=3, bf16=False),
        n_evaluated=1,
    )
    work, out = tmp_path / "work", tmp_path / "out"
    make.make(settings, work, out, lambda text: None)
    made = {file.name: file.stat().st_mtime_ns for file in work.iterdir()}
    (model,) = out.glob("*.gguf")
    shipped = {file.name for file in out.iterdir()}
    assert shipped == {model.name, f"{model.name}.sha256", "README.md", "loss.svg", "greedy.json"}
    assert model.read_bytes() == (work / model.name).read_bytes()
    with lamella.load(model, n_threads=1) as loaded:
        assert loaded.tokenize("Mia")
    logged: list[str] = []
    model.write_bytes(b"an older one, as every clone has it")
    make.make(settings, work, out, logged.append)
    assert {file.name: file.stat().st_mtime_ns for file in work.iterdir()} == made
    assert all("skipped" in text for text in logged)
    assert model.read_bytes() == (work / model.name).read_bytes()
    other = replace(settings, n_bytes=300_000, plan=replace(settings.plan, seed=2))
    with pytest.raises(SystemExit, match=r"made with another n_bytes, plan, plan\.seed: use"):
        make.make(other, work, out, logged.append)
