"""The documents are correct: examples print the shown output, every cause has its line, links lead
to files."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from house import ROOMS, read, room_sources

from lamella.sched.assignment import CAUSES
from lamella.server import routes, routes_generate

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [
    *(ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "models" / "README.md"),
    *(ROOT / "models" / "recipe" / "README.md", *sorted((ROOT / "docs").glob("*.md"))),
]


def test_the_scheduler_s_example_prints_the_shown_output() -> None:
    text = (ROOT / "docs" / "scheduling.md").read_text("utf-8")
    code, shown = re.findall(r"```python\n(.*?)```.*?```\n(.*?)```", text, re.DOTALL)[0]
    done = subprocess.run(
        [sys.executable, "-u", "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        env={k: v for k, v in os.environ.items() if not k.startswith("LAMELLA_")},
    )
    assert done.stdout == shown


def test_the_docs_explain_every_cause() -> None:
    tour = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    documented = dict(re.findall(r"^\| `([\w.]+)` \| (.*) \|$", tour, re.MULTILINE))
    assert documented == CAUSES


def broken_references(document: Path) -> Iterator[str]:
    """The links and paths in a document whose targets do not exist."""
    text = document.read_text("utf-8")
    name = document.relative_to(ROOT)
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        if not (document.parent / target).exists():
            yield f"{name}: {target}"
    folders = "|".join((*ROOMS, "models", "tests", "docs", "scripts"))
    for path in re.findall(rf"`((?:{folders})/[\w./-]*)`", text):
        if not (ROOT / path).exists():
            yield f"{name}: {path}"


def test_links_and_folders_exist() -> None:
    assert [fault for document in DOCUMENTS for fault in broken_references(document)] == []


def test_the_docs_list_every_endpoint() -> None:
    text = (ROOT / "docs" / "server.md").read_text("utf-8")
    paths = {route.path.split("/{")[0] for route in (*routes.ROUTES, *routes_generate.ROUTES)}
    assert {path for path in paths if f"`{path}`" not in text} == set()


def test_modules_name_tests_that_exist() -> None:
    missing = []
    for source in room_sources():
        docstring = ast.get_docstring(ast.parse(read(source))) or ""
        tests = re.split(r"Tested by|Tests?:", docstring, maxsplit=1)[1:]
        for pattern in re.findall(r"tests/[\w/*{},]+\.py", "".join(tests)):
            if not list(ROOT.glob(re.sub(r"\{.*?\}", "*", pattern))):
                missing.append(f"{source}: {pattern}")
    assert missing == []
