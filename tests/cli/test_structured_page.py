"""docs/structured.md: its commands and programs print what it shows, its tables name everything."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import chdir, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from commands import lamella
from http_world import listening
from open_params import open_params

from lamella.base.errors import GrammarError
from lamella.model.guide import GrammarKind, GrammarSpec, limits, validate
from lamella.model.guide.schema.formats import ANY_FORMATS, NUMBER_FORMATS, STRING_FORMATS
from lamella.model.guide.schema.keywords import KEYWORDS
from lamella.model.guide.schema.limits import (
    ALTERNATIVES,
    DISJOINT_BRANCHES,
    KEY_CLASSES,
    MEMBERS_MAX,
    OPTIONAL_MAX,
    UNIQUE_VALUES,
)
from lamella.model.guide.schema.numbers import N_DECIMALS, N_DIGITS
from lamella.model.shipped import shipped_model
from lamella.runtime.open import open_model
from lamella.server.grammars import N_CLIENT_WAITING_MAX, N_WAITING_MAX

PAGE = (Path(__file__).parents[2] / "docs" / "structured.md").read_text("utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
FILES = [text for language, text in BLOCKS if language == "sh"]
PROGRAMS = re.findall(r"```python\n(.*?)```\n\n```\n(.*?)```", PAGE, re.DOTALL)
SHOWN = [part for language, text in BLOCKS if not language for part in text.split("$ ")[1:]]
COMMANDS = [part for part in SHOWN if part.startswith("lamella run ")]
[CURL] = [part for part in SHOWN if part.startswith("curl ")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the page's files."""
    folder = tmp_path_factory.mktemp("page")
    for text in FILES:
        subprocess.run(["bash", "-c", text], cwd=folder, check=True)
    with chdir(folder):
        yield folder


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """A server, as the page starts it."""
    with listening(lambda: open_model(open_params(shipped_model()))) as port:
        yield port


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("shown", COMMANDS, ids=lambda shown: shown.partition("\n")[0][-30:])
def test_commands(shown: str) -> None:
    line, _, expected = shown.partition("\n")
    command, _, filter = line.partition(" | ")
    done = lamella(*shlex.split(command)[1:])
    stdout = done.stdout
    if filter:
        assert filter == "python3 -m json.tool"
        stdout = json.dumps(json.loads(stdout), indent=4) + "\n"
    varying = re.compile("^(?:prompt: |compiling |compiled ).*\n", re.MULTILINE)
    assert stdout + varying.sub("", done.stderr) == expected


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("program", "shown"), PROGRAMS, ids=["dict", "pydantic", "openai"])
def test_programs(program: str, shown: str, port: int) -> None:
    code = compile(program.replace(":8080/", f":{port}/"), "page", "exec", dont_inherit=True)
    output = StringIO()
    with redirect_stdout(output):
        exec(code, {})
    assert output.getvalue() == shown


@pytest.mark.usefixtures("folder")
@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_curl(port: int) -> None:
    command, _, expected = CURL.partition("}}}'\n")
    command = command.replace(":8080/", f":{port}/") + "}}}'"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    shown, _, _ = expected.partition(" ...")
    assert done.stdout.startswith(shown)


def table(head: str) -> dict[str, str]:
    """The rows of a table: the names in the first column, with the rest of the row."""
    rows = PAGE.partition(f"| {head} |")[2].partition("\n\n")[0].splitlines()[2:]
    return {
        name: row.split("|", 2)[2].strip()
        for row in rows
        for name in re.findall("`([^`]+)`", row.split("|")[1])
    }


Example = dict[str, Any]
LOST = "https://example.com/lost"
# keywords that are not always enforced: a schema that is, and one that is refused
EXAMPLES: dict[str, tuple[Example | None, Example]] = {
    "uniqueItems": ({"items": {"enum": ["a", "b"]}, "type": "array"}, {"type": "array"}),
    "multipleOf": ({"multipleOf": 86400}, {"multipleOf": 0.123457}),
    "pattern": ({"pattern": "^(?=a)"}, {"pattern": "(?<=a)"}),
    "format": ({"format": "date"}, {"format": "credit-card"}),
    "$ref": ({"$ref": "#", "type": "null"}, {"$ref": LOST}),
    "$dynamicRef": ({"$dynamicRef": "#", "type": "null"}, {"$dynamicRef": LOST}),
    "$recursiveRef": ({"$recursiveRef": "#", "type": "null"}, {"$recursiveRef": LOST}),
    "divisibleBy": (None, {"divisibleBy": 2}),
    "disallow": (None, {"disallow": "null"}),
    "extends": (None, {"extends": {}}),
}


def test_the_table_says_what_is_refused() -> None:
    status = {name: row.partition("|")[0].strip() for name, row in table("keyword").items()}
    assert {name for name, text in status.items() if text != "enforced"} == set(EXAMPLES)
    for keyword, (good, bad) in EXAMPLES.items():
        assert status[keyword] == ("refused" if good is None else "enforced when")
        unique = {"uniqueItems": True} if keyword == "uniqueItems" else {}
        if good is not None:
            validate(schema({**good, **unique}))
        with pytest.raises(GrammarError, match=re.escape(f"`{keyword}` at `$`: ")):
            validate(schema({**bad, **unique}))


def schema(value: Example) -> GrammarSpec:
    return GrammarSpec(GrammarKind.JSON_SCHEMA, json.dumps(value))


def test_the_tables_name_all_keywords_and_formats() -> None:
    read_by_others = {"then", "else", "minContains", "maxContains"}
    scoped = {"unevaluatedProperties", "unevaluatedItems"}
    assert set(table("keyword")) == set(KEYWORDS) | read_by_others | scoped
    assert set(table("format")) == {*STRING_FORMATS, *NUMBER_FORMATS, *ANY_FORMATS}


def test_the_page_has_the_limits_of_the_code() -> None:
    kb = {kind: n >> 10 for kind, n in limits.N_BYTES_MAX.items()}
    seconds, mb = f"{limits.SANDBOX_SECONDS:.2g} s", f"{limits.SANDBOX_BYTES >> 20} MB"
    for text in (
        f"| a JSON schema | {kb[GrammarKind.JSON_SCHEMA]} KB, {limits.SCHEMA_DEPTH_MAX} nested "
        f"brackets, {MEMBERS_MAX:,} properties of one object, "
        f"{OPTIONAL_MAX:,} of them optional |",
        f"| a GBNF or Lark grammar | {kb[GrammarKind.GBNF]} KB |",
        f"| a regular expression | {kb[GrammarKind.REGEX]} KB |",
        f"| compiling, over HTTP | {seconds} of computing, {mb}, in a process of its own; "
        f"{N_WAITING_MAX} grammars may wait, {N_CLIENT_WAITING_MAX} of one client |",
        f"| masks | {1e3 * limits.SECONDS_PER_TOKEN:.3g} ms for each token on average;",
        f"| cache | the last {limits.N_CACHED_MAX} grammars |",
        f"patterns may overlap in {KEY_CLASSES} ways",
        f"at most {UNIQUE_VALUES} |",
        f"at most {ALTERNATIVES} combinations, `oneOf` at most {DISJOINT_BRANCHES} branches",
        f"at most {N_DIGITS} digits, and {N_DECIMALS} decimals",
    ):
        assert text in PAGE
