"""`scripts/bench speculative`: texts with guesses of given rates, and with n-grams of edits."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import bench_speculative
import pytest
from tiny_models import TINY, write_model

SPEEDS = r" +[\d.]+ +[\d.]+  x [\d.]+ \([\d.]+ to [\d.]+\)  guesses right: (none|[ \d]+ % of \d+)"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_model(TINY["llama"], path)
    return path


def lines_of(
    path: Path, flags: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> list[str]:
    monkeypatch.setattr(sys, "argv", ["bench_speculative.py", str(path), *flags.split()])
    bench_speculative.main()
    return capsys.readouterr().out.splitlines()


def test_a_line_for_each_case(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = "--texts 1,2 --rates 0,1 --n-max 3 -n 12 --runs 1 -t 1"
    lines = lines_of(model, flags, monkeypatch, capsys)
    assert len(lines) == 4
    names = [f"{n:3} texts, rate {rate}.00, 3 guesses:" for n in (1, 2) for rate in (0, 1)]
    for line, name in zip(lines, names, strict=True):
        assert re.fullmatch(re.escape(name) + SPEEDS, line), line
    shares = [line.partition("right:")[2].split() for line in lines]
    assert all(share[0] in ("none", "0") for share in shares[::2])
    assert all(share[0] in ("none", "100") for share in shares[1::2])


def test_edits(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = lines_of(model, "--edits --texts 1 -n 8 --runs 1 -t 1", monkeypatch, capsys)
    for line, temperature in zip(lines, ("0.0", "0.8"), strict=True):
        assert re.fullmatch(rf"  1 texts, temperature {temperature}:{SPEEDS}", line), line


def test_a_changed_text_ends_the_benchmark(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = iter(range(100))
    run = bench_speculative.run

    def wrong(*args: object) -> bench_speculative.Timed:
        timed = run(*args)  # type: ignore[arg-type]
        timed.texts[0][0] = next(texts)
        return timed

    monkeypatch.setattr(bench_speculative, "run", wrong)
    with pytest.raises(AssertionError, match="a guess changed a text"):
        lines_of(model, "--texts 1 --rates 1 --n-max 3 -n 4 --runs 1 -t 1", monkeypatch, capsys)


@pytest.mark.parametrize("flags", ["--texts x", "--rates 0.5;0.8", "-n x", ""])
def test_wrong_flags(flags: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = ["model.gguf"] if flags else []
    monkeypatch.setattr(sys, "argv", ["bench_speculative.py", *path, *flags.split()])
    with pytest.raises(SystemExit, match="2"):
        bench_speculative.main()
