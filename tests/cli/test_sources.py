"""Values of flags from variables and from a config file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from commands import lamella

from lamella.cli.flags import given
from lamella.cli.main import parser
from lamella.runtime.params import OpenParams, RequestParams

CONFIG = """\
ctx-size = 300
no_repack = true
[run]
threads = 3
kv-offload = false
override-tensor = ["a=CPU", "b=CPU"]
temp = 0.25
prompt = "from the file"
[serve]
port = 1
"""


@pytest.fixture(autouse=True)
def _no_variable_of_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LAMELLA_ARG_THREADS", raising=False)


def values(*args: str) -> dict[str, Any]:
    """The options that `lamella run` sets."""
    found = parser(["run"]).parse_args(["run", *args])
    return {**given(found, OpenParams), **given(found, RequestParams)}


def test_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {
        "LAMELLA_ARG_CTX_SIZE": "64",
        "LLAMA_ARG_N_GPU_LAYERS": "3",
        "LAMELLA_ARG_UBATCH": "32",
        "LAMELLA_ARG_UBATCH_SIZE": "",
        "LAMELLA_ARG_REPACK": "off",
        "LLAMA_ARG_NO_KV_OFFLOAD": "1",
        "LLAMA_ARG_NO_OP_OFFLOAD": "0",
        "LLAMA_ARG_CPU_MOE": "1",
    }
    for name, text in texts.items():
        monkeypatch.setenv(name, text)
    assert values() == {
        **{"n_ctx": 64, "n_gpu_layers": 3, "n_ubatch": 32, "n_cpu_moe": -1},
        **{"repack": False, "kv_offload": False, "op_offload": True},
    }


def test_a_flag_wins_over_our_variable_and_that_over_llama_cpp_s(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LLAMA_ARG_TOP_K", "1")
    assert values() == {"top_k": 1}
    monkeypatch.setenv("LAMELLA_ARG_TOP_K", "2")
    assert values() == {"top_k": 2}
    assert values("--top-k", "3") == {"top_k": 3}


def test_a_flag_replaces_a_repeated_or_other_flag_of_the_option(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LAMELLA_ARG_OVERRIDE_TENSOR", "a=CPU")
    monkeypatch.setenv("LAMELLA_ARG_CPU_MOE", "1")
    monkeypatch.setenv("LAMELLA_ARG_NO_REPACK", "1")
    assert values("-ot", "b=CPU", "-ncmoe", "2", "--repack") == {
        **{"overrides": (("b", "CPU"),), "n_cpu_moe": 2, "repack": True}
    }


def test_a_model_replaces_the_other_kind_of_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAMELLA_ARG_HF_REPO", "u/r")
    assert parser(["run"]).parse_args(["run"]).hf_repo is not None
    found = parser(["run"]).parse_args(["run", "-m", "f.gguf"])
    assert (found.model, found.hf_repo) == ("f.gguf", None)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("THREADS", "x", "lamella run: LAMELLA_ARG_THREADS: 'x' is not a whole number\n"),
        ("TEMP", "x", "lamella run: LAMELLA_ARG_TEMP: 'x' is not a number\n"),
        ("REPACK", "maybe", "lamella run: LAMELLA_ARG_REPACK: 'maybe' is not one of on, 1"),
        ("PLACEMENT", "c", "lamella run: LAMELLA_ARG_PLACEMENT: invalid choice: 'c'"),
        ("PARALLEL", "0", "lamella: error: LAMELLA_ARG_PARALLEL is 0: must be 1 to 1024"),
    ],
)
def test_invalid_variables(
    name: str, text: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"LAMELLA_ARG_{name}", text)
    done = lamella("run", "-m", "f", "-p", "x")
    assert done.stderr.startswith(message)
    assert done.returncode == 2


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("LLAMA_API_KEY", "there is no key"),
        ("LLAMA_ARG_API_KEY", "there is no key"),
        ("LAMELLA_ARG_API_KEY", "there is no key"),
        ("LAMELLA_ARG_API_KEY_FILE", "'' cannot be read"),
    ],
)
def test_an_empty_variable_for_keys_is_refused(
    name: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LAMELLA_ARG_PORT", "")  # of other flags, it sets nothing
    serve = ["serve", "-m", "f"]
    parser(serve).parse_args(serve)
    monkeypatch.setenv(name, "")
    with pytest.raises(SystemExit):
        parser(serve).parse_args(serve)
    assert f"{name}: {message}" in capsys.readouterr().err


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(CONFIG)
    return path


def test_a_config_file(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = {
        **{"n_ctx": 300, "repack": False, "n_threads": 3, "kv_offload": False},
        **{"overrides": (("a", "CPU"), ("b", "CPU")), "temperature": 0.25},
    }
    assert values("--config", str(config)) == expected
    monkeypatch.setenv("LAMELLA_ARG_CONFIG", str(config))
    assert values() == expected
    assert parser(["run"]).parse_args(["run"]).prompt == "from the file"
    found = parser(["serve"]).parse_args(["serve"])
    assert (found.port, found.n_ctx, hasattr(found, "n_threads")) == (1, 300, False)


@pytest.mark.parametrize(("text", "is_offline"), [("true", True), ("false", False)])
def test_off_replaces_the_on_of_a_lower_layer(
    text: str, is_offline: bool, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found() -> bool:
        is_on: bool = parser(["run"]).parse_args(["run", "--config", str(config)]).offline
        return is_on

    config.write_text(f"offline = true\n[run]\noffline = {text}\n")
    assert found() is is_offline
    config.write_text("offline = true\n")
    monkeypatch.setenv("LAMELLA_ARG_OFFLINE", text)
    assert found() is is_offline


def test_flags_and_variables_win_over_the_config_file(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_ARG_CTX_SIZE", "5")
    found = values("--config", str(config), "-t", "7")
    assert (found["n_ctx"], found["n_threads"], found["temperature"]) == (5, 7, 0.25)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ctx-sice = 3", "config.toml: ctx-sice: unknown key; did you mean -c/--ctx-size?"),
        (
            "[run]\ntempp = 3",
            "config.toml: [run] tempp: unknown key; did you mean --temp/--temperature?",
        ),
        ("[rnu]\ntmp = 3", "config.toml: [rnu]: unknown table; did you mean [run]?"),
        ("[server]\nport = 3", "config.toml: [server]: unknown table; did you mean [serve]?"),
        ("[zzz]\na = 3", "config.toml: [zzz]: unknown table; tables are named as commands are"),
        ("threads = 'x'", "config.toml: threads: 'x' is not a whole number"),
        ("[run]\nparallel = 0", "config.toml: [run] parallel is 0: must be 1 to 1024"),
        ("=", "config.toml cannot be read: Invalid"),
        ("# \udce9", "config.toml cannot be read: 'utf-8' codec can't decode byte 0xe9"),
        ("run = 1", "config.toml: run: must be a table, [run]"),
        ("list = true", "config.toml: list: must be a table, [list]"),
        ("help = true", "config.toml: help: unknown key"),
        ("list-devices = true", "config.toml: list-devices: unknown key"),
    ],
)
def test_invalid_config_files(text: str, message: str, config: Path) -> None:
    config.write_text(text, errors="surrogateescape")
    done = lamella("run", "-m", "f", "-p", "x", "--config", config)
    assert message in done.stderr
    assert done.returncode == 2


def test_one_config_file_for_several_commands(config: Path) -> None:
    config.write_text("port = 1\ntemp = 0\n[serve]\nmetrics = true\n")
    for command, other in (("run", "port"), ("plan", "temp"), ("list", "temp")):
        done = lamella(command, "--config", config, "nothing")
        note = f"{config}: {other} has no effect: `lamella {command}` has no such flag"
        assert note in done.stderr and "unknown key" not in done.stderr


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("LAMELLA_ARG_TEMPRATURE", "; did you mean LAMELLA_ARG_TEMPERATURE?"),
        ("LAMELLA_API_KEY", "; did you mean LAMELLA_ARG_API_KEY?"),
        ("LAMELLA_XYZ", ": Lamella has no such variable"),
    ],
)
def test_a_variable_that_nothing_reads(
    name: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "1")
    monkeypatch.setenv("LAMELLA_ARG_PORT", "1")  # of another command
    stderr = lamella("list").stderr
    assert f"{name} has no effect" in stderr and message in stderr
    assert "PORT" not in stderr


def test_a_flag_of_another_command() -> None:
    done = lamella("run", "--host", "x")
    assert "--host is a flag of `lamella serve`" in done.stderr and done.returncode == 2
