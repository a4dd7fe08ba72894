"""OpenTelemetry traces, sent to a collector of this test."""

from __future__ import annotations

import importlib.util
import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from http_world import running

from lamella.base.errors import RequestError
from lamella.server.config import ServerConfig

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
)

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
SERVER_KIND, ERROR_STATUS = 2, 2  # of opentelemetry/proto/trace/v1/trace.proto


class Collector:
    """What a collector has received."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.resources: list[dict[str, str]] = []

    def receive(self, body: bytes) -> None:
        for group in ExportTraceServiceRequest.FromString(body).resource_spans:
            pairs = group.resource.attributes
            self.resources.append({pair.key: pair.value.string_value for pair in pairs})
            for scope in group.scope_spans:
                self.spans += scope.spans

    def named(self, name: str) -> list[Any]:
        return [span for span in self.spans if span.name == name]

    def one(self, name: str) -> Any:
        found = self.named(name)
        assert len(found) == 1, sorted(span.name for span in self.spans)
        return found[0]


def attributes(span: Any) -> dict[str, Any]:
    """The attributes of a span."""
    found = {}
    for pair in span.attributes:
        kind = pair.value.WhichOneof("value")
        value = getattr(pair.value, kind)
        found[pair.key] = (
            [one.string_value for one in value.values] if kind == "array_value" else value
        )
    return found


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """A collector, to which the variables point. It has all spans once the server has stopped."""
    found = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            found.receive(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    try:
        yield found
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


TRACED = ServerConfig(port=0, otel=True)


def test_a_request_and_its_texts(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    body = {"prompt": "a", "n": 2, "max_tokens": 3, "ignore_eos": True, "seed": 1}
    with running(config=TRACED) as server:
        headers = {
            "traceparent": f"00-{TRACE}-{PARENT}-01",
            "X-Request-Id": "my-id",
        }
        reply = server.call("POST", "/v1/completions", body, headers)
        assert reply.status == 200
    root = collector.one("POST /v1/completions")
    assert root.trace_id.hex() == TRACE
    assert root.parent_span_id.hex() == PARENT
    assert root.kind == SERVER_KIND
    assert root.status.code == 0
    found = attributes(root)
    assert found["http.route"] == found["url.path"] == "/v1/completions"
    assert found["http.response.status_code"] == 200
    assert found["lamella.request_id"] == "my-id"
    assert found["gen_ai.usage.output_tokens"] == 6
    assert found["gen_ai.response.finish_reasons"] == ["length", "length"]
    for name in ("queue", "prompt", "decode"):
        parts = collector.named(name)
        assert {attributes(part)["lamella.text"] for part in parts} == {0, 1}
        for part in parts:
            assert part.parent_span_id == root.span_id
            begin, end = part.start_time_unix_nano, part.end_time_unix_nano
            assert root.start_time_unix_nano <= begin <= end <= root.end_time_unix_nano
    assert collector.resources[0]["service.name"] == "mine"
    assert collector.resources[0]["deployment.environment.name"] == "test"


def test_whose_fault_it_is(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client's error is no error of the span; the server's is one."""
    with running(config=TRACED) as server:
        assert server.post("/completion", {"n_predict": 1}).status == 400
        assert server.get("/nowhere").status == 404
        monkeypatch.setattr(type(server.model.vocab), "tokenize", None)
        assert server.post("/tokenize", {"content": "a"}).status == 500
    assert collector.one("POST /completion").status.code == 0
    assert attributes(collector.one("POST /completion"))["error.type"] == "invalid_request_error"
    assert "http.route" not in attributes(collector.one("GET"))
    assert collector.one("POST /tokenize").status.code == ERROR_STATUS
    assert collector.resources[0]["service.name"] == "lamella"


def test_polls_and_servers_without_the_flag_send_none(collector: Collector) -> None:
    with running(config=TRACED) as server:
        assert server.get("/health").status == 200
    with running(config=ServerConfig(port=0)) as server:
        assert server.get("/props").status == 200
    assert collector.spans == []


@pytest.mark.parametrize(
    ("name", "value"), [("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none")]
)
def test_the_variables_may_turn_it_off(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    assert ServerConfig(otel=True).otel is False


@pytest.mark.parametrize(
    "name",
    [
        "OTEL_TRACES_EXPORTER",
        "OTEL_EXPORTER_OTLP_PROTOCOL",
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
    ],
)
def test_what_is_not_supported_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "grpc")
    with pytest.raises(RequestError, match=f"{name} is 'grpc': must be "):
        ServerConfig(otel=True)


def test_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr("lamella.server.otel.find_spec", lambda name: None)
    with pytest.raises(RequestError, match=r"needs OpenTelemetry: pip install 'lamella\[otel\]'"):
        ServerConfig(otel=True)


def test_an_invalid_variable_ends_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "-1")
    with (
        pytest.raises(RequestError, match="a variable of OpenTelemetry is invalid"),
        running(config=TRACED),
    ):
        pass


def test_without_a_collector(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Requests are answered, the server stops, and the log has a line or a few."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    with caplog.at_level(logging.WARNING, logger="lamella"), running(config=TRACED) as server:
        for _ in range(20):
            assert server.post("/tokenize", {"content": "a"}).status == 200
    assert len([line for line in caplog.messages if line.startswith("OpenTelemetry:")]) < 10
    handlers = logging.getLogger("opentelemetry").handlers
    assert not [each for each in handlers if type(each).__module__.startswith("lamella")]
