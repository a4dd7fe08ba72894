"""`lamella serve --ray` and the application: what they refuse. Replicas are in test_ray.py."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pytest

from lamella.cli.main import main

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="ray is not installed: lamella[ray]"
)


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--replicas", "2"], "--replicas and --address need --ray"),
        (["--ray", "--replicas", "8..2"], "must be a number, as 2, or a range, as 2..8"),
        (["--ray", "--models-dir", "."], "--ray serves one model: for several"),
        (["--ray", "--host", "a.sock"], "--host is a.sock: with --ray it must be one address"),
        (["--ray", "--host", "127.0.0.1,::1"], "with --ray it must be one address"),
        (["--ray", "-m", "none.gguf"], "none.gguf"),
    ],
)
def test_what_the_command_refuses(
    flags: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with suppress(SystemExit):
        assert main(["serve", *flags]) != 0
    errors = capsys.readouterr().err
    assert complaint in errors
    assert len(errors.splitlines()) <= 2


APPS: list[tuple[Mapping[str, Any], str]] = [
    ({"n_ctx": 512}, ""),
    ({"models": [{"name": "a", "temperature": 0}, {"name": "b", "replicas": "1..4"}]}, ""),
    ({"ray_actor_options": {"num_cpus": 0.5}, "metrics": True}, ""),
    ({"n_context": 1}, "unknown argument 'n_context'; did you mean n_ctx?"),
    ({"temperature": "hot"}, "temperature"),
    ({"replicas": "none"}, "replicas is 'none'"),
    ({"models": []}, "models must be a list"),
    ({"models": [{}, {}]}, "two models have the name lamella-stories-Q8_0"),
    ({"model": "/none.gguf"}, "/none.gguf"),
]
# in a process of its own, as Ray warns of much
TRY_APPS = """
import json, sys
from lamella.base.errors import LamellaError
from lamella.cluster import app
for args in json.loads(sys.argv[1]):
    try:
        app(args)
        print()
    except LamellaError as error:
        print(error)
"""


def test_arguments_of_the_application() -> None:
    command = [sys.executable, "-W", "ignore", "-c", TRY_APPS]
    args = json.dumps([args for args, _ in APPS])
    done = subprocess.run([*command, args], capture_output=True, text=True, check=True)
    found = done.stdout.splitlines()
    assert len(found) == len(APPS)
    for (_, complaint), said in zip(APPS, found, strict=True):
        assert complaint in said
        assert bool(complaint) == bool(said)
