"""The flags of grammars and JSON schemas: their errors, and the texts of `run` and `chat`."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import lamella

NO_MODEL = ("-m", "nowhere.gguf")  # the errors come before the model is looked for


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["-j", "{"], "argument -j/--json-schema: '{' is not JSON: Expecting property name"),
        (["-j", "[" * 99_999], "argument -j/--json-schema: '[[[[["),
        (["-j", "[1]"], "-j/--json-schema is [1]: must be a JSON schema, as an object like"),
        (["-j", '{"type": "objekt"}'], "-j/--json-schema: "),
        (["-jf", "no.json"], "-jf/--json-schema-file: no.json cannot be read: No such file"),
        (["-jf", "empty"], "argument -jf/--json-schema-file: empty is empty"),
        (["-jf", "bad.json"], "bad.json is not JSON: Expecting ',' delimiter: line 2 column 1"),
        (["--grammar-file", "latin"], "latin is not valid UTF-8 (byte 0xE9 at 3)"),
        (["--grammar-file", "empty"], "argument --grammar-file: empty is empty"),
        (["--grammar", ""], "argument --grammar: it is empty"),
        (["--regex", "(a"], "--regex: "),
        (["--regex", "a", "-j", "{}"], "-j/--json-schema: cannot be combined with regex"),
    ],
)
def test_wrong_flags(
    flags: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").write_text("\n")
    Path("bad.json").write_text('{"a": 1\n')
    Path("latin").write_bytes(b"caf\xe9")
    for command in ("run", "serve"):
        done = lamella(command, *NO_MODEL, *flags)
        assert (done.returncode, done.stdout) == (2, "")
        assert message in done.stderr and "nowhere" not in done.stderr


@pytest.mark.parametrize("variable", ["LAMELLA_ARG_JSON_SCHEMA_FILE", "LLAMA_ARG_JSON_SCHEMA_FILE"])
def test_variables(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "no.json")
    done = lamella("run", *NO_MODEL, "-p", "a")
    assert done.returncode == 2
    assert f"{variable}: " in done.stderr and "no.json cannot be read" in done.stderr
