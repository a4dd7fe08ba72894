"""API keys: where they come from, which one a request has, and whose client it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import make_mocked_request

from lamella.base.errors import RequestError
from lamella.base.options import declarations
from lamella.server.clients import KEY, client_of, network_of
from lamella.server.config import ServerConfig
from lamella.server.keys import Key, KeyRing, named_keys, parse_keys, read_keys


@pytest.mark.parametrize("text", ["", ",", " ", " , "])
def test_a_flag_without_a_key_is_refused(text: str) -> None:
    assert declarations(ServerConfig)["api_keys"].option.parse is parse_keys
    with pytest.raises(ValueError, match="there is no key"):
        parse_keys(text)


def test_keys_of_a_flag() -> None:
    assert parse_keys("one, two,,") == ("one", "two")


@pytest.mark.parametrize("value", [("",), (" ",), ("one", ""), (1,), "", "secret", 7, None])
def test_an_invalid_list_of_keys_is_refused(value: Any) -> None:
    for name in ("api_keys", "api_file_keys"):
        with pytest.raises(RequestError, match=f"^{name} ") as caught:
            ServerConfig.make({name: value})
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "\n\n", "# none\n", "  # none\n", " \t\n"])
def test_a_file_without_a_key_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "keys"
    path.write_text(text)
    with pytest.raises(ValueError, match="has no key"):
        read_keys(str(path))


def test_a_file_of_keys(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_bytes("\ufeffone # not a comment\r\n # a comment\r\n\r\n two\r\n".encode())
    assert read_keys(str(path)) == ("one # not a comment", "two")


@pytest.mark.parametrize("path", ["", "nowhere", "."])
def test_a_file_that_cannot_be_read_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match=f"'{path}' cannot be read"):
        read_keys(path)


def test_keys_have_numbers_for_names() -> None:
    config = ServerConfig(api_keys=("a", "b"), api_file_keys=("b", "c"))
    assert [(key.name, key.secret) for key in config.keys] == [
        ("key 1", "a"),
        ("key 2", "b"),
        ("key 3", "c"),
    ]
    assert "secret" not in repr(Key(name="n", secret="secret"))


def test_a_key_is_found_among_all() -> None:
    keys = named_keys(("one", "zwei", "drei\u00df"))
    ring = KeyRing(keys)
    for key in keys:
        assert ring.find([key.secret.encode()]) == key
        assert ring.find([b"", key.secret.encode()]) == key
    for wrong in (b"", b"on", b"one ", b"onee", b"\xff"):
        assert ring.find([wrong]) is None
    assert ring.find([]) is None and len(ring) == 3


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("::1", "::/64"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", "unix socket"),
    ],
)
def test_the_client_of_an_address(address: str, network: str) -> None:
    assert network_of(address) == network


def test_a_client_is_its_key() -> None:
    request = make_mocked_request("GET", "/").clone(remote="10.0.0.9")
    assert client_of(request) == "10.0.0.9"
    request[KEY] = Key(name="agents", secret="s")
    assert client_of(request) == "agents"
