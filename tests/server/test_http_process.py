"""The server as a process: its address line, signals, exit statuses."""

from __future__ import annotations

import http.client
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import pytest
from fake_context import WAIT_S
from http_world import RunningServer, make_model

from lamella.server.app import FORCED_STATUS, N_STOP_SECONDS
from lamella.server.watchdog import DEAD_STATUS

PROGRAM = """
import logging, sys, time
sys.path = {path!r}
from fake_context import FakeContext
from http_world import make_model
from lamella.base.errors import ModelFileError
from lamella.base.log_output import LogParams, set_up_log
from lamella.server import app
from lamella.server.app import run_server
from lamella.server.config import ServerConfig

context = FakeContext(n_ctx=100_000)

def on_decode(step):
    {on_decode}

context.on_decode = on_decode
if not {last_resorts}:
    app.N_STOP_SECONDS = app.N_HANDLER_SECONDS = 3600.0

def load():
    {load}

set_up_log(LogParams(), logging.INFO)
config = ServerConfig(port=0, request_log={request_log}, **{options})
sys.exit(run_server(config, load))
"""


@contextmanager
def process(
    *,
    load: str = "return make_model(context)",
    on_decode: str = "pass",
    last_resorts: bool = False,
    request_log: bool = False,
    **options: int,
) -> Iterator[subprocess.Popen[str]]:
    """A server process, killed at the end if it still runs. `options` are the server's. Without
    `last_resorts`, the server has no time limits for stopping, so that tests do not depend on the
    machine's speed."""
    code = PROGRAM.format(
        path=sys.path,
        load=load,
        on_decode=on_decode,
        last_resorts=last_resorts,
        request_log=request_log,
        options=options,
    )
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            yield server
        finally:
            server.kill()


def next_line(server: subprocess.Popen[str]) -> str:
    assert server.stderr is not None
    return server.stderr.readline()


def port_of(server: subprocess.Popen[str]) -> int:
    line = next_line(server)
    assert line.startswith("lamella: listening on http://127.0.0.1:"), line
    return int(line.rpartition(":")[2])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_server_with_status_0(number: signal.Signals) -> None:
    with process(on_decode="time.sleep(0.01)", drain=0) as server:
        port = port_of(server)
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)) as client:
            body = b'{"prompt": "a", "stream": true, "ignore_eos": true}'
            client.request("POST", "/completion", body)
            response = client.getresponse()
            assert response.status == 200
            server.send_signal(number)
            rest = response.read()
        assert b'"message":"the server is stopping","type":"unavailable_error"' in rest
        assert server.wait(WAIT_S) == 0
        assert server.stderr is not None
        assert server.stderr.read() == ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_more_signals_change_nothing(number: signal.Signals) -> None:
    with process() as server:
        port_of(server)
        while server.poll() is None:
            server.send_signal(number)
            time.sleep(0.01)
        assert server.returncode == 0
        assert server.stderr is not None
        assert server.stderr.read() == ""


def test_a_signal_that_another_thread_gets() -> None:
    """As often after SIGSTOP and SIGCONT. Nothing else wakes the main thread."""
    load = (
        "from lamella.server import accepting; accepting.N_SWEEP_SECONDS = 3600.0; "
        "import signal, threading; "
        "send = lambda: (sys.stdin.readline(), "
        "signal.pthread_kill(threading.get_ident(), signal.SIGTERM), time.sleep(3600)); "
        "threading.Thread(target=send, daemon=True).start(); "
        "return make_model(context)"
    )
    with process(load=load) as server:
        port_of(server)
        time.sleep(1)  # the main thread waits for events
        assert server.stdin is not None
        server.stdin.write("now\n")
        server.stdin.flush()
        assert server.wait(WAIT_S) == 0


def test_an_endless_step_does_not_keep_the_server_alive() -> None:
    assert N_STOP_SECONDS < 5
    step = "print('in a step', file=sys.stderr, flush=True); time.sleep(3600)"
    with process(on_decode=step, last_resorts=True, drain=1) as server:
        port = port_of(server)
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)) as client:
            client.request("POST", "/completion", b'{"prompt": "a"}')
            assert next_line(server) == "in a step\n"
            server.terminate()
            response = client.getresponse()
            assert (response.status, b"the server is stopping" in response.read()) == (503, True)
            assert server.wait(WAIT_S) == FORCED_STATUS


def test_a_second_signal_ends_running_requests() -> None:
    with process(on_decode="time.sleep(0.01)", drain=3600) as server:
        port = port_of(server)
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)) as client:
            client.request("POST", "/completion", b'{"prompt": "a", "ignore_eos": true}')
            other = RunningServer(make_model(), port)
            while not any(slot["is_processing"] for slot in other.get("/slots").json):
                time.sleep(0.01)
            server.terminate()
            while other.get("/health").status == 200:
                time.sleep(0.01)
            assert server.poll() is None
            server.terminate()
            assert client.getresponse().status == 503
        other.model.engine.close()
        assert server.wait(WAIT_S) == 0


def test_the_watchdog_ends_a_server_whose_step_hangs() -> None:
    step = "time.sleep(3600)"
    with process(on_decode=step, step_timeout=1, watchdog=1) as server:
        port = port_of(server)
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)) as client:
            client.request("POST", "/completion", b'{"prompt": "a"}')
            assert server.wait(WAIT_S) == DEAD_STATUS
        assert server.stderr is not None
        report = server.stderr.read()
    assert "--watchdog 1: the process ends with status 4: a step of the engine has run" in report
    assert "on_decode" in report  # the stack of the engine's thread


def test_a_signal_while_the_model_loads() -> None:
    load = "print('loading', file=sys.stderr, flush=True); time.sleep(3600)"
    with process(load=load) as server:
        assert next_line(server) == "loading\n"
        server.terminate()
        assert server.wait(WAIT_S) == 0


def test_a_load_error() -> None:
    with process(load="raise ModelFileError('x.gguf: not a GGUF file')") as server:
        assert next_line(server) == "lamella: error: x.gguf: not a GGUF file\n"
        assert server.wait(WAIT_S) == 1


def test_a_load_error_with_a_log_that_nobody_reads() -> None:
    load = "[app.log.info('x' * 1000) for _ in range(200)]; raise ModelFileError('x')"
    with process(load=load) as server:
        assert server.wait(WAIT_S) == 1


def test_invalid_http_and_disconnects_are_not_logged() -> None:
    with process(on_decode="time.sleep(0.005)") as server:
        port = port_of(server)
        body = b'{"prompt": "a", "stream": true, "ignore_eos": true}'
        request = b"POST /completion HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        for raw in (b"GET /health HTTP/1.1\r\nContent-Length: -1\r\n\r\n", *[request] * 20):
            with closing(socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)) as client:
                client.sendall(raw)
                assert client.recv(1000)
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        server.terminate()
        assert server.wait(WAIT_S) == 0
        assert server.stderr is not None
        assert server.stderr.read() == ""


def test_invalid_bodies_do_not_end_the_server() -> None:
    with process() as server:
        client = RunningServer(make_model(), port_of(server))
        client.model.engine.close()
        for raw in (b"[" * 200_000, b"\x00" * 1000, b'{"prompt": [' + b"1," * 50_000 + b"-1]}"):
            with ThreadPoolExecutor(4) as pool:
                replies = pool.map(client.post, ["/completion"] * 4, [raw] * 4)
            assert [reply.status for reply in replies] == [400] * 4
        assert client.get("/health").status == 200
        assert server.poll() is None
