"""The bill of materials has every package that Lamella needs, once, with its version."""

from __future__ import annotations

import json
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import pytest
import sbom
from packaging.requirements import Requirement

ROOT: Final = Path(__file__).resolve().parents[2]
TOOLS: Final = {"test", "bench", "recipe"}  # extras of those who work on Lamella


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return found


def names(requirements: list[str]) -> set[str]:
    return {sbom.plain(Requirement(each).name) for each in requirements}


@pytest.fixture(scope="module")
def bill() -> dict[str, Any]:
    return sbom.bill()


def test_all_packages_are_listed(bill: dict[str, Any]) -> None:
    assert json.loads(json.dumps(bill))["bomFormat"] == "CycloneDX"
    assert bill["metadata"]["component"]["name"] == "lamella"
    packages = {each["name"]: each for each in bill["components"]}
    # a direct one, one of aiohttp's, and none of the tests'
    assert {"numpy", "multidict"} <= packages.keys() and "pytest" not in packages
    assert packages["numpy"]["purl"] == f"pkg:pypi/numpy@{version('numpy')}"
    assert len(packages) == len(bill["components"]) and all(p["version"] for p in packages.values())
    assert "licenses" in packages["aiohttp"]


def test_every_dependency_of_the_project_is_listed(bill: dict[str, Any]) -> None:
    scopes = {each["name"]: each["scope"] for each in bill["components"]}
    required = names(project()["dependencies"])
    assert {name: scopes.get(name) for name in required} == dict.fromkeys(required, "required")


def test_every_extra_is_listed_if_it_is_installed(bill: dict[str, Any]) -> None:
    extras = project()["optional-dependencies"]
    assert set(extras) == {*sbom.EXTRAS, *TOOLS}
    scopes = {each["name"]: each["scope"] for each in bill["components"]}
    wanted = {name for extra in sbom.EXTRAS for name in names(extras[extra])}
    installed = {name for name in wanted if sbom.is_installed(name)}
    assert {"mcp", "cuda-bindings"} <= installed  # tests need them
    assert {name: scopes.get(name) for name in installed} == dict.fromkeys(installed, "optional")


def test_extras_of_dependencies_and_markers(monkeypatch: pytest.MonkeyPatch) -> None:
    requires = {
        "app": [
            "a[fast]>=1",
            "b; extra == 'more'",
            "c; python_version < '3'",
            "gone; extra == 'x'",
        ],
        "a": ["d; extra == 'fast'", "e; extra == 'slow'"],
        "b": ["A"],
    }

    class Found:
        def __init__(self, name: str) -> None:
            self.requires = requires.get(name.lower(), [])

    monkeypatch.setattr(sbom, "distribution", Found)
    monkeypatch.setattr(sbom, "is_installed", lambda name: name != "gone")
    assert sbom.graph("app") == {"a": ["d"], "app": ["a"], "d": []}
    assert sbom.graph("app", ["more", "x"]) == {
        **{"a": ["d"], "app": ["a", "b"], "b": ["a"], "d": []},
    }


def test_all_references_exist(bill: dict[str, Any]) -> None:
    known = {each["bom-ref"] for each in [*bill["components"], bill["metadata"]["component"]]}
    assert {each["ref"] for each in bill["dependencies"]} == known
    assert all(set(each["dependsOn"]) <= known for each in bill["dependencies"])
