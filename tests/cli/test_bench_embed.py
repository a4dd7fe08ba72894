"""`lamella bench` on embedding models: a row for each length and number of texts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import lamella, tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("bench"))


def test_rates_of_texts(model: Path) -> None:
    args = ["bench", model, "--embeddings", "-p", "4,9", "-npl", "1,3", "-r", "2"]
    done = lamella(*args, "--json")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(row["n_tokens"], row["n_texts"]) for row in found] == [(4, 1), (4, 3), (9, 1), (9, 3)]
    for row in found:
        assert row["texts_per_s"] == [row["n_texts"] / seconds for seconds in row["seconds"]]
        assert len(row["seconds"]) == 2
    table = lamella(*args).stdout.splitlines()
    assert table[0].split("|")[3:5] == ["  texts ", " tokens "]
    assert len(table) == 6


def test_the_default_lengths_fit_the_context(model: Path) -> None:
    done = lamella("bench", model, "--pooling", "mean", "-npl", "1", "-r", "1", "--json")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert {row["n_tokens"] for row in found} == {32, 256}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["-n", "8"], "-n/--n-gen is for text: this model computes embeddings"),
        (["-d", "8"], "-d/--n-depth is for text: this model computes embeddings"),
        (["-p", "0"], "-p/--n-prompt is 0: a text has 1 to 256 tokens"),
        (["-p", "999"], "-p/--n-prompt is 999: a text has 1 to 256 tokens"),
    ],
)
def test_wrong_flags(model: Path, args: list[str], message: str) -> None:
    done = lamella("bench", model, "--embeddings", *args)
    assert done.returncode == 2
    assert message in done.stderr
