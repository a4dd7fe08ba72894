"""The clients of `scripts/soak`: threads that ask, cancel, come back, read slowly, stop halfway,
and err.

What a client does follows from the seed and its number; only the times differ. Knows no server
process. Tested by tests/server/test_soak.py.
"""

from __future__ import annotations

import http.client
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from raw_http import Answer, ask, connect, message, read_answer
from soak_cases import BAD_STATUSES, MODELS, ROUTER, TEXT, VECTORS, Case, bad_request

BUSY: Final = frozenset({429, 503})
N_TRIES: Final = 50  # of a request that is refused because others run
TIMEOUT: Final = 180.0
# what a client does next, and how often
ACTIONS: Final = {
    **{"ask": 10, "slow": 2, "cancel": 3, "resume": 2, "half": 1, "bad": 2, "look": 1, "slot": 1},
    "unload": 1,
}
LOOKS: Final = ("/health", "/props", "/slots", "/metrics", "/v1/models", "/nowhere")
# of a server with one model
MORE_LOOKS: Final = ("/live", "/status.json", "/explain.json", "/api/ps", "/api/version", "/")
UNLOAD_SECONDS: Final = 20.0  # between two models that leave the router
SLOT_ACTIONS: Final = ("save", "restore", "erase")


class Load:
    """What all clients share: the servers, the cases with their results, and what happened."""

    def __init__(self, ports: Mapping[str, int], cases: list[Case]) -> None:
        self.ports = ports
        self.cases = cases
        self.alone: list[object] = []  # the results without other requests
        self.counts: Counter[str] = Counter()
        self.findings: list[str] = []
        self.stop = threading.Event()
        self.t_progress = self.t_unloaded = time.monotonic()
        self.longest_gap = 0.0
        self._lock = threading.Lock()

    def record_alone(self) -> None:
        """Ask for each case, one after the other."""
        for case in self.cases:
            answer = ask(self.ports[case.server], raw_of(case), timeout=TIMEOUT)
            if answer.status != 200:
                raise SystemExit(f"{case.kind} alone: {answer.status} {answer.raw[:500]!r}")
            self.alone.append(case.result(answer))

    def wake(self) -> None:
        """Load all models of the router again, as they were before the load."""
        for index, case in enumerate(self.cases):
            if case.server == ROUTER:
                _compare(self, index, is_slow=False)

    def count(self, name: str) -> None:
        """Count an event. Every event is progress."""
        with self._lock:
            now = time.monotonic()
            self.longest_gap = max(self.longest_gap, now - self.t_progress)
            self.t_progress = now
            self.counts[name] += 1

    def may_unload(self) -> bool:
        """True now and then, for one client, if there is a router."""
        with self._lock:
            now = time.monotonic()
            if ROUTER not in self.ports or now < self.t_unloaded + UNLOAD_SECONDS:
                return False
            self.t_unloaded = now
            return True

    def found(self, text: str) -> None:
        with self._lock:
            self.findings.append(text)

    @property
    def n_requests(self) -> int:
        return sum(self.counts[f"{name}"] for name in ACTIONS)


def raw_of(case: Case) -> bytes:
    return message("POST", case.path, case.body)


def run_client(load: Load, seed: int, number: int, n_requests: int | None) -> None:
    """Send requests until `load.stop`, or so many."""
    rng = random.Random(f"client {seed} {number}")
    n = 0
    while not load.stop.is_set() and (n_requests is None or n < n_requests):
        [name] = rng.choices(list(ACTIONS), list(ACTIONS.values()))
        index = rng.randrange(len(load.cases))
        try:
            _act(load, name, index, rng)
        except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
            if not load.stop.is_set():
                load.found(f"{name}, {load.cases[index].kind}: {type(error).__name__} {error}")
        load.count(name)
        n += 1


def _act(load: Load, name: str, index: int, rng: random.Random) -> None:
    case = load.cases[index]
    port = load.ports[case.server]
    match name:
        case "ask" | "slow":
            _compare(load, index, is_slow=name == "slow")
        case "cancel":
            _cancel(port, case, rng)
        case "resume":
            streams = [i for i, one in enumerate(load.cases) if one.body.get("stream")]
            if streams:
                _resume(load, rng.choice(streams), rng)
        case "half":
            raw = raw_of(case)
            with connect(port, timeout=TIMEOUT) as client:
                client.sendall(raw[: rng.randrange(1, len(raw))])
                time.sleep(rng.random() / 10)
        case "bad":
            path, body = bad_request(rng)
            answer = ask(load.ports[TEXT], message("POST", path, body), timeout=TIMEOUT)
            if answer.status not in BAD_STATUSES | BUSY:
                load.found(f"{path} {body[:80]!r}: {answer.status} {answer.raw[:200]!r}")
        case "look":
            _look(load, case, rng)
        case "slot":
            path = f"/slots/{rng.randrange(3)}?action={rng.choice(SLOT_ACTIONS)}"
            file = {"filename": f"{rng.randrange(3)}.bin"}
            answer = ask(load.ports[TEXT], message("POST", path, file), timeout=TIMEOUT)
            if answer.status not in BUSY | {200, 400}:  # 400: the slot is empty, or has no file
                load.found(f"{path}: {answer.status} {answer.raw[:200]!r}")
        case "unload" if load.may_unload():
            raw = message("POST", "/models/unload", {"model": rng.choice(MODELS)})
            answer = ask(load.ports[ROUTER], raw, timeout=TIMEOUT)
            if answer.status not in {200, 400}:  # 400: it is not loaded
                load.found(f"unload: {answer.status} {answer.raw[:200]!r}")


def _look(load: Load, case: Case, rng: random.Random) -> None:
    """GET something."""
    is_router = case.server == ROUTER
    path = rng.choice(LOOKS if is_router else LOOKS + MORE_LOOKS)
    query = f"?model={case.body['model']}" if is_router else ""
    answer = ask(load.ports[case.server], message("GET", path + query), timeout=TIMEOUT)
    unknown = {"/nowhere": 404} | ({"/explain.json": 501} if case.server == VECTORS else {})
    allowed = {unknown.get(path, 200)} | (BUSY if is_router else set())
    if answer.status not in allowed:
        load.found(f"{path}{query}: {answer.status} {answer.raw[:200]!r}")


def _compare(load: Load, index: int, *, is_slow: bool) -> None:
    """Ask for a case and compare its result with the one alone. Try again while it is refused."""
    case = load.cases[index]
    for _ in range(N_TRIES):
        answer = _asked(load.ports[case.server], case, is_slow=is_slow)
        if answer.status not in BUSY:
            break
        load.count("busy")
        if load.stop.wait(0.1):
            return
    if answer.status != 200:
        load.found(f"{case.kind}: {answer.status} {answer.raw[:200]!r}")
        return
    if (result := case.result(answer)) != load.alone[index]:
        load.found(f"{case.kind} {index}: {result!r:.300}, alone {load.alone[index]!r:.300}")
    load.count("compared")


def _asked(port: int, case: Case, *, is_slow: bool) -> Answer:
    if not is_slow:
        return ask(port, raw_of(case), timeout=TIMEOUT)
    with connect(port, timeout=TIMEOUT) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        for byte in (part := raw_of(case))[:40]:
            client.sendall(bytes([byte]))
        client.sendall(part[40:])
        time.sleep(0.3)
        return read_answer(client)


def _resume(load: Load, index: int, rng: random.Random) -> None:
    """Leave a stream that has begun, and compare what it is for a client that comes back."""
    case, id = load.cases[index], f"{rng.getrandbits(64):x}"
    port, path = load.ports[case.server], f"/v1/stream?conv_id={id}"
    with connect(port, timeout=TIMEOUT) as client:
        client.sendall(message("POST", case.path, case.body, {"X-Conversation-Id": id}))
        if int(client.recv(len("HTTP/1.1 200")).split()[-1]) in BUSY:
            load.count("busy")
            return
    whole = ask(port, message("GET", path), timeout=TIMEOUT)
    at = rng.randrange(len(whole.raw) + 1)
    rest = ask(port, message("GET", f"{path}&from={at}"), timeout=TIMEOUT)
    if case.server == ROUTER and 404 in (whole.status, rest.status):
        load.count("lost")  # a stream ends with its model, which was unloaded
        return
    if (whole.status, rest.status) != (200, 200) or rest.raw != whole.raw[at:]:
        load.found(f"{case.kind} {index} from {at}: {whole.raw[:200]!r}, then {rest.raw[:200]!r}")
    elif (result := case.result(whole)) != load.alone[index]:
        load.found(f"{case.kind} {index}: {result!r:.300}, alone {load.alone[index]!r:.300}")
    if rng.random() < 0.5:
        ask(port, message("DELETE", path), timeout=TIMEOUT)
    load.count("resumed")


def _cancel(port: int, case: Case, rng: random.Random) -> None:
    """Leave after some bytes of a reply, or before the first; sometimes with a reset."""
    streams = "temperature" in case.body or "options" in case.body
    body = case.body | ({"stream": True} if streams else {})
    with connect(port, timeout=TIMEOUT) as client:
        client.sendall(message("POST", case.path, body))
        if rng.random() < 0.3:
            time.sleep(rng.random() / 20)
        else:
            with suppress(ConnectionResetError):
                client.recv(rng.randrange(1, 5000))
        if rng.random() < 0.5:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
