"""Command lines of llama.cpp start: each flag of llama-server works, or prints or refuses why."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from commands import lamella, tiny_model

from lamella.base.log_output import LogParams
from lamella.cli import peer_options
from lamella.cli.flags import given
from lamella.cli.main import COMMANDS, parser
from lamella.cli.parser import Parser, notes
from lamella.cli.peer_flags import PeerAction, add_peer_flags
from lamella.cli.peer_options import PeerOption
from lamella.cli.sources import variables
from lamella.runtime.params import OpenParams, RequestParams
from lamella.server.config import ServerConfig
from lamella.server.router.config import RouterConfig

ROOT: Final = Path(__file__).parents[2]
TABLE: Final = (
    Path(os.environ.get("LAMELLA_TEST_DATA", ROOT.parent / "shared")) / "llama-server-flags.txt"
)

# a valid value, for flags that do not take a number
VALUES: Final = {
    "--cache-type-k": "f16",
    "--cache-type-v": "q8_0",
    "--chat-template": "chatml",
    "--control-vector-scaled": "steer.gguf:0.5",
    "--chat-template-kwargs": '{"enable_thinking": false}',
    "--device": "none",
    "--grammar": 'root ::= "yes"',
    "--hf-repo": "user/model",
    "--json-schema": "{}",
    "--json-schema-file": str(ROOT / "models/greedy.json"),
    "--logit-bias": "5+1",
    "--lora-scaled": "adapter.gguf:0.5",
    "--model-url": "https://huggingface.co/user/model/resolve/main/file.gguf",
    "--override-kv": "llama.context_length=int:64",
    "--reasoning-format": "none",
    "--override-tensor": "exps=CPU",
    "--pooling": "mean",
    "--rope-scaling": "yarn",
    "--sampler-seq": "kpmt",
    "--samplers": "top_k;temperature",
    "--spec-type": "ngram-mod",
    "--spec-draft-override-tensor": "exps=CPU",
    "--spec-draft-hf": "user/model",
    "--split-mode": "layer",
    "--tensor-split": "3,1",
}
FILES: Final = (
    *("--chat-template-file", "--grammar-file"),
    *("--api-key-file", "--ssl-key-file", "--ssl-cert-file"),
)
SWITCHES: Final = {"": [], "[on|off|auto]": ["on"], "[on|off]": ["on"], "START END": ["1", "2"]}


class Line(NamedTuple):
    """A line of the table."""

    names: list[str]
    value: str
    variable: str


def table() -> list[Line]:
    """The lines of the table; none if it is absent."""
    if not TABLE.exists():
        return []
    text = TABLE.read_text().replace("qwen-1 | .5b", "qwen-1.5b")
    lines = [line for line in text.splitlines() if line.startswith("-")]
    found = []
    for line in lines:
        parts = [part.strip() for part in line.split(" | ")]
        names, value, variable = [*parts, "", ""][:3]
        found.append(Line(names.split(), value, variable))
    return found


@pytest.fixture(scope="module")
def serve() -> Parser:
    """The parser of `lamella serve`."""
    top = parser(["serve"])
    found: Parser = top.parse_args(["serve"]).parser
    return found


def typed(line: Line, name: str) -> list[str]:
    """The flag with a valid value."""
    if line.value in SWITCHES:
        return [name, *SWITCHES[line.value]]
    if any(flag in FILES for flag in line.names):
        return [name, __file__]
    value = next((VALUES[flag] for flag in line.names if flag in VALUES), "1")
    return [name, value]


NAMES: Final = [pytest.param(line, name, id=name) for line in table() for name in line.names]


@pytest.mark.skipif(not NAMES, reason=f"{TABLE} is not there (set LAMELLA_TEST_DATA)")
@pytest.mark.parametrize(("line", "name"), NAMES)
def test_each_flag_of_llama_server(
    line: Line, name: str, serve: Parser, capsys: pytest.CaptureFixture[str]
) -> None:
    action = serve._option_string_actions.get(name)
    assert action is not None, "the flag is declared"
    try:
        found = serve.parse_args(typed(line, name))
        status = None
    except SystemExit as ended:
        found, status = argparse.Namespace(), ended.code
    out, errors = capsys.readouterr()
    if isinstance(action, PeerAction):
        row = action.row
        if status is None:
            assert row.why and [*notes(found)] == [f"{name} has no effect: {row.why}"]
        else:
            assert row.instead and status == 2
            flag = "/".join(action.option_strings)
            assert errors.startswith(f"lamella serve: argument {flag}: {row.instead}\n")
    elif status is not None:
        assert (status, errors) == (0, "") and out, "the flag prints something and ends"
    else:
        assert errors == ""
        options = action.dest.partition(",")[0]
        kinds = (OpenParams, RequestParams, ServerConfig, RouterConfig, LogParams)
        assert (
            any(options in given(found, kind) for kind in kinds)
            or getattr(found, action.dest) != serve._plain[action.dest]
        )


@pytest.mark.skipif(not NAMES, reason=f"{TABLE} is not there (set LAMELLA_TEST_DATA)")
def test_each_variable_of_llama_server(serve: Parser) -> None:
    unknown = {
        line.variable
        for line in table()
        if line.variable
        and not any(
            line.variable in variables(serve._option_string_actions[name]) for name in line.names
        )
    }
    assert unknown == set()


TYPED: Final = [
    "run -m {model} -fa on --jinja --no-mmap --mlock -cb --no-warmup -no-cnv -st -v -e "
    "--temperature 0 --no-display-prompt -p x -n 4 -c 64",
    "run -m {model} -c 64 -n 4 -p x --temp 0.7 --repeat-penalty 1.1 -ngl 99 -t 2 --no-perf",
    "chat -m {model} -fa -cnv --color -st -p hello -c 64 -n 4 --simple-io --chat-template chatml",
    "run -fa {model} -p x -n 4 -c 64",
]


@pytest.mark.parametrize("line", TYPED)
def test_command_lines_of_llama_cli(line: str, tmp_path: Path) -> None:
    done = lamella(*line.format(model=tiny_model(tmp_path)).split())
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_a_command_line_of_llama_server(serve: Parser) -> None:
    line = "-m f -fa -ngl 99 -c 4096 --host 0.0.0.0 --port 8081 -np 2 --jinja -cb --metrics -a x"
    line += " --cache-reuse 256"
    found = serve.parse_args(line.split())
    assert (found.n_gpu_layers, found.n_ctx, found.host, found.port) == (99, 4096, "0.0.0.0", 8081)
    assert [*notes(found)] == [
        "-fa has no effect: attention is always computed without storing its scores",
        "--jinja has no effect: chat templates are always rendered by Jinja",
        "-cb has no effect: requests are always batched continuously",
        "--cache-reuse has no effect: common prefixes are reused; text behind a change is "
        "evaluated",
    ]


def test_notes_and_errors_are_json_in_a_json_log() -> None:
    done = lamella("serve", "no-such-file", "-fa", "--log-format", "json")
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["level"] for line in lines] == ["warning", "critical"]
    assert lines[0]["message"].startswith("-fa has no effect: ")
    assert "no-such-file" in lines[1]["message"]
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("-fa off", "argument -fa/--flash-attn: attention has no other kernel"),
        ("--no-jinja", "argument --no-jinja: there is no other way to render"),
        ("-nocb", "argument -nocb/--no-cont-batching: requests are always batched"),
        (
            "--spec-type ngram-cache",
            "argument --spec-type: ngram-cache is not supported: use ngram-mod",
        ),
        ("--max-model-len 4096", "argument --max-model-len: use -c/--ctx-size"),
        ("--temprature 1", "unknown flag --temprature; did you mean --temp/--temperature?"),
        ("--flash-atn on", "unknown flag --flash-atn; did you mean -fa/--flash-attn?"),
    ],
)
def test_refused_flags(flags: str, message: str) -> None:
    done = lamella("serve", "-m", "f", *flags.split())
    assert done.returncode == 2
    assert f"lamella serve: {message}" in done.stderr


def test_variables_of_flags_without_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_FLASH_ATTN", "off")
    monkeypatch.setenv("LLAMA_ARG_MMAP", "0")
    monkeypatch.setenv("LLAMA_ARG_RPC", "host:1")
    done = lamella("serve", "-m", "f", "-c", "x")
    assert done.returncode == 2 and "argument -c/--ctx-size" in done.stderr
    done = lamella("plan", "no-such-file")
    assert set(done.stderr.splitlines()[:3]) == {
        "lamella: LLAMA_ARG_MMAP has no effect: " + peer_options.MAPPED,
        "lamella: LLAMA_ARG_FLASH_ATTN has no effect: attention has no other kernel",
        "lamella: LLAMA_ARG_RPC has no effect: not supported yet: models run on the devices of "
        "one machine",
    }
    monkeypatch.setenv("LAMELLA_ARG_RPC", "host:1")
    done = lamella("plan", "no-such-file")
    assert done.returncode == 2
    assert done.stderr.startswith("lamella plan: LAMELLA_ARG_RPC: not supported yet: models run")


def rows() -> list[PeerOption]:
    tables = [value for value in vars(peer_options).values() if isinstance(value, tuple)]
    return [row for table in tables for row in table if isinstance(row, PeerOption)]


def test_reasons_are_one_short_sentence() -> None:
    assert len(rows()) > 120
    for row in rows():
        assert row.why or row.instead
        for text in (row.why, row.instead):
            assert len(text) <= 100 and not text.endswith(".") and "\n" not in text


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_all_flags_with_an_effect(command: str) -> None:
    text = lamella(command, "--help").stdout
    assert "--cache-dir DIR" in text
    assert "--mlock" not in text and "==SUPPRESS==" not in text


def test_a_flag_is_declared_once() -> None:
    made = Parser(prog="x")
    made.add_argument("--mlock")
    with pytest.raises(argparse.ArgumentError, match="conflicting option string: --mlock"):
        add_peer_flags(made, peer_options.MODEL)


def test_the_variables_of_a_service_for_llama_server(
    monkeypatch: pytest.MonkeyPatch, serve: Parser
) -> None:
    texts = {
        **{"MODEL": "/models/m.gguf", "HOST": "0.0.0.0", "PORT": "9000", "CTX_SIZE": "4096"},
        **{"N_GPU_LAYERS": "99", "N_PARALLEL": "2", "THREADS": "4", "ENDPOINT_METRICS": "1"},
        **{"FLASH_ATTN": "1", "CONT_BATCHING": "1", "JINJA": "1", "ALIAS": "my-model"},
        **{"EMBEDDINGS": "1", "NO_WARMUP": "1"},
    }
    for name, text in texts.items():
        monkeypatch.setenv(f"LLAMA_ARG_{name}", text)
    monkeypatch.setenv("LLAMA_API_KEY", "secret")
    monkeypatch.delenv("LAMELLA_ARG_THREADS", raising=False)
    found = serve.parse_args([])
    assert (found.model, found.alias) == ("/models/m.gguf", "my-model")
    assert (found.host, found.port, found.api_keys) == ("0.0.0.0", 9000, ("secret",))
    assert (found.n_ctx, found.n_gpu_layers, found.n_parallel) == (4096, 99, 2)
    assert (found.n_threads, found.metrics, found.embeddings) == (4, True, True)
    without_effect = {line.split()[0] for line in notes(found)}
    assert without_effect == {
        "LLAMA_ARG_FLASH_ATTN",
        "LLAMA_ARG_CONT_BATCHING",
        "LLAMA_ARG_JINJA",
        "LLAMA_ARG_NO_WARMUP",
    }
