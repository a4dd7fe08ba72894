"""The flags of grammars and JSON schemas: their errors, and the texts of `run` and `chat`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from commands import lamella, tiny_model
from open_params import open_params
from serving import Server

from lamella.runtime.open import open_instance

NO_MODEL = ("-m", "nowhere.gguf")  # the errors come before the model is looked for


UNKNOWN_TOKEN = "%llguidance {}\nstart: <|nowhere|>"
LETTERS = "[d-g]{4}"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("grammar"))


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


@pytest.mark.parametrize("command", ["run", "chat", "serve"])
def test_a_grammar_that_does_not_fit_the_model(command: str, model: Path) -> None:
    done = lamella(command, "-m", model, "--grammar", UNKNOWN_TOKEN, stdin="a\n")
    assert (done.returncode in (1, 2), done.stdout.strip()) == (True, "")
    [line] = [line for line in done.stderr.splitlines() if "nowhere" in line]
    assert line.startswith("lamella: error: ") and "no special token" in line
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("flags", "pattern"),
    [
        (["--regex", LETTERS], LETTERS),
        (["--grammar", 'root ::= ("x" | "y") "\\n"'], "[xy]\n"),
        (["--grammar-file", "lark"], "[xy]"),
        (["-j", '{"enum": ["red", "blue"]}'], '"(red|blue)"'),
        (["-jf", "schema"], '"(red|blue)"'),
    ],
)
def test_run_prints_the_text_only(
    model: Path, flags: list[str], pattern: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("lark").write_text('%llguidance {}\nstart: "x" | "y"\n')
    Path("schema").write_text('\ufeff{"enum": ["red", "blue"]}\n')
    done = lamella("run", "-m", model, "-p", "a", "--temp", "1.5", *flags)
    assert done.returncode == 0
    assert re.fullmatch(pattern, done.stdout.removesuffix("\n"))
    assert "incomplete" not in done.stderr
    report = json.loads(lamella("run", "-m", model, "-p", "a", "--json", *flags).stdout)
    assert (report["complete"], report["stop_type"]) == (True, "eos")


INCOMPLETE = "the text is incomplete: {} ended it before it matched the whole grammar\n"


def test_a_limit_is_reported(model: Path) -> None:
    args = ["run", "-m", model, "-p", "a", "--regex", "[d-g]{5}", "-n"]
    limit = "lamella: " + INCOMPLETE.format("a limit (-n, or the size of the context)")
    assert lamella(*args, "4").stderr.endswith(limit)
    assert "incomplete" not in lamella(*args, "5").stderr
    assert json.loads(lamella(*args, "4", "--json").stdout)["complete"] is False
    word = lamella(*args, "-1", *(flag for letter in "defg" for flag in ("-r", letter)))
    assert word.stdout == "\n"
    assert re.search(INCOMPLETE.format("the stop text '[d-g]'"), word.stderr)


def test_a_chat_constrains_each_answer(model: Path) -> None:
    args = ["chat", "-m", model, "--chat-template", "{{ messages[-1].content }}", "--regex"]
    done = lamella(*args, LETTERS, stdin="a\nb\n/regen\n")
    assert [bool(re.fullmatch(LETTERS, text)) for text in done.stdout.splitlines()] == [True] * 3
    assert done.stderr == ""
    short = lamella(*args, LETTERS, "-n", "2", stdin="a\n")
    assert short.stderr == INCOMPLETE.format("a limit (-n, or the size of the context)")


def test_a_grammar_of_a_request_replaces_the_default(model: Path) -> None:
    with open_instance(open_params(model), defaults={"json_schema": {}}) as instance:
        assert instance.request_params().grammar.json_schema == {}
        own = instance.request_params({"regex": "a"}).grammar
        assert (own.regex, own.json_schema) == ("a", None)


def test_a_server_has_a_default_grammar(model: Path) -> None:
    server = Server(model, "--regex", LETTERS)
    try:
        reply = server.post("/completion", prompt="a", temperature=1.5)
        assert re.fullmatch(LETTERS, reply["content"])
        own = server.post("/completion", prompt="a", grammar='root ::= "xyz"')
        assert own["content"] == "xyz"
    finally:
        server.stop()
