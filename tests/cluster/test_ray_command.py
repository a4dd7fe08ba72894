"""`lamella serve --ray` and the application: what they refuse. Replicas are in test_ray.py."""

from __future__ import annotations

import importlib.util
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pytest

from lamella.base.errors import UnavailableError
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
        (["--ray", "--ssl-key-file", "key.pem"], "--ssl-cert-file is missing"),
        (["--ray", "--ssl-cert-file", "a.pem", "--ssl-key-file", "b.pem"], "a.pem: No such file"),
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


def test_a_port_in_use_is_refused_before_ray_starts(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["serve", "--ray", "--port", port]) != 0
    errors = capsys.readouterr().err
    assert f"cannot listen on 127.0.0.1, port {port}" in errors
    assert len(errors.splitlines()) == 1


@pytest.mark.filterwarnings("ignore")  # Ray warns of much
def test_the_wait_for_replicas() -> None:
    from lamella.cluster.service import wait_running  # noqa: PLC0415 - needs Ray

    states = iter([("DEPLOYING", ""), ("RUNNING", "")])
    assert wait_running(lambda: next(states), threading.Event())
    with pytest.raises(UnavailableError, match="no replica could be started: out of memory"):
        wait_running(lambda: ("DEPLOY_FAILED", "out of memory"), threading.Event())
    stop = threading.Event()

    def status() -> tuple[str, str]:
        stop.set()  # Ctrl-C
        return "DEPLOYING", "no node has the memory"

    assert not wait_running(status, stop)


APPS: list[tuple[Mapping[str, Any], str]] = [
    ({"n_ctx": 512}, ""),
    ({"models": [{"name": "a", "temperature": 0}, {"name": "b", "replicas": "1..4"}]}, ""),
    ({"ray_actor_options": {"num_cpus": 0.5}, "metrics": True}, ""),
    ({"n_context": 1}, "unknown argument 'n_context'; did you mean n_ctx?"),
    ({"temperature": "hot"}, "temperature"),
    ({"replicas": "none"}, "replicas is 'none'"),
    ({"models": []}, "models must be a list"),
    ({"models": ["a.gguf"]}, "models[0] is 'a.gguf': must be the options of a model"),
    ({"ray_actor_options": 5}, "ray_actor_options is 5: must be an object"),
    (
        {"ray_actor_options": {"memory": "1GB"}},
        "ray_actor_options.memory is '1GB': must be a number",
    ),
    ({"ray_actor_options": {"num_gpus": -1}}, "ray_actor_options.num_gpus is -1: must be a number"),
    ({"name": "org/model#1"}, ""),
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
