"""The faults of `scripts/chaos` that ask for more than a server's limits allow.

What is refused must have the right status, be counted, and leave others their service.
Tested by tests/server/test_chaos.py.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Final

from chaos_server import Server, started
from chaos_world import GREEDY, Fault, World, complete, ended, faulty, health_of, stream, wait_for
from raw_http import Answer, ask, bearer, connect, message, read_answer

KEYS: Final = """
[[keys]]
name = "rare"
key = "rare"
requests_per_minute = 2
[[keys]]
name = "narrow"
key = "narrow"
max_running = 1
[[keys]]
key = "other"
"""
OTHER_CLIENTS: Final = ("127.0.0.3", "127.0.0.4", "127.0.0.5", "127.0.0.6")
PROBS: Final = {"prompt": "a", "n_probs": 512, "ignore_eos": True}
BODY_SECONDS: Final = 2  # of --timeout
HEALTH_SECONDS: Final = 10  # most for an answer; the machine may be busy
BOMB_MB: Final = 1024


def _assert_refused(answer: Answer, status: int) -> None:
    """Assert a status, and that the client knows when to try again."""
    assert answer.status == status, f"{answer.status}, expected {status}: {answer.raw[:200]!r}"
    seconds = answer.headers.get("retry-after", "")
    assert seconds.isdigit() and int(seconds) > 0, f"{status} with Retry-After {seconds!r}"


def _n_counted(server: Server, status: int, key: str = "") -> int:
    """The ended requests with a status, as /metrics counts them."""
    text = ask(server.port, message("GET", "/metrics", headers=bearer(key))).raw.decode()
    line = rf'^lamella_requests_total{{.*status="{status}".*}} (\S+)$'
    return sum(int(float(n)) for n in re.findall(line, text, re.MULTILINE))


def _assert_counted(server: Server, status: int, n: int, key: str = "") -> None:
    """Assert that /metrics counts `n` requests with a status, those after their replies too."""
    wait_for(lambda: _n_counted(server, status, key) >= n, f"{n} with {status} in /metrics")
    found = _n_counted(server, status, key)
    assert found == n, f"/metrics counts {found} with {status}, there were {n}"


def _key_limits(world: World) -> None:
    file = world.folder / "keys.toml"
    file.write_text(KEYS)
    flags = ["--metrics", "--api-key-file", str(file)]
    with faulty(world, flags) as (server, set_fault):
        set_fault("slow")  # else the stream ends soon
        statuses = [complete(server, bearer("rare")).status for _ in range(2)]
        assert statuses == [200, 200], statuses
        for _ in range(3):
            _assert_refused(complete(server, bearer("rare")), 429)
            assert complete(server, bearer("other")).status == 200
        with closing(stream(server, bearer("narrow"))):
            for _ in range(2):
                _assert_refused(complete(server, bearer("narrow")), 429)
                assert complete(server, bearer("other")).status == 200
        _assert_counted(server, 429, 3 + 2, "other")
        wait_for(lambda: complete(server, bearer("narrow")).status == 200, "served again")


def _counts(world: World) -> None:
    flags = ["-np", "1", "--metrics", "--max-waiting", "3", "--max-client-waiting", "1"]
    with faulty(world, flags) as (server, set_fault), ExitStack() as stack:
        set_fault("slow")  # else the stream ends soon
        running = [stack.enter_context(closing(stream(server)))]
        for source in OTHER_CLIENTS[:3]:  # these wait
            running.append(stack.enter_context(closing(connect(server.port, source=source))))
            running[-1].sendall(message("POST", "/completion", GREEDY))
        wait_for(lambda: _n_waiting(server) == 3, "3 requests wait")
        for _ in range(5):
            _assert_refused(complete(server, source=OTHER_CLIENTS[3]), 503)
        for _ in range(4):
            _assert_refused(complete(server, source=OTHER_CLIENTS[0]), 429)
        _assert_counted(server, 503, 5)
        _assert_counted(server, 429, 4)
        set_fault("")
        running[0].close()
        for client in running[1:]:
            assert read_answer(client).json["content"] == world.text
        world.check(server)


def _n_waiting(server: Server) -> int:
    text = ask(server.port, message("GET", "/metrics")).raw.decode()
    found = re.search(r"^\S*requests_deferred (\S+)$", text, re.MULTILINE)
    return int(float(found[1])) if found else -1


def _request_ram(world: World) -> None:
    with started([*world.flags, "--request-ram", "8"]) as server:
        for n in (1, 32, 500):
            found = complete(server, body={**PROBS, "prompt": ["a"] * n})
            text = found.raw.decode()
            assert found.status == 400, f"{n} prompts: {found.status}"
            assert re.search(r"may take [\d.]+ [MG]iB of memory, at most 8.00 MiB", text), text
        world.check(server)


def _probs_bomb(world: World) -> None:
    """Two clients ask for the most that a request may take, and for more."""
    with started([*world.flags, "-c", "512"]) as server, ThreadPoolExecutor(8) as pool:
        before = server.rss_mb
        bombs = [
            pool.submit(complete, server, body={**PROBS, "prompt": ["a"] * n}, source=source)
            for n in (1, 16, 500)
            for source in OTHER_CLIENTS[:2]
        ]
        while not all(bomb.done() for bomb in bombs):
            begin = time.monotonic()
            assert health_of(server) == 200
            seconds = time.monotonic() - begin
            assert seconds < HEALTH_SECONDS, f"/health took {seconds:.1f} s"
            time.sleep(0.05)
        statuses = Counter(bomb.result().status for bomb in bombs)
        assert statuses == {200: 4, 400: 2}, statuses
        n_mb = server.peak_mb - before
        assert n_mb < BOMB_MB, f"the server took {n_mb:.0f} MB more, at most {BOMB_MB} are expected"
        world.check(server)


def _half_bodies(world: World) -> None:
    whole = message("POST", "/completion", GREEDY)
    with started([*world.flags, "--timeout", str(BODY_SECONDS)]) as server, ExitStack() as stack:
        clients = [stack.enter_context(closing(connect(server.port))) for _ in range(20)]
        for client in clients:
            client.sendall(whole[:-10])
        world.check(server)  # while they wait
        for client in clients:
            found = read_answer(client)
            assert found.status == 408, f"the status is {found.status}"
            assert client.recv(1) == b"", "the connection stays open"
        world.check(server)


def _large_template(world: World) -> None:
    file = world.folder / "template.jinja"
    file.write_text("{{ messages }}" * 100_000)
    flags = [*world.flags, "--chat-template-file", str(file)]
    with started(flags, is_ready=False) as server:
        status = ended(server)
        assert status == 1, f"the exit status is {status}"
        expected = "error: the chat template has 1400000 characters, at most 1048576 are allowed"
        assert expected in server.log, server.log
        assert "Traceback" not in server.log, server.log


LIMITS: Final = {
    "key-limits": Fault(
        "429 and Retry-After for a key beyond its limits, others go on", _key_limits
    ),
    "waiting": Fault("503 beyond --max-waiting, 429 for one client; both are counted", _counts),
    "request-ram": Fault("400 with the number beyond --request-ram", _request_ram),
    "probs-bomb": Fault(
        "512 probabilities of many tokens: bounded memory, /health answers", _probs_bomb
    ),
    "half-bodies": Fault("408 after --timeout, and the connections are closed", _half_bodies),
    "large-template": Fault("status 1 and the limit, no traceback", _large_template),
}
