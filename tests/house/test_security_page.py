"""docs/security.md names tests that exist, and each known fault once."""

from __future__ import annotations

import ast
import re

from house import ROOT

ROW = re.compile(
    r"^\| (CVE-\d{4}-\d{4,}) \| ([^|]+) \| ([^|]+) \| `([\w./]+)::(\w+)` \|$", re.MULTILINE
)


PROMISED = re.compile(r"\(`(tests/[\w./]+)::(\w+)`\)")


def functions(path: str) -> set[str]:
    """The names of the functions of a file."""
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_known_fault_has_a_test() -> None:
    text = (ROOT / "docs" / "security.md").read_text("utf-8")
    rows = ROW.findall(text)
    numbers = [number for number, *_ in rows]
    assert len(rows) == text.count("\n| CVE-") >= 30
    assert len(set(numbers)) == len(numbers)
    promised = PROMISED.findall(text)
    assert {name for _, name in promised} >= {"test_no_client_forges_a_line"}
    assert [one for one in promised if one[1] not in functions(one[0])] == []
    missing = [f"{path}::{name}" for *_, path, name in rows if name not in functions(path)]
    assert missing == []
