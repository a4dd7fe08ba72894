"""Where the server listens: TLS, unix sockets, several addresses, prefixes, errors at the start."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import ssl
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from fake_context import WAIT_S
from http_world import listening, make_model, running
from tls_world import make_pem

from lamella.base.errors import RequestError
from lamella.base.options import declarations
from lamella.server.app import serve
from lamella.server.config import ServerConfig
from lamella.server.listening import ADVICE, _names, tls_context


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A certificate for localhost and its key."""
    return make_pem(tmp_path_factory.mktemp("pem"))


def test_https(pem: tuple[str, str]) -> None:
    cert, key = pem
    trusted = ssl.create_default_context(cafile=cert)
    config = ServerConfig(port=0, ssl_cert_file=cert, ssl_key_file=key)
    with listening(make_model, config) as port:
        url = f"https://localhost:{port}/health"
        with urllib.request.urlopen(url, context=trusted, timeout=WAIT_S) as reply:
            assert reply.status == 200


def test_wrong_tls_files_are_refused(pem: tuple[str, str], tmp_path: Path) -> None:
    cert, key = pem
    text = tmp_path / "text"
    text.write_text("no certificate")
    for files, message in (
        ((cert, ""), "--ssl-key-file is missing: TLS needs a certificate and its key"),
        (("", key), "--ssl-cert-file is missing"),
        ((cert, "nowhere.pem"), "--ssl-key-file nowhere.pem: No such file"),
        ((str(text), key), "not a PEM certificate and its key"),
        ((key, cert), "not a PEM certificate and its key"),
    ):
        config = ServerConfig(port=0, ssl_cert_file=files[0], ssl_key_file=files[1])
        with pytest.raises(RequestError, match=message), listening(make_model, config):
            pass
    assert tls_context(ServerConfig()) is None


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=WAIT_S)
        self.path = str(path)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(WAIT_S)
        self.sock.connect(self.path)


def test_a_unix_socket_beside_an_address(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    with listening(make_model, ServerConfig(host=f"{path},127.0.0.1", port=0)) as port:
        with closing(UnixConnection(path)) as client:
            client.request("GET", "/v1/models")
            assert client.getresponse().status == 200
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)) as client:
            client.request("GET", "/health")
            assert client.getresponse().status == 200
    assert not path.exists()


def test_a_socket_in_a_missing_folder(tmp_path: Path) -> None:
    config = ServerConfig(host=str(tmp_path / "no" / "a.sock"))
    with (
        pytest.raises(RequestError, match=r"cannot listen on .*a\.sock"),
        listening(make_model, config),
    ):
        pass


def test_a_file_that_is_not_a_socket_is_refused_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "notes.sock"
    path.write_text("mine")
    with (
        pytest.raises(RequestError, match=r"notes\.sock: the file exists and is not a socket"),
        listening(make_model, ServerConfig(host=str(path))),
    ):
        pass
    assert path.read_text() == "mine"


def test_the_socket_of_another_server_is_refused_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    config = ServerConfig(host=f"{path},127.0.0.1", port=0)
    with running(config=ServerConfig(port=0)) as first, listening(make_model, config):
        for hosts in (str(path), f"127.0.0.1,{path}"):
            again = ServerConfig(host=hosts, port=first.port if "," in hosts else 0)
            with pytest.raises(RequestError, match="another"), listening(make_model, again):
                pass
        with closing(UnixConnection(path)) as client:
            client.request("GET", "/v1/models")
            assert client.getresponse().status == 200
    assert not path.exists()


def test_a_socket_that_another_server_took_over_stays(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    with closing(socket.socket(socket.AF_UNIX)) as other:
        with listening(make_model, ServerConfig(host=f"{path},127.0.0.1", port=0)):
            path.unlink()
            other.bind(str(path))
        assert path.exists()


def test_the_socket_of_a_killed_server_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    with closing(socket.socket(socket.AF_UNIX)) as killed:
        killed.bind(str(path))
    config = ServerConfig(host=f"{path},127.0.0.1", port=0)
    with listening(make_model, config), closing(UnixConnection(path)) as client:
        client.request("GET", "/health")
        assert client.getresponse().status == 200
    assert not path.exists()


def test_a_list_of_hosts() -> None:
    assert ServerConfig(host="a,b,a").hosts == ("a", "b")
    for empty in ("", ","):
        with pytest.raises(RequestError, match=r"host is ',?': must be an address"):
            ServerConfig(host=empty)


def test_servers_share_a_port() -> None:
    with running(config=ServerConfig(port=0, reuse_port=True)) as first:
        again = ServerConfig(port=first.port, reuse_port=True)
        with running(config=again) as second:
            assert second.get("/health").status == 200


def test_a_port_in_use_says_what_to_do() -> None:
    with running() as first:
        message = f"port {first.port}: Address already in use: another program.*--port"
        with (
            pytest.raises(RequestError, match=message),
            listening(make_model, ServerConfig(port=first.port)),
        ):
            pass
    assert all("--" in text for text in ADVICE.values())


def test_the_addresses_can_be_opened() -> None:
    found: list[str] = []

    async def main() -> None:
        stop = asyncio.Event()

        def announce(urls: str) -> None:
            found.extend(urls.split(" and "))
            stop.set()

        config = ServerConfig(port=0, host="0.0.0.0", api_prefix="llm/")
        await serve(config, make_model, stop, announce)

    asyncio.run(main())
    assert found[0].startswith("http://127.0.0.1:")
    assert all(url.endswith("/llm") and "0.0.0.0" not in url for url in found)
    assert 1 <= len(found) <= 2


def test_the_names_of_all_addresses() -> None:
    names = [next(_names(host)) for host in ("0.0.0.0", "::", "::1")]
    assert names == ["127.0.0.1", "::1", "::1"]  # the socket of :: takes IPv6 only


def test_a_prefix_of_all_paths() -> None:
    config = ServerConfig(port=0, api_prefix="/llm", api_keys=("k",), tags=("a", "b"))
    with running(config=config) as server:
        assert server.get("/llm/health").status == 200
        assert server.get("/health").error["code"] == 404
        assert server.get("/llm/v1/models").error["code"] == 401
        reply = server.get("/llm/v1/models", **{"X-Api-Key": "k"})
        assert reply.json["data"][0]["tags"] == ["a", "b"]
        assert server.call("HEAD", "/llm/health").status == 200
        assert server.get("/llm/").status == 200


def test_files_of_a_folder_need_no_key(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("<p>mine")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b.txt").write_text("text")
    (tmp_path.parent / "x").write_text("secret")
    (tmp_path / "link").symlink_to(tmp_path.parent / "x")
    config = ServerConfig(port=0, static_path=str(tmp_path), api_keys=("k",))
    with running(config=config) as server:
        assert server.get("/").raw == b"<p>mine"
        assert server.get("/a/b.txt").raw == b"text"
        assert server.get("/v1/models").error["code"] == 401
        (tmp_path / "a" / "b.txt.gz").write_bytes(b"gz")
        reply = server.get("/a/b.txt", **{"Accept-Encoding": "gzip"})
        assert reply.headers["vary"] == "Accept-Encoding, Origin"
        (tmp_path / "loop").symlink_to("loop")
        bad = ("/loop", f"/{'a' * 300}", "/a/b.txt/c")
        for path in ("/no.txt", "/a", "/../x", "/a/../../x", "/%2e%2e/x", "/link", *bad):
            assert server.get(path).error["code"] == 404, path
        (tmp_path / "index.html").unlink()
        assert "index.html" in server.get("/").error["message"]


def test_files_on_one_connection(tmp_path: Path) -> None:
    (tmp_path / "f.txt").write_text("text")
    config = ServerConfig(port=0, static_path=str(tmp_path))
    with running(config=config) as server, closing(server.connect()) as client:
        client.connect()
        connected = client.sock
        for _ in range(3):
            client.request("GET", "/f.txt")
            assert client.getresponse().read() == b"text"
            assert client.sock is connected  # http.client would connect again


def test_a_missing_folder_is_refused() -> None:
    with pytest.raises(RequestError, match="static_path: nowhere is not a folder"):
        ServerConfig(static_path="nowhere")


def test_keys_of_a_file(tmp_path: Path) -> None:
    parse = declarations(ServerConfig)["api_file_keys"].parse
    path = tmp_path / "keys"
    path.write_text("# mine\none\n\n two \n")
    config = ServerConfig(port=0, api_keys=("three",), api_file_keys=parse(str(path)))
    secrets = [key.key for key in config.keys]
    assert secrets == ["three", "one", "two"]
    with running(config=config) as server:
        assert server.get("/props").status == 401
        for secret in secrets:
            assert server.get("/props", **{"X-Api-Key": secret}).status == 200
    path.write_text("# none\n")
    with pytest.raises(ValueError, match="has no key"):
        parse(str(path))
    for text in ("", ","):  # such as that of an unset variable of a shell
        with pytest.raises(ValueError, match="there is no key"):
            declarations(ServerConfig)["api_keys"].parse(text)
    with pytest.raises(ValueError, match="cannot be read"):
        parse(str(tmp_path / "nowhere"))


@pytest.fixture(scope="module")
def impatient() -> Iterator[int]:
    with listening(
        make_model, ServerConfig(port=0, timeout=1, write_timeout=1, max_body=16)
    ) as port:
        yield port


def test_a_body_that_does_not_arrive(impatient: int) -> None:
    with closing(socket.create_connection(("127.0.0.1", impatient), timeout=WAIT_S)) as client:
        client.sendall(
            b"POST /completion HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"
        )
        assert client.recv(1000).startswith(b"HTTP/1.1 408 ")


def test_a_client_that_reads_nothing_is_disconnected(
    impatient: int, caplog: pytest.LogCaptureFixture
) -> None:
    body = b'{"prompt": "a", "stream": true, "ignore_eos": true, "n_probs": 40}'
    head = b"POST /completion HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
    with closing(socket.socket()) as client, caplog.at_level("INFO", "lamella.server"):
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        client.settimeout(WAIT_S)
        client.connect(("127.0.0.1", impatient))
        client.sendall((head + body) * 50)  # more than the buffers of both sides hold
        until = time.monotonic() + WAIT_S
        while "timeout" not in caplog.text:
            assert time.monotonic() < until, "the server still waits"
            time.sleep(0.05)


def test_a_client_that_does_not_read_a_whole_reply_is_disconnected(
    caplog: pytest.LogCaptureFixture,
) -> None:
    body = json.dumps({"content": "a" * 2_000_000}).encode()
    head = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
    with (
        listening(make_model, ServerConfig(port=0, write_timeout=1, max_body=16)) as port,
        closing(socket.socket()) as client,
        caplog.at_level("INFO", "lamella.server"),
    ):
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        client.settimeout(WAIT_S)
        client.connect(("127.0.0.1", port))
        client.sendall(head + body)
        until = time.monotonic() + WAIT_S
        while "POST /tokenize" not in caplog.text:
            assert time.monotonic() < until, "the server still waits"
            time.sleep(0.05)
        assert "  timeout" in caplog.messages[-1]
        with suppress(ConnectionResetError):
            while client.recv(1 << 20):  # ends before WAIT_S
                pass
