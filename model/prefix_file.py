"""Files of evaluated prefixes: tokens with their keys and values, for a later process.

    magic | length of the header | header, JSON | tokens, int32 | parts of kv_cells.py | digest

The header has the identity of the keys and values: all that their bits depend on. A file of another
identity is refused, and so is a damaged one: the digest is of all bytes before it. A file is
written at once or not at all, and only its owner may read it.
Tested by tests/model/test_prefix_file.py.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

import numpy as np

from ..alloc.buffer import Bytes
from ..base.errors import RequestError
from ..base.replacing import replacing
from .kv_pages import I32Array

MAGIC: Final = b"LAMELLA PREFIX 1\n"
LENGTH: Final = struct.Struct("<I")
N_DIGEST: Final = 32
N_HEADER_MAX: Final = 1 << 20
TOKEN_BYTES: Final = 4
PRIVATE: Final = 0o600

Identity = Mapping[str, str]


class Prefix(NamedTuple):
    """Evaluated tokens, int32 [n], and their keys and values, see `kv_cells.read_parts`."""

    tokens: I32Array
    parts: Sequence[Bytes]


def write_prefix(path: Path, identity: Identity, prefix: Prefix) -> int:
    """Write a file, or replace one. Return its size in bytes.

    Raises:
        RequestError: the file cannot be written; nothing has changed.
    """
    sizes = [part.nbytes for part in prefix.parts]
    header = {"identity": dict(identity), "n_tokens": len(prefix.tokens), "sizes": sizes}
    raw = json.dumps(header).encode()
    tokens = prefix.tokens.astype("<i4").tobytes()
    pieces: list[bytes | memoryview] = [MAGIC, LENGTH.pack(len(raw)), raw, tokens]
    pieces += [part.data for part in prefix.parts]
    digest, n_bytes = blake2b(digest_size=N_DIGEST), N_DIGEST
    try:
        with replacing(path, PRIVATE) as file:
            for piece in pieces:
                digest.update(piece)
                n_bytes += file.write(piece)
            file.write(digest.digest())
    except OSError as e:
        raise RequestError(f"{path.name}: cannot be written: {e.strerror or e}") from e
    return n_bytes


def read_prefix(
    path: Path, identity: Identity, n_most: int, sizes_of: Callable[[int], Sequence[int]]
) -> Prefix:
    """Read a file of this identity.

    Args:
        n_most: the most tokens that it may have.
        sizes_of: returns the sizes of the parts of so many tokens.

    Raises:
        RequestError: there is no such file, or it is damaged, too long or of another identity.
    """
    try:
        # a pipe would block
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            return _read(file, path.name, identity, n_most, sizes_of)
    except OSError as e:
        raise RequestError(f"{path.name}: cannot be read: {e.strerror or e}") from e


def _read(
    file: IO[bytes],
    name: str,
    identity: Identity,
    n_most: int,
    sizes_of: Callable[[int], Sequence[int]],
) -> Prefix:
    raw = file.read(len(MAGIC) + LENGTH.size)
    if raw[: len(MAGIC)] != MAGIC or len(raw) < len(MAGIC) + LENGTH.size:
        raise RequestError(f"{name}: is no saved prefix of this version")
    digest = blake2b(raw, digest_size=N_DIGEST)
    (n_header,) = LENGTH.unpack(raw[len(MAGIC) :])
    header = _header(file.read(min(n_header, N_HEADER_MAX)), name, digest.update)
    _check_identity(name, header["identity"], identity)
    n = header["n_tokens"]
    if not isinstance(n, int) or not 0 < n <= n_most:
        raise RequestError(f"{name}: has {n} tokens; this context takes 1 to {n_most}")
    sizes = [TOKEN_BYTES * n, *sizes_of(n)]
    n_left = os.fstat(file.fileno()).st_size - file.tell()
    if header["sizes"] != sizes[1:] or n_left != sum(sizes) + N_DIGEST:
        raise _damaged(name)
    parts = [np.empty(size, np.uint8) for size in sizes]
    for part in parts:
        if file.readinto(part) != len(part):  # type: ignore[attr-defined]
            raise _damaged(name)
        digest.update(part.data)
    if file.read() != digest.digest():
        raise _damaged(name)
    return Prefix(parts[0].view("<i4").astype(np.int32), parts[1:])


def _header(raw: bytes, name: str, update: Callable[[bytes], None]) -> dict[str, Any]:
    update(raw)
    try:
        header: dict[str, Any] = json.loads(raw)
        if not isinstance(header["identity"], dict):
            raise _damaged(name)
        return {key: header[key] for key in ("identity", "n_tokens", "sizes")}
    except (ValueError, KeyError, TypeError, RecursionError):
        raise _damaged(name) from None


def _check_identity(name: str, found: Mapping[str, Any], wanted: Identity) -> None:
    for key in {**wanted, **found}:
        if found.get(key) != wanted.get(key):
            raise RequestError(
                f"{name}: was saved with another {key}: {found.get(key)!s:.80}; "
                f"this is {wanted.get(key)!s:.80}"
            )


def _damaged(name: str) -> RequestError:
    return RequestError(f"{name}: is damaged")
