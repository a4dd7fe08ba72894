"""`lamella pull`, `list`, `show` and `rm`; bare `lamella`, `help` and `version`; models by name."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from commands import lamella, tiny_model
from control_vectors import directions, write_control
from fake_hub import FakeHub
from hub_world import hub_world
from make_adapter import named, random_matrices, write_adapter
from tiny_models import TINY, write_model

from lamella.cli.list import ago
from lamella.model.hub import headers
from lamella.model.hub.blobs import TRIES
from lamella.version import __version__

NAME = "tiny-Q4_K_M.gguf"
MODEL = "u/tiny:Q4_K_M"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return tiny_model(tmp_path_factory.mktemp("model")).read_bytes()


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes) -> Iterator[FakeHub]:
    with hub_world(tmp_path, monkeypatch) as made:
        made.add("u/tiny", {NAME: data, "tiny-Q8_0.gguf": data[:-1] + b"\1"})
        yield made


# --- pull ---


def test_a_pulled_model_runs_by_its_name_without_a_network(hub: FakeHub) -> None:
    done = lamella("pull", "u/tiny")
    assert done.returncode == 0, done.stderr
    first, *more = done.stdout.splitlines()
    assert first.startswith(f"{MODEL} is in ") and first.endswith(f"/{NAME}")
    assert more == [f"  lamella chat {MODEL}", f"  lamella serve {MODEL}"]
    assert f"downloaded {NAME}" in done.stderr
    hub.forget()
    run = ["-p", "ab", "-n", "2", "--temp", "0", "-c", "64"]
    texts = {lamella("run", name, *run).stdout for name in (MODEL, "u/tiny", "tiny")}
    texts |= {lamella("run", "-m", "tiny:q4_k_m", *run).stdout}
    assert len(texts) == 1 and texts != {""}
    assert hub.requests == []


def test_pull_gets_a_newer_version(hub: FakeHub, data: bytes) -> None:
    lamella("pull", MODEL)
    hub.add("u/tiny", {NAME: data[:-1] + b"\2"})
    assert "downloaded" not in lamella("show", MODEL).stderr
    assert f"downloaded {NAME}" in lamella("pull", MODEL).stderr
    assert "downloaded" not in lamella("pull", MODEL).stderr


def test_pull_from_a_url(hub: FakeHub) -> None:
    url = f"{hub.url('files')}/{NAME}"
    done = lamella("pull", url)
    name = url.partition("://")[2].replace(":", "_")
    assert done.stdout.startswith(f"{name} is in ")
    hub.forget()
    for one in (url, name, "tiny-Q4_K_M"):
        assert lamella("show", one).returncode == 0
    assert (
        f" {name} is cached; for a newer version, `lamella rm` it first"
        in lamella("pull", url).stderr
    )
    assert hub.requests == []


def test_pull_of_a_file(hub: FakeHub, tmp_path: Path) -> None:
    path = tiny_model(tmp_path)
    assert lamella("pull", path).stdout == (
        f"{path} is a file of this machine: there is nothing to download\n"
    )


def test_pull_without_a_model() -> None:
    done = lamella("pull")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no model: name one, such as `lamella pull USER/REPO:Q4_K_M`" in done.stderr


# --- list ---


@pytest.mark.parametrize("command", ["list", "ls"])
def test_an_empty_list_says_what_to_do(hub: FakeHub, command: str) -> None:
    done = lamella(command)
    assert done.returncode == 0
    head, row = done.stdout.splitlines()
    assert head.split() == ["NAME", "SIZE", "QUANT", "DOWNLOADED"]
    assert row.startswith("lamella-stories-Q8_0") and row.endswith("comes with Lamella")
    assert "`lamella pull USER/REPO:QUANT`" in done.stderr
    assert lamella("list", "--json").stdout == "[]\n"


def test_a_list(hub: FakeHub, data: bytes) -> None:
    lamella("pull", MODEL)
    lamella("pull", "u/tiny:q8_0")
    done = lamella("list")
    assert done.stderr == ""
    names = [line.split()[0] for line in done.stdout.splitlines()]
    assert names == ["NAME", MODEL, "u/tiny:Q8_0", "lamella-stories-Q8_0"]
    assert "  Q8_0    just now" in done.stdout
    (found,) = json.loads(lamella("list", "Q4", "--json").stdout)
    assert (found["name"], found["repo"], found["quant"]) == (MODEL, "u/tiny", "Q4_K_M")
    assert found["size"] == len(data)
    assert [Path(path).read_bytes() for path in found["paths"]] == [data]
    assert found["modified"].endswith("+00:00")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((-5, "just now"), (59, "just now"), (60, "1 minute ago"), (7200, "2 hours ago")),
        *((86_400 * 6, "6 days ago"), (86_400 * 20, "2 weeks ago"), (10**9, "31 years ago")),
    ],
)
def test_times(seconds: float, text: str) -> None:
    assert ago(seconds) == text


def test_the_commands_of_the_cache_import_nothing_slow() -> None:
    code = (
        "import sys, lamella.cli.list, lamella.cli.rm; print(*sys.modules); "
        "import lamella.cli.download; print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, second = done.stdout.splitlines()
    assert not {"numpy", "numba", "gguf", "rich", "httpx"} & set(first.split())
    assert not {"huggingface_hub", "numba", "rich"} & set(second.split())


def test_a_partial_download_is_listed_and_removed(hub: FakeHub) -> None:
    hub.cuts = [4096, 2048, *[0] * TRIES]
    url = f"{hub.url('files')}/{NAME}"
    assert lamella("pull", url).returncode == 1
    assert "just now, partial" in lamella("list").stdout
    (found,) = json.loads(lamella("list", "--json").stdout)
    assert found["partial"] and found["size"] == 2048
    assert "2.00 KiB freed" in lamella("rm", url, "-y").stdout
    assert lamella("list", "--json").stdout == "[]\n"


# --- show ---


def test_show(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    metadata = {
        "general.license": "mit",
        "general.sampling.temp": 0.5,
        "tokenizer.chat_template": "{{ messages }}",
    }
    write_model(TINY["llama"], path, metadata=metadata)
    lines = lamella("show", path).stdout.splitlines()
    assert lines[0] == str(path)
    found = dict(line.strip().split("  ", 1) for line in lines[1:])
    texts = {name: text.strip() for name, text in found.items()}
    assert (texts["architecture"], texts["chat template"], texts["license"]) == (
        "llama",
        "yes",
        "mit",
    )
    assert texts["sampling"] == "temperature 0.5"
    report = json.loads(lamella("show", path, "--json").stdout)
    assert report["n_vocab"] > 0 and report["n_params"] > 0 and report["is_supported"]
    assert texts["vocabulary"] == f"{report['n_vocab']} tokens ({report['vocabulary']})"
    assert lamella("show", path, "--template").stdout == "{{ messages }}\n"


def test_show_an_adapter(tmp_path: Path) -> None:
    model, path = tmp_path / "tiny.gguf", tmp_path / "rhymes.gguf"
    write_model(TINY["llama"], model)
    keys = {"adapter.lora.task_name": "rhymes"}
    tensors = named(random_matrices(model, 4))
    write_adapter(path, "llama", tensors, alpha=8.0, metadata=keys)
    lines = lamella("show", path).stdout.splitlines()
    assert lines == [
        str(path),
        "  kind            a LoRA adapter: open its model, with --lora FILE",
        "  name            rhymes",
        "  architecture    llama",
        "  rank            4, alpha 8.0",
        "  changes         14 matrices, 29.00 KiB",
        "  task            rhymes",
    ]
    report = json.loads(lamella("show", path, "--json").stdout)
    assert (report["type"], report["ranks"], report["matrices"]) == ("adapter", [4], 14)
    run = ["-p", "ab", "-n", "8", "--temp", "0", "-c", "64", "--ignore-eos"]
    texts = [
        lamella("run", model, *run, *more).stdout
        for more in ([], ["--lora", path], ["--lora-scaled", f"{path}:-9"])
    ]
    assert len(set(texts)) == 3
    off = ["--lora", path, "--lora-init-without-apply"]
    assert lamella("run", model, *run, *off).stdout == texts[0]
    wrong = lamella("run", path, *run)
    assert wrong.returncode == 1 and "this is an adapter: open its model" in wrong.stderr
    wrong = lamella("run", model, *run, "--lora", model)
    assert wrong.returncode == 1 and "general.type is missing: must be 'adapter'" in wrong.stderr


def test_run_with_a_control_vector(tmp_path: Path) -> None:
    model, path = tmp_path / "tiny.gguf", tmp_path / "steer.gguf"
    write_model(replace(TINY["llama"], n_layer=4), model)
    write_control(path, directions(4, 64))
    run = ["-p", "ab", "-n", "8", "--temp", "0", "-c", "64", "--ignore-eos"]
    texts = [
        lamella("run", model, *run, *more).stdout
        for more in (
            [],
            ["--control-vector", path],
            ["--control-vector-scaled", f"{path}:0.5,{path}:0.5"],
            ["--control-vector", path, "--control-vector-layer-range", "2", "3"],
        )
    ]
    assert len(set(texts)) == 3 and texts[1] == texts[2]
    wrong = lamella("run", model, *run, "--control-vector", model)
    assert wrong.returncode == 1 and "a control vector has tensors direction.1" in wrong.stderr
    wrong = lamella("run", "--model", path, *run)
    assert wrong.returncode == 1 and "this is a control vector: open its model" in wrong.stderr


@pytest.mark.parametrize("source", ["u/tiny:Q8_0", "url"])
def test_show_downloads_only_the_header(
    hub: FakeHub, data: bytes, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(headers, "HEADER_STEP", 4096)
    name = f"{hub.url('files')}/{NAME}" if source == "url" else source
    report = json.loads(lamella("show", name, "--json").stdout)
    assert report["architecture"] == "llama" and report["n_params"] > 0
    assert 0 < hub.n_sent < len(data) / 2
    assert json.loads(lamella("list", "--json").stdout) == []
    assert lamella("show", name).stdout.startswith(f"{name}\n")


# --- rm ---


def test_rm_frees_a_model(hub: FakeHub, data: bytes) -> None:
    lamella("pull", MODEL)
    lamella("pull", "u/tiny:Q8_0")
    done = lamella("rm", "tiny:q4_k_m", "-y")
    size = f"{len(data) / 1024:.2f} KiB"
    assert (done.returncode, done.stdout) == (0, f"removed {MODEL}: {size} freed\n")
    assert [m["name"] for m in json.loads(lamella("list", "--json").stdout)] == ["u/tiny:Q8_0"]


@pytest.mark.parametrize(("answer", "is_removed"), [("y\n", True), ("no\n", False), ("", False)])
def test_rm_asks(hub: FakeHub, answer: str, is_removed: bool) -> None:
    lamella("pull", MODEL)
    done = lamella("rm", MODEL, typed=answer)
    assert f"remove {MODEL} (" in done.stderr and ")? [y/N] " in done.stderr
    assert done.returncode == (0 if is_removed else 1)
    assert (lamella("list", "--json").stdout == "[]\n") is is_removed


def test_rm_removes_only_downloads(hub: FakeHub, tmp_path: Path) -> None:
    path = tiny_model(tmp_path)
    lamella("pull", MODEL)
    for name, message in (
        (str(path), "is a file of yours: `lamella rm` removes only downloads"),
        ("lamella-stories-Q8_0", "comes with Lamella: it stays"),
        ("tinny", f"no downloaded model has this name; there are {MODEL}"),
        (MODEL, "there is no terminal to ask: repeat the command with -y"),
    ):
        flags = [] if name == MODEL else ["-y"]
        done = lamella("rm", MODEL, name, *flags)
        assert (done.returncode, done.stdout) == (1, "")
        assert message in done.stderr and done.stderr.count("\n") == 1
    assert path.exists() and MODEL in lamella("list").stdout


# --- words ---


def test_lamella_alone_shows_what_to_type() -> None:
    done = lamella()
    assert (done.returncode, done.stderr) == (0, "")
    assert "lamella chat" in done.stdout and "lamella help" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


@pytest.mark.parametrize("command", ["run", "pull", "list", "show", "rm"])
def test_help_of_a_command(command: str) -> None:
    done = lamella("help", command)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == lamella(command, "--help").stdout
    assert done.stdout.startswith(f"usage: lamella {command} ")
    assert max(map(len, done.stdout.splitlines())) <= 100


def test_help_and_version() -> None:
    assert lamella("help").stdout == lamella("--help").stdout
    for args in (["version"], ["--version"], ["-V"]):
        assert lamella(*args).stdout == f"lamella {__version__}\n"


@pytest.mark.parametrize(
    ("command", "advice"),
    [
        *(("server", "use `lamella serve`"), ("cli", "use `lamella run`")),
        *(("ps", "GET /v1/models"), ("stop", "Ctrl-C"), ("cp", "-a NAME"), ("create", "-sys")),
        *(("push", "hf upload"), ("signin", "hf auth login"), ("download", "lamella pull")),
    ],
)
def test_commands_of_other_programs(command: str, advice: str) -> None:
    done = lamella(command, "x")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"lamella: there is no command {command}: ")
    assert advice in done.stderr


@pytest.mark.parametrize("model", ["f.gguf", "u/r:Q8_0", "./f", "https://a.b/c.gguf"])
def test_a_model_instead_of_a_command(model: str) -> None:
    done = lamella(model)
    assert done.returncode == 2
    assert done.stderr.startswith(
        f"lamella: {model!r} is not a command; to run this model: `lamella run {model}`\n"
    )
