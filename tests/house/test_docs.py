"""The documents are correct: examples print the shown output, every cause has its line, links lead
to files, commands and settings can be read."""

from __future__ import annotations

import ast
import configparser
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from doctest import DocTestParser
from pathlib import Path
from typing import Final

import pytest
import yaml  # type: ignore[import-untyped]  # a dependency of huggingface-hub
from house import ROOMS, read, room_sources

from lamella.cli.main import parser
from lamella.sched.assignment import CAUSES
from lamella.server import routes, routes_embed, routes_generate
from lamella.server.keys import read_keys

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [
    *(ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "models" / "README.md"),
    *(ROOT / "models" / "recipe" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))),
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
    rooms = (routes, routes_generate, routes_embed)
    paths = {route.path.split("/{")[0] for room in rooms for route in room.ROUTES}
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


# --- code blocks ---

CALL: Final = re.compile(
    r"\s*(?:\$ |ExecStart=|[A-Z_]+=\S* )*"  # a prompt, a systemd unit, variables
    r"((?:[^\s=]*/)?lamella|scripts/serve)(?= |$)"
)


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """The language and the text of each code block."""
    yield from re.findall(r"^ *```([^\n]*)\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL)


def commands(text: str) -> Iterator[list[str]]:
    """The arguments of each call of `lamella` in a text of shell commands, one call a line."""
    for line in text.replace("\\\n", " ").splitlines():
        match = CALL.match(line)
        if match is None:
            continue
        lexer = shlex.shlex(line[match.end() :], posix=True, punctuation_chars="|&;<>")
        lexer.whitespace_split = True
        words = ["serve"] * match[1].endswith("serve")
        for word in lexer:
            if set(word) <= set("|&;<>"):
                break
            words.append(word)
        yield words


def shown_commands() -> Iterator[tuple[str, list[str]]]:
    """Each document with a command that its code blocks show."""
    for document in DOCUMENTS:
        for language, text in blocks(document.read_text("utf-8")):
            if language in ("", "sh", "ini"):
                for words in commands(text):
                    yield str(document.relative_to(ROOT)), words


def test_files_for_deployment_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The unit and the image start a server with valid flags and variables."""
    unit = (ROOT / "docs" / "deploy" / "lamella.service").read_text("utf-8")
    read_unit(unit)
    image = (ROOT / "docs" / "deploy" / "Dockerfile").read_text("utf-8")
    variables = dict(re.findall(r"(LAMELLA_ARG_\w+)=(\S+)", image))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = [*commands(unit), *map(json.loads, re.findall(r"^CMD (.*)$", image, re.MULTILINE))]
    assert len(found) == 2
    for words in found:
        options = vars(parser(words).parse_args(words))
        assert {name.removeprefix("LAMELLA_ARG_").lower() for name in variables} <= set(options)


def test_the_image_gets_every_package() -> None:
    """.dockerignore excludes all but the folders and files that it names."""
    lines = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    folders = project["tool"]["setuptools"]["package-dir"].values()
    needed = {folder.split("/")[0] for folder in folders}
    needed |= {"pyproject.toml", project["project"]["readme"], *project["project"]["license-files"]}
    assert {line[1:] for line in lines if line.startswith("!")} == needed


def test_commands_are_found() -> None:
    text = """$ lamella run MODEL "a b" -n 4 | head  # two words
A=1 lamella serve \\
  --port 80 &
lamella: listening
ExecStart=/opt/lamella/bin/lamella serve
scripts/serve -np 2"""
    assert list(commands(text)) == [
        ["run", "MODEL", "a b", "-n", "4"],
        ["serve", "--port", "80"],
        ["serve"],
        ["serve", "-np", "2"],
    ]


def test_shown_commands_can_be_read(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every shown command has valid flags. Nothing is loaded."""
    monkeypatch.chdir(tmp_path)
    Path("lamella.toml").touch()  # the parser reads it, and these
    for name in ("story.json", "story.gbnf", "story.lark"):
        Path(name).write_text("{}")
    shown = list(shown_commands())
    refused = []
    for document, words in shown:
        try:
            parser(words).parse_args(words)
        except SystemExit as end:
            if end.code != 0:
                error = capsys.readouterr().err.splitlines()[-1]
                refused.append(f"{document}: lamella {shlex.join(words)}: {error}")
    assert refused == []
    assert len(shown) > 20


def read_config(text: str) -> None:
    """Read a config file with the parser of each command that it names."""
    commands = [key for key, value in tomllib.loads(text).items() if isinstance(value, dict)]
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(text)
        file.flush()
        for command in commands or ["serve"]:
            words = [command, "--config", file.name]
            parser(words).parse_args(words)


def read_toml(text: str) -> None:
    """Read a file of API keys, or a config file."""
    if "keys" not in tomllib.loads(text):
        read_config(text)
        return
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(text)
        file.flush()
        read_keys(file.name)


def read_unit(text: str) -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.read_string(text)
    assert {"Unit", "Service", "Install"} <= set(unit)


READERS: Final[dict[str, Callable[[str], object]]] = {
    "pycon": DocTestParser().get_examples,
    "python": ast.parse,
    "toml": read_toml,
    "json": json.loads,
    "yaml": yaml.safe_load,
    "ini": read_unit,
}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_settings_and_programs_can_be_read(document: Path) -> None:
    for language, text in blocks(document.read_text("utf-8")):
        assert language in ("", "sh", "dockerfile", *READERS)
        if language in READERS:
            READERS[language](text)
