"""Tests with other versions of the dependencies: what is chosen, and that floors are exact."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import versions

ROOT = Path(__file__).resolve().parents[2]


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return found


def test_every_dependency_has_a_lowest_version_and_a_limit() -> None:
    more = project()["optional-dependencies"].values()
    for each in [*project()["dependencies"], *(tool for tools in more for tool in tools)]:
        assert re.fullmatch(r"[\w.-]+==[\d.]+", versions.floor_of(each)) and ",<" in each


def test_a_dependency_without_a_lowest_version() -> None:
    with pytest.raises(ValueError, match="'numpy<3' in pyproject"):
        versions.floor_of("numpy<3")


def test_the_selection_exists_and_needs_no_tools() -> None:
    assert all((ROOT / file).is_file() for file in versions.SELECTION)
    short, full = (versions.requirements(project(), "newest", each) for each in (False, True))
    assert set(project()["dependencies"]) < set(short) < set(full)
    assert len(full) - len(short) == len(versions.SLOW)


@pytest.mark.parametrize(("which", "major"), [("cuda12", "12"), ("cuda13", "13")])
def test_versions_of_cuda(which: str, major: str) -> None:
    assert all((ROOT / file).is_file() for file in versions.CUDA_SELECTION)
    wanted = map(versions.floor_of, versions.requirements(project(), which, False))
    found = {name: floor for name, _, floor in (each.partition("==") for each in wanted)}
    assert found["cuda-bindings"].split(".")[0] == major
    assert {"pytest", "numpy"} < found.keys() and "mypy" not in found
    assert "--full" not in versions.selected(which, False)
    assert "--full" in versions.selected(which, True)


def test_what_cannot_be_installed_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(versions, "install", lambda *_: 1)
    monkeypatch.setattr(subprocess, "call", lambda *_, **__: 0)
    assert versions.main(["lowest"]) == 2
    assert "the lowest versions cannot be installed" in capsys.readouterr().err
