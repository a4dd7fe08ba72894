"""Known faults of other servers, tried here: docs/security.md lists them by number."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from fake_context import WAIT_S
from http_world import RunningServer, running

from lamella.server.config import ServerConfig

SECRET = "only for its owner"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server of static files, with a secret beside their folder and a link to it."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "secret").write_text(SECRET)
    static = folder / "static"
    static.mkdir()
    (static / "page").write_text("for all")
    (static / "link").symlink_to(folder / "secret")
    with running(config=ServerConfig(port=0, static_path=str(static))) as server:
        yield server


def exchange(server: RunningServer, raw: bytes) -> bytes:
    with closing(socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S)) as client:
        client.sendall(raw)
        found = b""
        while part := client.recv(1 << 16):
            found += part
        return found


@pytest.mark.parametrize(
    "path",
    [
        *("/../secret", "/%2e%2e/secret", "/..%2fsecret", "/static/../../secret", "/link"),
        *("//etc/passwd", "/%2fetc/passwd", "/..\\secret", "/page/../../secret", "/page%00.txt"),
    ],
)
def test_no_path_leads_to_a_file(server: RunningServer, path: str) -> None:
    head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    reply = exchange(server, head.encode())
    assert reply[9:12] in (b"400", b"403", b"404"), reply[:80]
    assert SECRET.encode() not in reply and b"root:" not in reply


def test_a_static_file_is_served(server: RunningServer) -> None:
    assert server.get("/page").raw == b"for all"
    assert Path("/").is_dir()


@pytest.mark.parametrize(
    "fields",
    [
        *({"n_discard": -1}, {"n_keep": -(2**31)}, {"n_probs": -1}, {"top_k": -(2**63)}),
        *({"n_predict": -(2**40)}, {"n_predict": 2**63}, {"min_keep": -1}, {"seed": -(2**65)}),
        *({"repeat_last_n": -(2**31)}, {"dry_allowed_length": -5}, {"id_slot": -99}),
        *({"logit_bias": [[-1, 1.0]]}, {"prompt": [-1]}, {"prompt": [2**31]}, {"n_indent": -1}),
    ],
    ids=str,
)
def test_negative_numbers(server: RunningServer, fields: dict[str, object]) -> None:
    reply = server.post("/completion", {"prompt": "a", "n_predict": 2, **fields})
    assert reply.status in (200, 400), reply.raw
    after = server.ok("/completion", prompt="a", n_predict=2, ignore_eos=True)
    assert after["tokens_predicted"] == 2


@pytest.mark.parametrize("prompt", ["", [], [""], [[]]], ids=repr)
def test_an_empty_prompt(server: RunningServer, prompt: object) -> None:
    reply = server.post("/v1/completions", {"prompt": prompt, "max_tokens": 2})
    assert reply.status in (200, 400), reply.raw
    assert server.get("/health").status == 200


@pytest.mark.parametrize("place", ["chat_template", "chat_template_kwargs"])
def test_a_template_in_a_request_is_not_used(server: RunningServer, place: str) -> None:
    source = "{% for i in range(10 ** 9) %}{{ 'x' * 10 ** 9 }}{% endfor %}"
    value = source if place == "chat_template" else {"chat_template": source, "messages": [1]}
    body = {"messages": [{"role": "user", "content": "a"}], place: value}
    reply = server.post("/apply-template", body)
    assert reply.status == 400 or "x" * 9 not in reply.json["prompt"]


@pytest.mark.parametrize(
    "chunk",
    [b"1;a\n\r\na\r\n0\r\n\r\n", b"1\n\r\na\r\n0\r\n\r\n", b"0x1\r\na\r\n0\r\n\r\n", b"-1\r\n"],
    ids=repr,
)
def test_chunks_with_line_ends_inside(server: RunningServer, chunk: bytes) -> None:
    head = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    reply = exchange(server, head + chunk)
    assert reply[9:12] == b"400", reply[:80]


def test_two_lengths(server: RunningServer) -> None:
    head = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n"
    more = b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /props HTTP/1.1\r\n\r\n"
    reply = exchange(server, head + more)
    assert reply[9:12] == b"400" and reply.count(b"HTTP/1.") == 1
