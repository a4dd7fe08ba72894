"""The bill of materials has every package that Lamella needs, once, with its version."""

from __future__ import annotations

import json
from importlib.metadata import version

import sbom


def test_all_packages_are_listed() -> None:
    bill = sbom.bill()
    assert json.loads(json.dumps(bill))["bomFormat"] == "CycloneDX"
    assert bill["metadata"]["component"]["name"] == "lamella"
    packages = {each["name"]: each for each in bill["components"]}
    # a direct one, one of aiohttp's, and none of the tests'
    assert {"numpy", "multidict"} <= packages.keys() and "pytest" not in packages
    assert packages["numpy"]["purl"] == f"pkg:pypi/numpy@{version('numpy')}"
    assert len(packages) == len(bill["components"]) and all(p["version"] for p in packages.values())
    assert "licenses" in packages["aiohttp"]


def test_all_references_exist() -> None:
    bill = sbom.bill()
    known = {each["bom-ref"] for each in [*bill["components"], bill["metadata"]["component"]]}
    assert {each["ref"] for each in bill["dependencies"]} == known
    assert all(set(each["dependsOn"]) <= known for each in bill["dependencies"])
