"""Memory: weights are in memory once, also during the load, and the KV pool only as it is used."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import make_model
import pytest
from shapes import SHAPES
from weight_types import Type

from lamella.base.settings import STRICT

MARGIN = 60 << 20  # bytes; much less than the file
N_LAYER, N_CTX = 16, 8192
HUGE_PAGE = 2 << 20
N_LONG = 131072
LONG = replace(SHAPES["15m"], n_layer=4, n_ctx=N_LONG)


def measured(*args: object) -> dict[str, int]:
    """The report of `memory_process.py`."""
    command = [sys.executable, str(Path(__file__).with_name("memory_process.py")), *map(str, args)]
    env = {**os.environ, STRICT.name: "0"}  # strict mode writes the whole pool
    for _ in range(2):  # the first run may compile kernels, which needs memory
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=250, env=env
        )
    report: dict[str, int] = json.loads(done.stdout)
    return report


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells the peak")
def test_a_long_context_takes_memory_as_it_is_used(tmp_path: Path) -> None:
    path = tmp_path / "long.gguf"
    make_model.write_model(LONG, Type.Q4_0, path)
    report = measured(path)
    assert report["kv"] >= N_LONG * LONG.n_layer * 2 * 2 * LONG.n_head_kv * LONG.head_dim
    limit = report["imports"] + path.stat().st_size + report["compute"] + MARGIN
    assert report["kv"] > 8 * MARGIN
    assert report["peak"] < limit, f"{report}: {limit} is allowed"


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells the peak")
def test_the_peak_is_one_copy_of_the_weights_and_the_used_part_of_the_pool(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    make_model.write_model(replace(SHAPES["110m"], n_layer=N_LAYER), Type.Q4_0, path)
    file_size = path.stat().st_size
    report = measured(path, str(N_CTX))
    used_kv = 2 * N_LAYER * 2 * HUGE_PAGE  # keys and values of each layer begin inside a page
    assert used_kv < report["kv"] / 2
    limit = report["imports"] + file_size + used_kv + report["compute"] + MARGIN
    assert file_size > MARGIN * 4 / 3
    assert report["peak"] < limit, f"{report}, a file of {file_size}: {limit} is allowed"
    assert report["peak"] > report["imports"] + file_size  # the peak includes the weights
