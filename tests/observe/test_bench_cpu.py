"""benchmarks/bench_cpu.py: the table of all types, with and without llama.cpp."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import bench_cpu
import pytest
import turns
from bench_cpu import Cell, Row
from make_model import write_model
from shapes import Shape
from weight_types import WEIGHTS

SMALL = Shape(n_embd=256, n_ff=256, n_layer=1, n_head=4, n_head_kv=2, n_vocab=512)


def run(
    flags: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> list[str]:
    monkeypatch.setattr(sys, "argv", ["bench_cpu.py", *flags])
    bench_cpu.main()
    return capsys.readouterr().out.splitlines()


def test_the_table_without_llama_cpp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_model(SMALL, WEIGHTS["Q4_K_M"], tmp_path / "15m-Q4_K_M.gguf")
    monkeypatch.setattr(bench_cpu, "has_llama_cpp", lambda: False)
    flags = ["--shape", "15m", "--types", "Q4_K_M", "--tests", "tg,tg8", "-r", "2", "-t", "1"]
    *lines, last = run([*flags, "--models", str(tmp_path), "--json"], monkeypatch, capsys)
    assert "1 threads. Lamella 0." in lines[0] and "llama.cpp" not in lines[0]
    assert lines[1].startswith("Reads ")
    head, rule, row = lines[3:]
    assert head.startswith("| type | MiB | tg16 @ d16 | of llama.cpp | of ceiling | tg16 @ d16 x 8")
    assert head.count("|") == rule.count("|") == row.count("|") == 9
    assert row.startswith("| Q4_K_M | 0 | ")
    found = json.loads(last)
    assert [len(cell["samples"]["lamella"]) for cell in found["rows"][0]["cells"]] == [2, 2]

    result = tmp_path / "result.txt"
    result.write_text(f"a table\n{last}\n")
    section = run(["--markdown", str(result), str(result)], monkeypatch, capsys)
    assert section[0] == f"### {found['setting']['processor']}"
    assert section[4:] == [head, rule, row]


def test_a_cell_has_the_spread_of_adjacent_ratios() -> None:
    samples = {turns.LLAMA_CPP: [10.0, 5.0, 10.0], turns.LAMELLA: [19.0, 10.0, 30.0]}
    assert Cell("pp", samples, 38.0).texts() == ("19.0", "2.00 (1.90..3.00)", "50%")
    alone = Cell("pp", {turns.LAMELLA: [19.0]}, 38.0)
    assert alone.texts() == ("19.0", "", "50%")
    row = Row("1b", "Q4_0", 3 << 20, [alone], {})
    assert row.text() == "| Q4_0 | 3 | 19.0 |  | 50% |"


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--types", "Q9"], "unknown: Q9"),
        (["--tests", "pp,tg9"], "unknown: tg9"),
        (["-t", "0"], "--threads and --repetitions must be at least 1"),
    ],
)
def test_wrong_flags(
    flags: list[str],
    complaint: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit, match="2"):
        run(flags, monkeypatch, capsys)
    assert complaint in capsys.readouterr().err
