"""`scripts/bench attention`: it measures every combination of its options."""

from __future__ import annotations

import json

import bench_attention
import pytest


def test_a_line_for_each_case(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_attention, "TRIAL_S", 0)
    options = "--heads 4/2x32,2/2x16 --types f16,q4_0 --seqs 1,2 --depths 3 --trials 1 --threads 1"
    bench_attention.main(options.split())
    first, second, *lines, last = capsys.readouterr().out.splitlines()
    assert first.endswith("1 threads, median of 1")
    assert second.split() == ["heads", "type", "seqs", "tokens", "depth", "us"]
    results = json.loads(last)["results"]
    assert len(lines) == len(results) == 8
    assert [line.split()[:3] for line in lines[:3]] == [
        ["4/2x32", "f16", "1"],
        ["4/2x32", "f16", "2"],
        ["4/2x32", "q4_0", "1"],
    ]
    assert all(result["us"] > 0 for result in results)
