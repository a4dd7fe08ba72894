"""`lamella archs`."""

from __future__ import annotations

import json
import re

import pytest

from lamella.cli.archs import rows
from lamella.cli.main import main
from lamella.model.arch import ARCHITECTURES


def test_every_architecture_is_listed_with_its_models(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["archs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(ARCHITECTURES)
    assert "Gemma 2" in next(line for line in lines if line.startswith("gemma2 "))


def test_each_row_names_its_own_models_and_a_source() -> None:
    source = re.compile(r"arXiv \d{4}\.\d{5}(, \d{4}\.\d{5})*|https://\S+[^.\s]")
    found = list(rows())
    assert [row.name for row in found if not source.fullmatch(row.source)] == []
    models = {row.models for row in found}
    assert models >= {"GPT-2", "StarCoder", "StarCoder 2", "CodeShell"}
    assert len(models - {""}) == len(found)


def test_a_part_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["archs", "QWEN3", "--json"]) == 0
    names = [row["name"] for row in json.loads(capsys.readouterr().out)]
    assert {"qwen3", "qwen3moe"} <= set(names)
    assert all("qwen3" in name for name in names)


def test_a_part_of_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["archs", "toy"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "no architecture has 'toy'; `lamella archs` lists all\n"
