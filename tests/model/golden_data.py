"""Paths and error limits of models and goldens outside the repository."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

ROOT = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("LAMELLA_TEST_DATA", ROOT.parent / "shared"))

STORIES = ("stories260K-F32", "stories260K-Q8_0", "stories260K-Q4_0")
TINY = tuple(
    f"tiny-{name}"
    for name in ("llama3-rope", "llama-linear", "qwen2", "qwen3", "mixtral", "qwen3moe")
)


def model_path(name: str) -> Path:
    """Return the path of a GGUF file. Skip the test if it does not exist."""
    return _existing(SHARED / "models" / f"{name}.gguf")


def golden_cases(name: str) -> list[dict[str, Any]]:
    """Return the golden cases of a model."""
    text = _existing(SHARED / "golden" / f"{name}.json").read_text()
    cases: list[dict[str, Any]] = json.loads(text)["cases"]
    return cases


def log_probs(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Return log-probabilities of one row of logits."""
    x = logits.astype(np.float64)
    x -= x.max()
    result: npt.NDArray[np.float64] = x - np.log(np.exp(x).sum())
    return result


def check_golden(name: str, case: dict[str, Any], logits: npt.NDArray[np.float32]) -> None:
    """Compare the logits of a prompt [n_tokens, n_vocab] with a case, by the goldens' limits."""
    golden = np.array(case["next_token_logprobs"])
    actual = log_probs(logits[-1])
    divergence = float((np.exp(golden) * (golden - actual)).sum())
    largest = float(np.abs(golden - actual)[golden > -20].max())
    if name in TINY:
        assert divergence <= 1e-5
        assert largest <= 0.02
        _check_best(case, logits)
    elif name == "stories260K-F32":
        assert divergence <= 5e-5
        assert largest <= 0.02
    else:
        assert divergence <= 5e-3


def _check_best(case: dict[str, Any], logits: npt.NDArray[np.float32]) -> None:
    for row, golden in zip(logits, case["argmax_per_position"], strict=True):
        first, second = np.sort(row)[-1], np.sort(row)[-2]
        assert row.argmax() == golden or first - second <= 0.01


def _existing(path: Path) -> Path:
    if not path.exists():
        pytest.skip(f"{path} is not there (set LAMELLA_TEST_DATA)")
    return path
