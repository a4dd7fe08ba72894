"""Parameters are declared once: a new field is a new option everywhere."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_models import TINY, write_model

from lamella.base.errors import RequestError
from lamella.base.options import declarations
from lamella.model.params import PlacementParams
from lamella.runtime.params import OpenParams

ROOT = Path(__file__).resolve().parents[2]
FIELD = """
    n_new: int = option(3, "-nn", "--number-new", low=1, high=9, help="a new number")
"""
HELPS = """
import contextlib, sys
from lamella.cli.main import main
for command in sys.argv[1:]:
    with contextlib.suppress(SystemExit):
        main([command, "--help"])
"""
ROOMS = ("base", "graph", "alloc", "sched", "kernels", "model", "runtime", "observe")


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with one more field in one group of options."""
    folder = tmp_path_factory.mktemp("changed")
    shutil.copytree(ROOT / "api", folder / "lamella")
    for room in (*ROOMS, "server", "cli"):
        (folder / "lamella" / room).symlink_to(ROOT / room)
    (folder / "lamella" / "model").unlink()
    shutil.copytree(ROOT / "model", folder / "lamella" / "model")
    file = folder / "lamella" / "model" / "params.py"
    source = file.read_text("utf-8")
    file.write_text(f"{source.rstrip()}\n{FIELD}", "utf-8")  # ContextParams is the last class
    return folder


def run(changed: Path, *args: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *args],
        capture_output=True,
        text=True,
        check=False,
        cwd=changed,
        env={**os.environ, "PYTHONPATH": str(changed), **variables},
    )


def test_a_new_field_is_an_option_everywhere(changed: Path, tmp_path: Path) -> None:
    write_model(TINY["llama"], tmp_path / "m.gguf")
    model = str(tmp_path / "m.gguf")

    def planned(*flags: str, **variables: str) -> object:
        command = ("-m", "lamella.cli", "plan", model, "-dev", "none", "--json", *flags)
        done = run(changed, *command, **variables)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["params"]["n_new"]

    helps = run(changed, "-c", HELPS, "run", "chat", "serve", "plan", "explain", "profile", "bench")
    for text in helps.stdout.split("usage:")[1:]:
        assert "-nn, --number-new N" in text and "a new number (3)" in text, text
    assert helps.stdout.count("a new number (3)") == 7, helps.stderr
    assert planned() == 3
    assert planned("-nn", "5") == 5
    assert planned(LAMELLA_ARG_NUMBER_NEW="7") == 7
    assert planned("-nn", "5", LAMELLA_ARG_NUMBER_NEW="7") == 5
    wrong = run(changed, "-m", "lamella.cli", "plan", model, "-nn", "10")
    assert wrong.returncode == 1
    assert "error: -nn/--number-new is 10: must be 1 to 9" in wrong.stderr
    code = f"""
import lamella
with lamella.load({model!r}, devices=["none"], n_new=6) as model:
    print(model.plan.params.context.n_new)
try:
    lamella.load({model!r}, n_new=0)
except lamella.RequestError as e:
    print(e)
"""
    done = run(changed, "-c", code)
    assert done.stdout.splitlines() == ["6", "n_new is 0: must be 1 to 9"], done.stderr


def test_every_option_is_read_somewhere() -> None:
    """Code besides the declaration reads each option by its name."""
    sources = [
        path.read_text("utf-8")
        for room in (*ROOMS, "server", "cli")
        for path in (ROOT / room).rglob("*.py")
        if path.name != "params.py"
    ]
    for name in declarations(OpenParams):
        assert any(f".{name}" in source for source in sources), name


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("n_ctx", -1, r"n_ctx is -1: must be 0 to 2147483647"),
        ("n_parallel", 0, r"n_parallel is 0: must be 1 to 1024"),
        ("n_threads", 1.5, "n_threads is 1.5: must be a whole number"),
        ("type_k", "q4_0", "type_k is 'q4_0': must be one of f32, f16, bf16, q8_0"),
        ("devices", "CUDA0", "devices is 'CUDA0': must be a list of names"),
        ("placement", "never", "placement is 'never': must be one of strict, warn, auto"),
    ],
)
def test_invalid_values(name: str, value: object, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        OpenParams.make({name: value})


def test_devices_may_be_any_sequence() -> None:
    assert PlacementParams(devices=["sim", "none"]).devices == ("sim", "none")
