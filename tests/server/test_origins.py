"""Pages of other origins, and names that are not this machine's, are refused."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from fake_context import WAIT_S
from http_world import Reply, RunningServer, listening, make_model, running

from lamella.server.config import ServerConfig
from lamella.server.origins import is_allowed, is_local, is_loopback

PAGE = "http://page.example"
METHODS = ("GET", "HEAD", "POST", "DELETE", "OPTIONS")


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running() as server:
        yield server


def completion(server: RunningServer, **headers: str) -> Reply:
    return server.call("POST", "/completion", {"prompt": "a", "n_predict": 1}, headers)


@pytest.mark.parametrize("origin", [PAGE, "null", "file://", "http://localhost.example", "\xe4"])
def test_pages_of_other_origins_are_refused(server: RunningServer, origin: str) -> None:
    reply = completion(server, Origin=origin)
    assert reply.error["type"] == "permission_error"
    assert "--cors-origins" in reply.error["message"]
    assert "access-control-allow-origin" not in reply.headers
    for method in METHODS:
        assert server.call(method, "/health", None, {"Origin": origin}).status == 403


def test_pages_of_this_machine_and_programs_are_answered(server: RunningServer) -> None:
    for headers in ({}, {"Origin": "http://localhost:3000"}, {"Origin": "http://127.0.0.1"}):
        assert completion(server, **headers).status == 200


@pytest.mark.parametrize("host", ["page.example", "localhost.example:80", "10.0.0.1", "", "["])
def test_other_names_are_refused_on_loopback(server: RunningServer, host: str) -> None:
    for method in METHODS:
        assert server.call(method, "/v1/models", None, {"Host": host}).status == 403
    message = server.get("/", Host=host).error["message"]
    assert "use localhost" in message
    assert message.isprintable()


def test_programs_need_no_host(server: RunningServer) -> None:
    """HTTP/1.0 has no Host. Browsers always send it."""
    with socket.create_connection(("127.0.0.1", server.port), WAIT_S) as client:
        client.sendall(b"GET /v1/models HTTP/1.0\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.0 200")


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:80", "a.localhost.", "127.1.2.3", "[::1]:8"]
)
def test_names_of_loopback_addresses(server: RunningServer, host: str) -> None:
    assert server.get("/v1/models", Host=host).status == 200


def test_a_server_for_all_addresses_takes_any_name_but_no_other_page() -> None:
    config = ServerConfig(port=0, host="0.0.0.0", cors_origins=("https://mine.example",))
    with running(config=config) as server:
        for headers in (
            {"Host": "box.lan:80"},
            {"Host": "box.lan:80", "Origin": "http://BOX.lan:80"},  # its own page
            {"Host": "box.lan:80", "Origin": "https://mine.example"},
        ):
            assert completion(server, **headers).status == 200, headers
        for origin in ("http://box.lan", "http://localhost", "http://mine.example"):
            assert completion(server, Host="box.lan:80", Origin=origin).status == 403, origin


def test_the_host_of_an_allowed_origin_is_a_name_of_a_proxy() -> None:
    config = ServerConfig(port=0, cors_origins=("https://mine.example",))
    with running(config=config) as server:
        assert server.get("/health", Host="mine.example:80").status == 200
        assert server.get("/health", Host="other.example").status == 403


def test_a_star_allows_all() -> None:
    with running(config=ServerConfig(port=0, cors_origins=("*",))) as server:
        assert completion(server, Host="page.example", Origin=PAGE).status == 200


def test_a_unix_socket_takes_any_name_but_no_other_page(tmp_path: Path) -> None:
    path = str(tmp_path / "a.sock")
    with listening(make_model, ServerConfig(host=f"{path},127.0.0.1", port=0)):
        for headers, status in (({}, 200), ({"Origin": PAGE}, 403)):
            with closing(http.client.HTTPConnection("box.lan")) as client:
                client.sock = socket.socket(socket.AF_UNIX)
                client.sock.settimeout(WAIT_S)
                client.sock.connect(path)
                client.request("GET", "/health", headers=headers)
                assert client.getresponse().status == status


def test_paths_of_files_need_a_key() -> None:
    for keys, shown in (((), "fake.gguf"), (("k",), "models/fake.gguf")):
        with running(config=ServerConfig(port=0, api_keys=keys)) as server:
            for path in ("/props", "/v1/models", "/models", "/slots", "/"):
                reply = server.get(path, **{"X-Api-Key": "k"})
                assert reply.status == 200
                assert (b"models/fake" in reply.raw) is (path == "/props" and bool(keys))
            assert server.get("/props", **{"X-Api-Key": "k"}).json["model_path"] == shown


def test_files_with_a_dot_are_hidden(tmp_path: Path) -> None:
    for name in (".env", ".git/config", "a/.b/c"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("secret")
    (tmp_path / "link").symlink_to(tmp_path / ".env")
    (tmp_path / "a.txt").write_text("text")
    with running(config=ServerConfig(port=0, static_path=str(tmp_path))) as server:
        assert server.get("/a.txt").raw == b"text"
        for path in ("/.env", "/%2eenv", "/.git/config", "/a/.b/c", "/a/../.env", "/link"):
            assert server.get(path).error["code"] == 404, path


@pytest.mark.parametrize(
    ("origin", "allowed", "expected"),
    [
        ("http://localhost", ("localhost",), True),
        ("https://127.0.0.1:8443", ("localhost",), True),
        ("http://[::1]:80", ("localhost",), True),
        ("tauri://localhost", ("localhost",), True),
        ("http://app.localhost:3000", ("localhost",), True),
        ("http://localhost.example", ("localhost",), False),
        ("http://user@localhost", ("localhost",), False),
        ("http://evillocalhost", ("localhost",), False),
        ("http://example/localhost", ("localhost",), False),
        ("null", ("localhost",), False),
        ("http://[", ("localhost",), False),
        ("http://a", ("http://a:80",), False),
        ("null", ("*",), True),
        ("http://a", (), False),
    ],
)
def test_is_allowed(origin: str, allowed: tuple[str, ...], expected: bool) -> None:
    assert is_allowed(origin, allowed) is expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        *((name, True) for name in ("localhost", "LocalHost.", "x.localhost", "127.9.9.9", "::1")),
        *((name, False) for name in ("", ".", "localhost.example", "0.0.0.0", "::", "128.0.0.1")),
    ],
)
def test_is_local(name: str, expected: bool) -> None:
    assert is_local(name) is expected


def test_is_loopback() -> None:
    assert is_loopback(("127.0.0.1", "::1", "/run/a.sock"))
    assert not is_loopback(("127.0.0.1", "0.0.0.0"))
    assert not is_loopback(("box.lan",))
