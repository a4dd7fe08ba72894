"""API keys: what a key may do, and which one a request has.

Keys come from `--api-key` and from a file: one key per line, or TOML with a table for each:

    [[keys]]
    name = "agents"
    key = "sk-..."
    requests_per_minute = 60

A request's key is looked up by its digest, which is compared with those of all keys, so the time
says nothing about any key. Knows no request. Tested by tests/server/test_keys.py.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar, Final

from ..base.errors import RequestError
from ..base.options import Options, option, refused
from ..base.utf8 import check_utf8, decoded
from ..model.params import parse_names

N_NAME_CHARS_MAX: Final = 64
N_MAX: Final = 10**6  # of a key's limits


def _name(name: str, value: object) -> str:
    if isinstance(value, str) and value.isprintable() and len(value) <= N_NAME_CHARS_MAX:
        return value
    raise refused(name, value, f"a text of at most {N_NAME_CHARS_MAX} printable characters")


def _secret(name: str, value: object) -> str:
    """A key. Raises RequestError, which does not show it, if no header can have it."""
    if not isinstance(value, str) or not value.strip():
        raise RequestError(f"{name} is empty or not a text: must be a text that clients send")
    check_utf8(name, value)
    return value.strip()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Key(Options):
    """A key. Its `name` stands for it in the log and in metrics."""

    title: ClassVar[str] = "API key"

    key: str = option("", check=_secret, help="the text that clients send")
    name: str = option("", check=_name, help="its name in the log and in metrics")
    requests_per_minute: int = option(
        0, low=0, high=N_MAX, help="most requests per minute; 0: no limit"
    )
    max_running: int = option(0, low=0, high=N_MAX, help="most requests at a time; 0: no limit")
    salt: bool = option(
        False, help="its requests share no evaluated prefix or compiled grammar with other keys"
    )

    def __repr__(self) -> str:
        return f"Key({self.name!r})"


class KeyRing:
    """The keys of a server."""

    def __init__(self, keys: Sequence[Key]) -> None:
        self._keys = [(_digest(key.key.encode()), key) for key in keys]

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[Key]:
        return (key for _, key in self._keys)

    def find(self, given: Iterable[bytes]) -> Key | None:
        """The key that one of the texts is; None if none is one."""
        found = None
        for digest in map(_digest, given):
            for known, key in self._keys:
                if hmac.compare_digest(known, digest):
                    found = key
        return found


def _digest(secret: bytes) -> bytes:
    return sha256(secret).digest()


def parse_keys(text: str) -> tuple[str, ...]:
    """A comma-separated list of keys. Raises ValueError if it is empty: all could call then."""
    keys = tuple(filter(None, map(str.strip, parse_names(text))))
    if not keys:
        raise ValueError("there is no key: leave it out for a server without keys")
    return keys


def read_keys(path: str) -> tuple[Key, ...]:
    """The keys of a file. Raises ValueError or RequestError with the cause."""
    try:
        text = decoded(path, Path(path).read_bytes())
    except OSError as error:
        raise ValueError(f"{path!r} cannot be read: {error.strerror}") from None
    keys = tuple(_tables(path, text) if path.endswith(".toml") else _lines(text))
    if not keys:
        raise ValueError(f"{path} has no key")
    return keys


def _lines(text: str) -> Iterator[Key]:
    for line in map(str.strip, text.split("\n")):
        if line and not line.startswith("#"):
            yield Key(key=line)


def _tables(path: str, text: str) -> Iterator[Key]:
    import tomllib  # noqa: PLC0415 - only such a file needs it

    try:
        content: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path} is not TOML: {error}") from None
    tables = content.pop("keys", [])
    if content:
        raise ValueError(f"{path}: {next(iter(content))}: unknown key; must be [[keys]] only")
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ValueError(f"{path}: keys: must be tables, each begins with [[keys]]")
    for number, table in enumerate(tables, start=1):
        try:
            yield Key.make(table)
        except RequestError as error:
            raise ValueError(f"{path}: [[keys]] number {number}: {error}") from None


def checked_keys(name: str, value: object) -> tuple[Key, ...]:
    """A list of keys. Raises RequestError for an invalid one."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise RequestError(f"{name} must be a list of keys")  # the value may be a key
    return tuple(
        key if isinstance(key, Key) else Key(key=_secret(f"a key of {name}", key)) for key in value
    )


def named_keys(keys: Iterable[str | Key]) -> tuple[Key, ...]:
    """The keys, each with a name: "key 2" is the second one if it has none. A key that is listed
    twice counts once.

    Raises:
        RequestError: two keys have one name, or a key has two names or limits.
    """
    found: dict[str, Key] = {}
    for each in keys:
        key = each if isinstance(each, Key) else Key(key=each)
        known = found.setdefault(key.key, key)
        if known != key:
            name = known.name or key.name
            raise RequestError(f"the API key {name!r} is listed twice, with another name or limit")
    named = tuple(
        key if key.name else replace(key, name=f"key {number}")
        for number, key in enumerate(found.values(), start=1)
    )
    names = set[str]()
    for key in named:
        if key.name in names:
            raise RequestError(f"two API keys have the name {key.name!r}: names must differ")
        names.add(key.name)
    return named
