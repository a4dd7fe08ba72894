"""Prints a bill of materials: Lamella and the packages that it needs, as installed here.

The format is CycloneDX 1.6 in JSON (https://cyclonedx.org/docs/1.6/json/). What only tests need is
left out. Tested by tests/cli/test_sbom.py.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from typing import Any, Final

ROOT_NAME: Final = "lamella"
_NAME: Final = re.compile(r"[\w.-]+")
_IS_OPTIONAL: Final = re.compile(r";.*\bextra\s*==")


def needed(name: str) -> list[str]:
    """The installed packages that a package needs, extras left out, by name."""
    found = set()
    for requirement in distribution(name).requires or ():
        match = _NAME.match(requirement)
        if match is not None and not _IS_OPTIONAL.search(requirement):
            found.add(plain(match[0]))
    return sorted(each for each in found if is_installed(each))


def plain(name: str) -> str:
    """A name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def is_installed(name: str) -> bool:
    """Return False for a package of another system or Python."""
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


def graph(root: str) -> dict[str, list[str]]:
    """A package and all that it needs, directly or not, each with what it needs itself."""
    found: dict[str, list[str]] = {}
    waiting = [root]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = needed(name)
            waiting += found[name]
    return dict(sorted(found.items()))


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
    packages = graph(root)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": component(root)},
        "components": [component(name) for name in packages if name != root],
        "dependencies": [
            {"ref": reference(name), "dependsOn": [reference(each) for each in needs]}
            for name, needs in packages.items()
        ],
    }


if __name__ == "__main__":
    json.dump(bill(), sys.stdout, indent=2)
    print()
