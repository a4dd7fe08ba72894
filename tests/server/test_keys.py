"""API keys: where they come from, which one a request has, and whose client it is."""

from __future__ import annotations

import hmac
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
        with pytest.raises(RequestError, match=f"^(a key of )?{name} ") as caught:
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
    assert [key.key for key in read_keys(str(path))] == ["one # not a comment", "two"]


def toml(folder: Path, text: str) -> tuple[Key, ...]:
    path = folder / "keys.toml"
    path.write_text(text)
    return read_keys(str(path))


def test_a_toml_file_of_keys(tmp_path: Path) -> None:
    one, two = toml(
        tmp_path,
        '[[keys]]\nname = "agents"\nkey = "a"\nrequests_per_minute = 60\nmax_running = 4\n'
        'salt = true\n[[keys]]\nkey = "b"\n',
    )
    assert one == Key(name="agents", key="a", requests_per_minute=60, max_running=4, salt=True)
    assert two == Key(key="b")
    config = ServerConfig(api_keys=("c",), api_file_keys=(one, two))
    assert [key.name for key in config.keys] == ["key 1", "agents", "key 3"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no key"),
        ("# none", "has no key"),
        ("keys = []", "has no key"),
        ("keys = 1", "keys: must be tables"),
        ('keys = ["secret"]', "keys: must be tables"),
        ('key = "secret"', "key: unknown key"),
        ("[keys", "is not TOML"),
        ("[[keys]]", r"\[\[keys\]\] number 1: key is empty"),
        ('[[keys]]\nkey = "b"\n[[keys]]\nkey = " "', "number 2: key is empty"),
        ("[[keys]]\nkey = 7", "number 1: key is empty or not a text"),
        ('[[keys]]\nkey = "secret"\nnames = "x"', "unknown option 'names'; did you mean name?"),
        ('[[keys]]\nkey = "secret"\nname = 1', "name is 1: must be a text"),
        ('[[keys]]\nkey = "secret"\nmax_running = -1', "max_running is -1: must be 0 to"),
        ('[[keys]]\nkey = "secret"\nsalt = 1', "salt is 1: must be True or False"),
    ],
)
def test_invalid_toml_files(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        toml(tmp_path, text)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ((Key(key="a", name="x"), Key(key="b", name="x")), "two API keys have the name 'x'"),
        ((Key(key="a"), Key(key="b", name="key 1")), "two API keys have the name 'key 1'"),
        ((Key(key="a", name="x"), Key(key="a")), "the API key 'x' is listed twice"),
        ((Key(key="a"), Key(key="a", max_running=1, name="y")), "the API key 'y' is listed twice"),
    ],
)
def test_ambiguous_keys_are_refused(keys: tuple[Key, ...], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        named_keys(keys)


@pytest.mark.parametrize("path", ["", "nowhere", "."])
def test_a_file_that_cannot_be_read_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match=f"'{path}' cannot be read"):
        read_keys(path)


def test_keys_have_numbers_for_names() -> None:
    config = ServerConfig(api_keys=("a", "b"), api_file_keys=("b", "c"))
    assert [(key.name, key.key) for key in config.keys] == [
        ("key 1", "a"),
        ("key 2", "b"),
        ("key 3", "c"),
    ]
    assert "secret" not in repr(Key(name="n", key="secret"))


def test_a_key_is_found_among_all() -> None:
    keys = named_keys(Key(key=text) for text in ("one", "zwei", "drei\u00df"))
    ring = KeyRing(keys)
    for key in keys:
        assert ring.find([key.key.encode()]) == key
        assert ring.find([b"", key.key.encode()]) == key
    for wrong in (b"", b"on", b"one ", b"onee", b"\xff"):
        assert ring.find([wrong]) is None
    assert ring.find([]) is None and len(ring) == 3


def test_the_time_to_find_a_key_says_nothing_about_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The digests of all keys are compared, each in a time that does not depend on its bytes."""
    compared: list[tuple[bytes, bytes]] = []
    compare = hmac.compare_digest

    def spy(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return compare(a, b)

    monkeypatch.setattr(hmac, "compare_digest", spy)
    ring = KeyRing(named_keys(Key(key=text) for text in ("one", "two", "three")))
    for given in (b"one", b"three", b"on", b"onf", b"", b"x" * 9999):
        compared.clear()
        ring.find([given])
        assert len(compared) == 3
        assert {len(each) for pair in compared for each in pair} == {32}


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
    request[KEY] = Key(name="agents", key="s")
    assert client_of(request) == "agents"
