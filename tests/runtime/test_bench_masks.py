"""benchmarks/bench_masks.py: decoding with and without a schema, on texts that match it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import bench_masks
import pytest
from make_model import write_model
from shapes import Shape
from weight_types import Type

SMALL = Shape(n_embd=64, n_ff=96, n_layer=1, n_head=2, n_head_kv=2, n_vocab=512)


def test_both_kinds_of_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.gguf"
    write_model(SMALL, Type.Q4_0, path)
    flags = ["-np", "2", "-n", "100", "-r", "1", "-t", "1"]
    monkeypatch.setattr(sys, "argv", ["bench_masks.py", str(path), *flags])
    bench_masks.main()
    *lines, last = capsys.readouterr().out.splitlines()
    [found] = json.loads(last)
    assert (found["model"], found["n_seq"]) == ("model", 2)
    assert found["free"] > 0 and found["guided"] > 0 and found["mask_us"] > 0
    assert len(lines) == 3
