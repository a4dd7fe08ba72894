"""Metrics of ended requests, of waits and of the engine's health; the dashboard's queries."""

from __future__ import annotations

import json
import re
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from embed_world import make_embedder
from fake_context import WAIT_S, FakeContext
from http_world import RunningServer, make_model, running
from test_metrics import HISTOGRAMS, WITH_METRICS, scrape

from lamella.base.errors import BackendError
from lamella.server.connections import Connections
from lamella.server.http_protocol import N_HEAD_BYTES

DASHBOARD = Path(__file__).resolve().parents[2] / "docs" / "grafana.json"
BODY = {"prompt": "a" * 20, "n_predict": 5, "ignore_eos": True}


def ended(server: RunningServer) -> dict[tuple[str, str, str], float]:
    """The number of ended requests by path, status and end, without those for metrics."""
    found = {}
    for name, value in scrape(server).items():
        match = re.fullmatch(r"lamella_requests_total\{end=(.*),path=(.*),status=(.*)\}", name)
        if match is not None and match[2] != "/metrics":
            found[match[2], match[3], match[1]] = value
    return found


def test_requests_by_path_status_and_end() -> None:
    with running(config=WITH_METRICS) as server:
        for _ in range(2):
            server.ok("/completion", **BODY)
        server.post("/completion", {"prompt": 7})
        server.post("/completion", {"prompt": "a" * 9999})
        for i in range(3):
            server.get(f"/nothing/{i}")
        assert ended(server) == {
            ("/completion", "200", "ok"): 2,
            ("/completion", "400", "invalid_request_error"): 1,
            ("/completion", "400", "exceed_context_size_error"): 1,
            ("other", "404", "not_found_error"): 3,
        }


def test_requests_that_are_refused_before_they_have_a_path() -> None:
    with running(config=WITH_METRICS) as server:
        lines = [b"H%d: %s\r\n" % (i, b"a" * 1000) for i in range(N_HEAD_BYTES // 1000 + 2)]
        for sent in (b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"".join(lines)):
            with socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S) as client:
                client.sendall(sent)
                assert client.recv(100).split()[1] in (b"400", b"431")
        assert ended(server) == {
            ("-", "400", "invalid_request_error"): 1,
            ("-", "431", "invalid_request_error"): 1,
        }


def test_connections_without_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    with running(config=WITH_METRICS) as server:
        with monkeypatch.context() as patch:
            patch.setattr(Connections, "admit", lambda *_: None)
            with socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S) as client:
                assert client.recv(100).startswith(b"HTTP/1.1 503 ")
        assert ended(server) == {("-", "503", "unavailable_error"): 1}


def test_the_sizes_and_times_of_requests() -> None:
    with running(config=WITH_METRICS) as server:
        server.ok("/completion", **BODY)
        server.ok("/completion", **BODY)
        server.ok("/tokenize", content="a")
        found = scrape(server)
    for name in HISTOGRAMS:
        n = 8 if name == "lamella_inter_token_seconds" else 2
        assert found[f"{name}_count"] == found[f"{name}_bucket{{le=+Inf}}"] == n, name
        assert found[f"{name}_sum"] > 0
    assert found["lamella_prompt_length_sum"] == 2 * 21
    assert found["lamella_output_length_bucket{le=4.0}"] == 0
    assert found["lamella_output_length_bucket{le=8.0}"] == 2
    assert (found["lamella_prompts_total"], found["lamella_prefix_hits_total"]) == (2, 1)


def test_embeddings() -> None:
    with running(make_embedder, WITH_METRICS) as server:
        server.ok("/v1/embeddings", input=["ab", "abc"])
        found = scrape(server)
        assert ended(server) == {("/v1/embeddings", "200", "ok"): 1}
    assert found["lamella_prompt_length_sum"] == 3 + 4
    assert found["lamella_request_seconds_count"] == found["lamella_queue_seconds_count"] == 1
    assert found["lamella_output_length_count"] == 0


def test_a_stream_that_fails() -> None:
    context = FakeContext()
    read = threading.Event()

    def fail(step: int) -> None:
        if step == 3:
            assert read.wait(WAIT_S)
        if step >= 3:
            raise BackendError("the device is lost")

    context.on_decode = fail
    with running(lambda: make_model(context), WITH_METRICS) as server:
        connection = server.connect()
        connection.request("POST", "/completion", json.dumps(BODY | {"stream": True, "seed": 1}))
        response = connection.getresponse()
        read.set()
        response.read()
        connection.close()
        for _ in range(2):
            server.post("/completion", BODY)
        server.model.engine.call(lambda _: None)
        found = scrape(server)
        assert ended(server) == {
            ("/completion", "200", "server_error"): 1,
            ("/completion", "500", "server_error"): 2,
        }
    assert (found["lamella_healthy"], found["lamella_steps_failed_total"]) == (0, 3)


@pytest.fixture
def queries() -> list[str]:
    panels: list[dict[str, Any]] = json.loads(DASHBOARD.read_text("utf-8"))["panels"]
    return [target["expr"] for panel in panels for target in panel["targets"]]


def test_the_dashboard_shows_what_exists(queries: list[str]) -> None:
    with running(config=WITH_METRICS) as server:
        server.model.context.buffer_bytes = lambda: {("CPU", "kv"): 1}  # type: ignore[method-assign]
        server.ok("/completion", **BODY)
        scrape(server)
        names = {name.partition("{")[0] for name in scrape(server)}
    shown = {name for query in queries for name in re.findall(r"(?:lamella_|llamacpp:)\w+", query)}
    assert len(shown) > 15
    assert shown - names == set()
