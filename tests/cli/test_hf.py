"""Models on Hugging Face (-hf) in real commands, with a fake hub."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import LAMELLA, lamella, tiny_model
from fake_hub import FakeHub, digest_of
from hub_world import environment, hub_world

from lamella.cli import bench
from lamella.cli.download import DownloadBar
from lamella.model.hub import headers

NAME = "tiny-Q4_K_M.gguf"
RUN = ["run", "-p", "ab", "-n", "2", "--temp", "0", "-c", "64"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return tiny_model(tmp_path_factory.mktemp("model")).read_bytes()


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: bytes) -> Iterator[FakeHub]:
    with hub_world(tmp_path, monkeypatch) as made:
        made.add("u/tiny", {NAME: model, "tiny-Q8_0.gguf": model[:-1] + b"\1"})
        yield made


def lines_without_timings(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith(("prompt:", "compil"))]


def test_a_downloaded_model_gives_the_same_text(hub: FakeHub, tmp_path: Path) -> None:
    expected = lamella(*RUN, "-m", tiny_model(tmp_path))
    first = lamella(*RUN, "-hf", "u/tiny")
    assert (first.returncode, first.stdout) == (0, expected.stdout)
    begins, ends = lines_without_timings(first.stderr)
    size = len(hub.repos["u/tiny"].files[NAME]) / 1024
    assert begins == f"downloading {NAME}, {size:.2f} KiB ..."
    assert ends.startswith(f"downloaded {NAME}, {size:.2f} KiB, in ")
    assert len(hub.deliveries()) == 1
    hub.forget()
    second = lamella(*RUN, "-hf", "u/tiny:q4_k_m", "--offline")
    assert (second.returncode, second.stdout) == (0, expected.stdout)
    assert lines_without_timings(second.stderr) == []
    assert hub.requests == []


def test_a_file_by_its_name(hub: FakeHub, tmp_path: Path) -> None:
    assert lamella(*RUN, "-hf", "u/tiny", "-hff", "tiny-Q8_0.gguf").returncode == 0
    assert next(r.path for r in hub.requests if "/resolve/" in r.path).endswith("/tiny-Q8_0.gguf")


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("u/none", "has no repository u/none"),
        ("u/tiny:Q2_K", "u/tiny has no Q2_K; available: Q4_K_M ("),
    ],
)
def test_errors_are_one_line(hub: FakeHub, wanted: str, message: str) -> None:
    for command in (RUN, ["bench"], ["serve"], ["chat"], ["plan"], ["explain"]):
        done = lamella(*command, "-hf", wanted)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith("lamella: error: ")
        assert message in done.stderr
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("command", ["plan", "explain"])
def test_a_plan_downloads_only_the_header(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr(headers, "HEADER_STEP", 4096)
    args = [command, "--json", "-c", "64"] + (["--bandwidth", "CPU=1"] if command == "plan" else [])
    done = lamella(*args, "-hf", "u/tiny")
    assert done.returncode == 0, done.stderr
    found, expected = (
        json.loads(done.stdout),
        json.loads(lamella(*args, tiny_model(tmp_path)).stdout),
    )
    for plan in (found, expected):
        del plan["model"]
    if command == "plan":
        # free memory may change between the two runs, and with it the default size of the cache
        for plan in (found, expected):
            plan["devices"] = [device["needed"] for device in plan["devices"]]
            del plan["params"]["cache_ram"]
    assert found == expected
    assert 0 < hub.n_sent < len(hub.repos["u/tiny"].files[NAME]) / 2
    assert not (tmp_path / "cache").exists()


def test_bench_downloads(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "measure_apart", lambda n_threads, n_near: None)  # it is slow
    done = lamella("bench", "-hf", "u/tiny", "--json", "-p", "4", "-n", "0", "-r", "1")
    assert done.returncode == 0, done.stderr
    assert NAME in done.stdout


def test_a_download_resumes_after_ctrl_c(hub: FakeHub, tmp_path: Path, model: bytes) -> None:
    hub.stall_after = 300_000  # more than the file's buffer, so that some is written
    env = {**os.environ, **environment(hub, tmp_path)}
    part = tmp_path / "cache" / "models--u--tiny" / "blobs" / f"{digest_of(model)}.incomplete"
    with subprocess.Popen(
        [*LAMELLA, *RUN, "-hf", "u/tiny"],
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            while not (part.exists() and part.stat().st_size > 0):
                assert process.poll() is None
                time.sleep(0.02)
            time.sleep(0.2)  # let the process write more
            process.send_signal(signal.SIGINT)
            out, errors = process.communicate(timeout=250)
        finally:
            process.kill()
    assert (process.returncode, out) == (130, ""), errors
    assert "run the same command again to resume" in errors
    assert "Traceback" not in errors and "downloaded" not in errors
    there = part.stat().st_size
    assert 0 < there <= 300_000
    hub.stall_after = None
    hub.forget()
    done = subprocess.run(
        [*LAMELLA, *RUN, "-hf", "u/tiny"], env=env, text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert hub.n_sent == len(model) - there


def test_environment_variables(hub: FakeHub, tmp_path: Path, model: bytes) -> None:
    hub.repos["u/tiny"].private = True
    env = {**os.environ, **environment(hub, tmp_path), "HF_TOKEN": "hf_good"}
    done = subprocess.run(
        [*LAMELLA, *RUN, "-hf", "u/tiny"], env=env, text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "cache" / "models--u--tiny" / "blobs" / digest_of(model)).exists()
    # no needless requests
    assert {r.path.split("/")[1] for r in hub.requests if r.host == "hub"} == {"api", "u"}
    assert {r.path for r in hub.requests if "/api/" in r.path} == {"/api/models/u/tiny"}
    hub.forget()
    done = subprocess.run(
        [*LAMELLA, *RUN, "-hf", "u/tiny"],
        env={**env, "HF_HUB_OFFLINE": "1"},
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert hub.requests == []


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = Terminal()
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    bar = DownloadBar()
    for done in (0, 500 << 20, 1 << 30):
        bar.on_progress(done, 1 << 30, NAME)
    bar.close()
    assert NAME in stderr.getvalue() and "GiB" in stderr.getvalue()
    assert "downloading" not in stderr.getvalue()
    assert f"downloaded {NAME}, 1.00 GiB, in " in stderr.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_an_interrupted_download(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    bar = DownloadBar()
    bar.on_progress(0, 4 << 30, NAME)
    bar.on_progress(1 << 30, 4 << 30, NAME)
    bar.interrupted()
    bar.close()
    assert stderr.getvalue().endswith(
        "stopped after 1.00 GiB of 4.00 GiB: run the same command again to resume\n"
    )
    assert "downloaded" not in stderr.getvalue()
