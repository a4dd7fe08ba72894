"""Golden models of many architectures: tiny random models, and Hugging Face transformers' results.

A model NAME.gguf has its cases in NAME.json.
"""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lamella.model.arch import ARCHITECTURES
from lamella.model.gguf import open_gguf

F64Array = npt.NDArray[np.float64]
SHARED = Path(os.environ.get("LAMELLA_TEST_DATA", Path(__file__).parents[3] / "shared"))
# LAMELLA_TEST_ARCHS: another folder of golden models
FOLDER = Path(os.environ.get("LAMELLA_TEST_ARCHS", SHARED / "golden" / "arch"))

LIMIT = 1e-4
NEAR = 0.01  # the two best logits may change places if they are so close
# experts in MXFP4: the compiled kernels round activations
LIMITS = {"tiny-gpt-oss": 2e-3}
NEAR_ROUNDED = 0.05


@cache
def is_known(path: Path, result: str) -> bool:
    """True if the architecture of a golden model is supported, and its cases have this result."""
    with open_gguf(path) as file:
        known = file.metadata.str("general.architecture") in ARCHITECTURES
    return known and result in cases_of(path)[0]


@cache
def cases_of(path: Path) -> list[dict[str, Any]]:
    """Return the cases of a golden model."""
    cases: list[dict[str, Any]] = json.loads(path.with_suffix(".json").read_text())["cases"]
    return cases


FILES = sorted(FOLDER.glob("*.gguf"))
GOLDENS = {path.stem: path for path in FILES if is_known(path, "next_token_logprobs")}
EMBEDDINGS = {path.stem: path for path in FILES if is_known(path, "embedding")}


def check_case(name: str, case: dict[str, Any], logits: npt.NDArray[np.float32]) -> None:
    """Compare the logits of a prompt [n_tokens, n_vocab] with a case."""
    expected = np.array(case["next_token_logprobs"])
    assert divergence(expected, log_softmax(logits[-1])) <= LIMITS.get(name, LIMIT)
    rows = np.arange(len(logits))
    lead = logits.max(axis=-1) - logits[rows, case["argmax_per_position"]]
    assert lead.max() <= (NEAR_ROUNDED if name in LIMITS else NEAR)


def log_softmax(x: npt.NDArray[np.floating[Any]]) -> F64Array:
    """Return log-probabilities of logits."""
    y = x.astype(np.float64)
    y -= y.max(axis=-1, keepdims=True)
    y -= np.log(np.exp(y).sum(axis=-1, keepdims=True))
    return y


def divergence(expected: F64Array, actual: F64Array) -> float:
    """Return the Kullback-Leibler divergence of log-probabilities."""
    return float((np.exp(expected) * (expected - actual)).sum())
