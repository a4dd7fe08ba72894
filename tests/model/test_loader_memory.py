"""Memory: a model's weights are in memory once, also during the load and repacking."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import make_model
import pytest
from make_model import SHAPES, Type

MARGIN = 60 << 20  # bytes; much less than the file


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells the peak")
def test_the_peak_is_one_copy_of_the_weights(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    make_model.write_model(replace(SHAPES["110m"], n_layer=16), Type.Q4_0, path)
    file_size = path.stat().st_size
    command = [sys.executable, str(Path(__file__).with_name("memory_process.py")), str(path)]
    for _ in range(2):  # the first run may compile kernels, which needs memory
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=250)
    report = json.loads(done.stdout)
    limit = report["imports"] + file_size + report["kv"] + report["compute"] + MARGIN
    assert file_size > MARGIN * 4 / 3
    assert report["peak"] < limit, f"{report}, a file of {file_size}: {limit} is allowed"
    assert report["peak"] > report["imports"] + file_size  # the peak includes the weights
