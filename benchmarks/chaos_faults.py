"""The faults of `scripts/chaos` that need a server of their own, with the expected effects.

A fault is a function that causes it and asserts its effect. Tested by tests/server/test_chaos.py.
"""

from __future__ import annotations

import os
import re
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final

from chaos_files import FILES
from chaos_limits import LIMITS
from chaos_server import Server, started
from chaos_world import GREEDY, Fault, World, ended, faulty, health_of, stream, wait_for
from raw_http import Answer, ask, connect, message, outcome

GRAMMAR: Final = {**GREEDY, "grammar": 'root ::= "x" [a-z]+'}


def _dead(word: str) -> Callable[[World], None]:
    """The engine hangs, fails or ends: /health is 503, /live 200, and the watchdog ends it."""

    def cause(world: World) -> None:
        with faulty(world, ["--step-timeout", "2", "--watchdog", "3"]) as (server, set_fault):
            world.check(server)
            set_fault(word)
            with ExitStack() as stack:
                for _ in range(4):
                    client = stack.enter_context(connect(server.port))
                    client.sendall(message("POST", "/completion", GREEDY))
                    time.sleep(0.1)  # else one step has all
                wait_for(lambda: health_of(server) == 503, "unhealthy")
                assert ask(server.port, message("GET", "/live")).status == 200
                status = ended(server, " by the watchdog")
        assert status == 4, f"the exit status is {status}"

    return cause


def _clock(world: World) -> None:
    with faulty(world) as (server, set_fault):
        for word in ("back", "ahead", "back", ""):
            set_fault(word)
            world.check(server)


def _grammar_helper(world: World) -> None:
    with started(world.flags) as server:
        assert _grammar(server).status == 200
        children = Path(f"/proc/{server.process.pid}/task").glob("*/children")
        helpers = [int(each) for path in children for each in path.read_text().split()]
        names = {each: Path(f"/proc/{each}/cmdline").read_text() for each in helpers}
        killed = [each for each, name in names.items() if "sandbox_process" in name]
        assert killed, f"no helper among {names}"
        for each in killed:
            os.kill(each, signal.SIGKILL)
        wait_for(lambda: _grammar(server).status == 200, "compiling grammars again")
        world.check(server)


def _grammar(server: Server) -> Answer:
    return ask(server.port, message("POST", "/completion", GRAMMAR))


def _full_disk(world: World) -> None:
    with started(world.flags) as server:
        pid = server.process.pid
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, 1))  # no file can grow
        for _ in range(20):
            assert ask(server.port, message("GET", "/nowhere")).status == 404
        world.check(server)


def _many_files(world: World) -> None:
    with started(world.flags, n_files=128) as server, ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(closing(connect(server.port)))
        outcome(server.port, message("GET", "/health"), timeout=2)  # 200, or a refusal
        assert server.status is None, "the server has ended"
        n_bytes = len(server.log)
        time.sleep(2)
        assert len(server.log) < n_bytes + 100_000, "the log grows"
        stack.close()
        wait_for(lambda: outcome(server.port, message("GET", "/health")) == "200", "healthy again")
        world.check(server)


def _idle(world: World) -> None:
    with started(world.flags) as server, ExitStack() as stack:
        for _ in range(1000):
            stack.enter_context(closing(connect(server.port)))
        stack.close()
        wait_for(lambda: outcome(server.port, message("GET", "/health")) == "200", "healthy again")
        world.check(server)


def _unread(world: World) -> None:
    with started(world.flags) as server, ExitStack() as stack:
        for _ in range(8):
            stack.enter_context(closing(stream(server)))
        world.check(server)


def _half_closed(world: World) -> None:
    with started(world.flags) as server:
        with closing(connect(server.port)) as client:
            client.sendall(message("POST", "/completion", GREEDY))
            client.shutdown(socket.SHUT_WR)
            client.recv(1000)  # a reply, or the end
        world.check(server)


def _many_prompts(world: World) -> None:
    with started(world.flags) as server, closing(connect(server.port)) as client:
        body = {"prompt": ["a"] * 500, "n_predict": 200, "ignore_eos": True}
        client.sendall(message("POST", "/completion", body))
        world.check(server)  # while these run, or after they were refused


def _stopped(world: World) -> None:
    with started([*world.flags, "--step-timeout", "2", "--watchdog", "2"]) as server:
        server.process.send_signal(signal.SIGSTOP)
        time.sleep(6)
        server.process.send_signal(signal.SIGCONT)
        wait_for(lambda: outcome(server.port, message("GET", "/health")) == "200", "healthy again")
        world.check(server)


def _drain(world: World) -> None:
    with started([*world.flags, "--drain", "30"]) as server:
        body = {"prompt": "a", "n_predict": 300, "ignore_eos": True, "stream": True}
        with closing(connect(server.port)) as client:
            client.sendall(message("POST", "/completion", body))
            found = client.recv(1000)
            server.process.send_signal(signal.SIGTERM)
            while part := client.recv(65536):
                found += part
        assert b'"stop":true' in found.replace(b" ", b""), "the running text was cut off"
        status = ended(server)
        assert status == 0, f"the exit status is {status}"


def _second_signal(world: World) -> None:
    with (
        started([*world.flags, "--drain", "3600", "--timeout", "3600"]) as server,
        closing(stream(server)),
    ):
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        server.process.send_signal(signal.SIGTERM)
        status = ended(server)
        assert status == 0, f"the exit status is {status}"


def _memory(world: World) -> None:
    with started(world.flags) as server:
        text = Path(f"/proc/{server.process.pid}/status").read_text()
        found = re.search(r"VmSize:\s+(\d+)", text)
        assert found is not None
        limit = (int(found[1]) + 50 * 1024) * 1024
        unlimited = resource.prlimit(server.process.pid, resource.RLIMIT_AS)
        resource.prlimit(server.process.pid, resource.RLIMIT_AS, (limit, unlimited[1]))
        for n in (1, 100, 500):
            body = {"prompt": ["the cat " * 100] * n, "n_predict": 4, "n_probs": 100}
            outcome(server.port, message("POST", "/completion", body))
        resource.prlimit(server.process.pid, resource.RLIMIT_AS, unlimited)
        assert server.status is None, f"the server has ended: {server.log[-500:]}"
        world.check(server)


def _closed_stderr(world: World) -> None:
    command = ["sh", "-c", 'exec "$0" -m lamella.cli serve "$@" 2>&-', sys.executable]
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    with started([*world.flags, "--port", str(port)], command=command, is_ready=False) as server:
        server.port = port
        wait_for(lambda: outcome(port, message("GET", "/health")) == "200", "healthy")
        world.check(server)


FAULTS: Final = {
    "hung-step": Fault("/health 503, /live 200; the watchdog ends with 4", _dead("hang"), True),
    "failing-steps": Fault("/health 503, /live 200; the watchdog ends with 4", _dead("fail")),
    "engine-gone": Fault("/health 503, /live 200; the watchdog ends with 4", _dead("die")),
    "clock": Fault("a clock that jumps by days changes nothing", _clock),
    "grammar-helper": Fault("the next grammar starts another helper", _grammar_helper, True),
    "full-disk": Fault("requests are answered; the log is lost", _full_disk),
    "closed-stderr": Fault("requests are answered", _closed_stderr),
    "few-files": Fault("it goes on, and the log stays short", _many_files),
    "idle": Fault("1,000 idle connections, then all is well", _idle),
    "unread": Fault("streams that are never read leave their places", _unread),
    "half-closed": Fault("a client that closes its half harms itself only", _half_closed),
    "500-prompts": Fault("other requests are answered meanwhile", _many_prompts),
    "stopped": Fault("SIGSTOP, then SIGCONT: it goes on; the watchdog does not bite", _stopped),
    "drain": Fault("SIGTERM: running texts end, then status 0", _drain),
    "second-signal": Fault("the second SIGTERM ends running texts, status 0", _second_signal),
    "memory": Fault("requests that find no memory fail, others do not", _memory),
    **LIMITS,
    **FILES,
}
