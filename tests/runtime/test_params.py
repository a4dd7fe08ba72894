"""Parameters are declared once: a new field is a new option everywhere."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny_models import TINY, write_model

from lamella.base.errors import RequestError
from lamella.base.options import declarations
from lamella.model.params import PlacementParams
from lamella.runtime.params import OpenParams, template_variables

ROOT = Path(__file__).resolve().parents[2]
RANGE = "low=1, high=9"
FIELDS = {  # by room and group
    ("model", "context"): f'n_new: int = option(3, "-nn", "--new", {RANGE}, help="new number")',
    ("runtime", "engine"): f'n_other: int = option(4, "--other", {RANGE}, help="other number")',
    ("runtime", "model"): 'is_third: bool = option(False, "--third", help="third option")',
    ("runtime", "generation"): f'n_last: int = option(5, "--last", {RANGE}, help="last number")',
}
HELPS = """
import contextlib, sys
from lamella.cli.main import main
for command in sys.argv[1:]:
    with contextlib.suppress(SystemExit):
        main([command, "--help"])
"""
PLANS = """
import json, os, sys
from lamella.cli.main import main
for flags, variables in json.loads(sys.argv[1]):
    os.environ.update(variables)
    assert main(["plan", "-dev", "none", "--json", *flags]) == 0
    for name in variables:
        del os.environ[name]
sys.exit(main(["plan", *flags, "-nn", "10"]))
"""
BODY = """
from lamella.server.schema import CompletionBody
print(CompletionBody(prompt="a", n_last=3).params)
"""
ROOMS = ("base", "graph", "alloc", "sched", "kernels", "model", "runtime", "observe")


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with one more field in each of four groups of options."""
    folder = tmp_path_factory.mktemp("changed")
    shutil.copytree(ROOT / "api", folder / "lamella")
    for room in (*ROOMS, "server", "cli"):
        copy = folder / "lamella" / room
        if room not in {room for room, _ in FIELDS}:
            copy.symlink_to(ROOT / room)
            continue
        shutil.copytree(ROOT / room, copy)
    for (room, group), field in FIELDS.items():
        file = folder / "lamella" / room / "params.py"
        title = f'    title: ClassVar[str] = "{group}"\n'
        before, after = file.read_text("utf-8").split(title)
        file.write_text(f"{before}{title}\n    {field}\n{after}", "utf-8")
    return folder


def run(changed: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *args],
        capture_output=True,
        text=True,
        check=False,
        cwd=changed,
        env={**os.environ, "PYTHONPATH": str(changed)},
    )


def test_a_new_field_is_an_option_everywhere(changed: Path, tmp_path: Path) -> None:
    write_model(TINY["llama"], tmp_path / "m.gguf")
    model = str(tmp_path / "m.gguf")

    helps = run(changed, "-c", HELPS, "run", "chat", "serve", "plan", "explain", "profile", "bench")
    for text in helps.stdout.split("usage:")[1:]:
        assert "-nn, --new N" in text and "new number (3)" in text, text
    for help_text in ("new number (3)", "other number (4)", "third option"):
        assert helps.stdout.count(help_text) == 7, helps.stderr
    assert helps.stdout.count("last number (5)") == 3, "in run, chat and serve"
    expected: list[tuple[tuple[str, ...], dict[str, str], list[object]]] = [
        (("-nn", "5", "--other", "6", "--third"), {}, [5, 6, True]),
        ((), {"LAMELLA_ARG_NEW": "7"}, [7, 4, False]),
        (("-nn", "5"), {"LAMELLA_ARG_NEW": "7"}, [5, 4, False]),
        ((), {}, [3, 4, False]),
    ]
    commands = [((model, *flags), variables) for flags, variables, _ in expected]
    planned = run(changed, "-c", PLANS, json.dumps(commands))
    params = [json.loads(line)["params"] for line in planned.stdout.splitlines()]
    names = ("n_new", "n_other", "is_third")
    assert [[p[name] for name in names] for p in params] == [found for *_, found in expected]
    assert planned.returncode == 2
    assert "error: -nn/--new is 10: must be 1 to 9" in planned.stderr
    code = f"""
import lamella
with lamella.load({model!r}, devices=["none"], n_new=6) as model:
    print(model.plan.params.context.n_new)
    print(len(list(model.generate("a", n_predict=1, n_last=2))) <= 1)
    try:
        model.generate("a", n_last=0)
    except lamella.RequestError as e:
        print(e)
try:
    lamella.load({model!r}, n_new=0)
except lamella.RequestError as e:
    print(e)
"""
    done = run(changed, "-c", code + BODY)
    assert done.stdout.splitlines() == [
        *("6", "True", "n_last is 0: must be 1 to 9", "n_new is 0: must be 1 to 9"),
        "{'n_last': 3}",
    ], done.stderr


def test_every_option_is_read_somewhere() -> None:
    """Code reads each option from a variable or a field that holds parameters."""
    holders = {"params", "rules"}
    read = {
        node.attr
        for room in (*ROOMS, "server", "cli")
        for path in (ROOT / room).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Attribute) and holders & {*ast.unparse(node.value).split(".")}
    }
    assert declarations(OpenParams).keys() <= read


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("n_ctx", -1, r"n_ctx is -1: must be 0 to 2147483647"),
        ("n_parallel", 0, r"n_parallel is 0: must be 1 to 1024"),
        ("max_waiting", 0, r"max_waiting is 0: must be 1 to 2147483647"),
        ("n_threads", 1.5, "n_threads is 1.5: must be a whole number"),
        ("type_k", "q4_k", "type_k is 'q4_k': must be one of f16, bf16, f32, q8_0, q4_0, "),
        ("devices", "CUDA0", "devices is 'CUDA0': must be a list of names"),
        ("devices", 5, "devices is 5: must be a list of names"),
        ("devices", [5], r"devices is \[5\]: must be a list of names"),
        ("split_mode", "rows", "split_mode is 'rows': must be one of layer, none$"),
        ("split_mode", "row", "'row': must be one of layer, none; a layer is computed whole"),
        ("placement", "never", "placement is 'never': must be one of strict, warn, auto"),
    ],
)
def test_invalid_values(name: str, value: object, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        OpenParams.make({name: value})


def test_devices_may_be_any_sequence() -> None:
    assert PlacementParams(devices=["sim", "none"]).devices == ("sim", "none")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {}),
        ({"reasoning": "on"}, {"enable_thinking": True}),
        ({"reasoning": "off"}, {"enable_thinking": False}),
        ({"reasoning_effort": "low"}, {"reasoning_effort": "low"}),
        ({"reasoning_effort": "none"}, {"enable_thinking": False}),
        (
            {"reasoning": "on", "chat_template_kwargs": {"enable_thinking": False, "a": 1}},
            {"enable_thinking": False, "a": 1},
        ),
    ],
)
def test_options_of_reasoning_are_variables_of_the_template(
    given: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert template_variables(OpenParams.make(given).model) == expected
