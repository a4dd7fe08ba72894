"""benchmarks/bench_window.py: attention's time by group of layers, and memory against the plan."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import bench_window
import pytest
from make_model import write_model
from shapes import Shape
from weight_types import Type

SMALL = Shape(
    arch="gemma3",
    n_embd=64,
    n_ff=96,
    n_layer=7,
    n_head=2,
    n_head_kv=1,
    n_embd_head=32,
    n_vocab=512,
    n_swa=32,
    tied=True,
)


def test_the_table_and_its_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.gguf"
    write_model(SMALL, Type.Q4_0, path)
    flags = ["--depths", "100,40", "-n", "2", "-t", "1"]
    monkeypatch.setattr(sys, "argv", ["bench_window.py", str(path), *flags])
    bench_window.main()
    *lines, last = capsys.readouterr().out.splitlines()
    found = json.loads(last)
    assert found["n_ctx"] == 102
    assert list(found["ms"]) == ["40", "100"]
    for times in found["ms"].values():
        assert set(times) == {"window 32", "full"}
        assert all(ms > 0 for ms in times.values())
    assert found["plan"] > path.stat().st_size
    assert lines[0] == "| depth | window 32: ms/layer | full: ms/layer |"
    assert len(lines) == 6


@pytest.mark.parametrize("flags", [["--depths", "3"], ["-n", "0"]])
def test_wrong_flags(flags: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["bench_window.py", "model.gguf", *flags])
    with pytest.raises(SystemExit, match="2"):
        bench_window.main()
