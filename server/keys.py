"""API keys: what a key may do, and which one a request has.

Keys come from `--api-key` and from files: one key per line. A request's key is looked up by its
digest, which is compared with those of all keys, so the time says nothing about any key. Knows no
request. Tested by tests/server/test_keys.py.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from ..base.errors import RequestError
from ..base.utf8 import check_utf8, decoded
from ..model.params import parse_names


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A key. Its `name` stands for it in the log and in metrics; `secret` is what clients send."""

    name: str
    secret: str = field(repr=False)


class KeyRing:
    """The keys of a server."""

    def __init__(self, keys: Sequence[Key]) -> None:
        self._keys = [(_digest(key.secret.encode()), key) for key in keys]

    def __len__(self) -> int:
        return len(self._keys)

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


def read_keys(path: str) -> tuple[str, ...]:
    """The keys of a file. Raises ValueError or RequestError with the cause."""
    try:
        text = decoded(path, Path(path).read_bytes())
    except OSError as error:
        raise ValueError(f"{path!r} cannot be read: {error.strerror}") from None
    lines = map(str.strip, text.split("\n"))
    keys = tuple(line for line in lines if line and not line.startswith("#"))
    if not keys:
        raise ValueError(f"{path} has no key")
    return keys


def checked_keys(name: str, value: object) -> tuple[str, ...]:
    """A list of keys. Raises RequestError for one that no header can have."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise RequestError(f"{name} must be a list of keys")  # the value may be a key
    for key in value:
        if not isinstance(key, str) or not key.strip():
            raise RequestError(f"{name} has a key that is empty or not a text")
        check_utf8(name, key)
    return tuple(key.strip() for key in value)


def named_keys(secrets: Iterable[str]) -> tuple[Key, ...]:
    """Keys without a name of their own: "key 1" and so on. Each secret counts once."""
    each = dict.fromkeys(secrets)
    return tuple(Key(name=f"key {n}", secret=secret) for n, secret in enumerate(each, start=1))
