"""Parameters of ROPE for the tests of all backends."""

from __future__ import annotations

from typing import Any

import pytest

from lamella.graph import RopeMode

each_mode = pytest.mark.parametrize("mode", RopeMode, ids=lambda mode: mode.name)

YARN: dict[str, Any] = {"n_ctx_orig": 4096, "freq_scale": 0.25, "ext_factor": 1.0}
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "base": {"freq_base": 500_000.0},
    "linear": {"freq_scale": 0.125},
    "magnitude": {"attn_factor": 1.3},
    "yarn": YARN,
    "yarn, less": {**YARN, "ext_factor": 0.7, "attn_factor": 0.9, "freq_base": 1e6},
    "yarn, no pair is slow": {**YARN, "freq_base": 10.0, "beta_fast": 256.0},
    "yarn, no pair is fast": {**YARN, "n_ctx_orig": 100},
    "yarn, betas": {**YARN, "beta_fast": 16.0, "beta_slow": 2.0, "n_ctx_orig": 32768},
}
