"""Prints a bill of materials: Lamella and the packages that it needs, as installed here.

The format is CycloneDX 1.6 in JSON (https://cyclonedx.org/docs/1.6/json/). Packages of the extras
`EXTRAS` are in it, if they are installed, with the scope `optional`. What only tests, benchmarks or
training need is left out. Tested by tests/cli/test_sbom.py.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from typing import Any, Final

from packaging.requirements import Requirement

ROOT_NAME: Final = "lamella"
EXTRAS: Final = ("cuda", "cuda13", "cupy", "mcp", "otel", "ray")  # those for users


def needed(name: str, extra: str) -> dict[str, set[str]]:
    """The installed packages that a package with this extra, or "", needs: each with its extras."""
    found: dict[str, set[str]] = {}
    for text in distribution(name).requires or ():
        each = Requirement(text)
        marker = each.marker
        applies = marker is None or marker.evaluate({"extra": extra})
        if applies and is_installed(each.name):
            found.setdefault(plain(each.name), set()).update(each.extras)
    return found


def plain(name: str) -> str:
    """A name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def is_installed(name: str) -> bool:
    """Return False for a package of an extra that is not installed."""
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


def graph(root: str, extras: Iterable[str] = ()) -> dict[str, list[str]]:
    """A package with these extras and all that it needs, directly or not, each with what it needs
    itself."""
    found: dict[str, set[str]] = {}
    waiting = [(root, each) for each in ("", *extras)]
    seen = set(waiting)
    while waiting:
        name, extra = waiting.pop()
        needs = needed(name, extra)
        found.setdefault(name, set()).update(needs)
        new = {(each, e) for each, its in needs.items() for e in ("", *its)} - seen
        seen |= new
        waiting += new
    return {name: sorted(needs) for name, needs in sorted(found.items())}


def component(name: str) -> dict[str, Any]:
    """A package as CycloneDX describes it."""
    found = distribution(name)
    version = found.version
    kind = "application" if name == ROOT_NAME else "library"
    entry: dict[str, Any] = {"type": kind, "name": name, "version": version}
    entry |= {"bom-ref": reference(name), "purl": reference(name)}
    if licenses := list(_licenses(found)):
        entry["licenses"] = licenses[:1]
    return entry


def _licenses(found: Distribution) -> Iterator[dict[str, Any]]:
    """The license: an expression, or a name from a classifier or a short text."""
    meta = found.metadata
    if "License-Expression" in meta:
        yield {"expression": meta["License-Expression"]}
    for classifier in meta.get_all("Classifier") or ():
        if classifier.startswith("License :: "):
            yield {"license": {"name": classifier.rpartition(" :: ")[2]}}
    if "License" in meta and "\n" not in meta["License"]:
        yield {"license": {"name": meta["License"]}}


def reference(name: str) -> str:
    """The package URL."""
    return f"pkg:pypi/{name}@{distribution(name).version}"


def bill(root: str = ROOT_NAME) -> dict[str, Any]:
    """The bill of materials. It has no time and no random number: it changes with the packages."""
    packages, required = graph(root, EXTRAS), graph(root)
    scopes = {name: "required" if name in required else "optional" for name in packages}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": component(root)},
        "components": [
            component(name) | {"scope": scope} for name, scope in scopes.items() if name != root
        ],
        "dependencies": [
            {"ref": reference(name), "dependsOn": [reference(each) for each in needs]}
            for name, needs in packages.items()
        ],
    }


if __name__ == "__main__":
    json.dump(bill(), sys.stdout, indent=2)
    print()
