"""`scripts/bench recurrent`: it measures every op of the given shapes."""

from __future__ import annotations

import json

import bench_attention
import bench_recurrent
import pytest
from recurrent_cases import conv, scan

from lamella.kernels.cpu.ceiling import Ceiling


def test_a_line_for_each_op(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = bench_recurrent.Layer(
        {
            "ssm_conv": (lambda n: conv(32, 4, bias=True, n=n), 3 * 32),
            "ssm_scan": (lambda n: scan(8, 4, 16, 1, n=n), 16 * 32),
        },
        ((64, 96), (32, 64)),
    )
    monkeypatch.setattr(bench_recurrent, "SHAPES", {"small": layer})
    monkeypatch.setattr(bench_recurrent, "measure_apart", lambda *_: Ceiling(1e10, *[1e11] * 4))
    monkeypatch.setattr(bench_attention, "TRIAL_S", 0)
    options = "--shapes small --steps 1x5,3x1 --trials 1 --threads 1"
    bench_recurrent.main(options.split())
    _, _, names, *lines, last = capsys.readouterr().out.splitlines()
    assert names.split() == ["shape", "op", "step", "us", "tokens/s", "of", "limit"]
    assert [line.split()[:3] for line in lines] == [
        ["small", op, step]
        for step in ("1x5", "3x1")
        for op in ("ssm_conv", "ssm_scan", "products")
    ]
    results = json.loads(last)["results"]
    assert all(r["us"] > 0 for r in results)
    assert all(r["limit"] > 0 for r in results if r["op"] != "products")
