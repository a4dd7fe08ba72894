"""Without a model flag, commands and `scripts/serve` use the model that comes with Lamella."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import lamella
from serving import Server

from lamella.model.shipped import shipped_model

ROOT = Path(__file__).resolve().parents[2]
ANSWERS = json.loads((ROOT / "models" / "greedy.json").read_text("utf-8"))
SERVE = str(ROOT / "scripts" / "serve")
NOTE = "using lamella-stories-Q8_0, the small model that comes with Lamella; for another model,"


def test_run_and_chat_use_the_default_model() -> None:
    run = ["run", "-p", "Once", "-n", "8", "--temp", "0"]
    named = lamella(*run, "-m", shipped_model())
    unnamed = lamella(*run)
    assert (unnamed.returncode, unnamed.stdout) == (0, named.stdout)
    assert "comes with" not in unnamed.stderr  # stderr is not a terminal
    chat = lamella("chat", "--temp", "0", stdin="Who are you?\n", terminal=True)
    assert chat.returncode == 0
    assert chat.stdout == ANSWERS["Who are you?"] + "\n"
    assert f"lamella: {NOTE}" in chat.stderr


@pytest.mark.parametrize("command", ["plan", "explain"])
def test_plan_and_explain_use_the_default_model(command: str) -> None:
    done = lamella(command, "-dev", "none")
    assert done.returncode == 0
    assert done.stdout.startswith("lamella-stories-Q8_0.gguf")
    assert f"usage: lamella {command} [MODEL] [options]" in lamella(command, "-h").stdout


def test_a_missing_default_model_is_a_one_line_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("lamella.model.shipped.shipped_model.__defaults__", (tmp_path,))
    done = lamella("run", "-p", "a")
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"lamella: error: {tmp_path}")
    assert line.endswith("or select another model with -m FILE or -hf USER/REPO")


installed = pytest.mark.skipif(
    not (ROOT / ".venv" / "installed-for").exists(), reason="scripts/serve would install Lamella"
)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server(None, command=[SERVE])
    yield server
    assert server.stop() == 0


@installed
def test_scripts_serve_answers(server: Server) -> None:
    assert any(NOTE in line for line in server.log)
    asked = ["Who are you?", "Explain quantum physics."] * 2
    found: dict[int, str] = {}

    def ask(i: int) -> None:
        messages = [{"role": "user", "content": asked[i]}]
        reply = server.post("/v1/chat/completions", messages=messages, temperature=0)
        found[i] = reply["choices"][0]["message"]["content"]

    clients = [threading.Thread(target=ask, args=(i,)) for i in range(len(asked))]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    assert [found[i] for i in range(len(asked))] == [ANSWERS[text] for text in asked]


@installed
def test_scripts_serve_passes_flags_on() -> None:
    done = subprocess.run([SERVE, "--prot", "1"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "unknown flag --prot; did you mean --port?" in done.stderr
