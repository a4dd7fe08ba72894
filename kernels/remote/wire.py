"""Messages between a driver and its workers: a fixed header, five numbers, and bytes.

    channel = connect(address, secret, Role.CONTROL)
    channel.send(Kind.READ, buffer, offset, size)
    message = channel.receive()

Both sides prove that they know the secret of the run before anything else is read. Nothing is
pickled. The connection is not encrypted. Knows no devices.
Tested by tests/kernels/test_remote_wire.py.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import socket
import struct
from contextlib import suppress
from enum import IntEnum, auto
from typing import Any, Final, NamedTuple, TypeAlias

from ...base.errors import DeviceLostError

VERSION: Final = 1  # of the messages; the handshake refuses others
SECRET_BYTES: Final = 32
MAX_BYTES: Final = 1 << 36  # of one message; more is no message of ours
SMALL: Final = 1 << 16  # bytes of messages that are joined, and of the buffer that reads them
CONNECT_SECONDS: Final = 10.0  # most time to connect, and for the handshake
LOST_SECONDS: Final = 15  # without an answer of the other machine's system, the connection is lost

_HEADER: Final = struct.Struct("<HHIQ5q")  # version, kind, unused, size, numbers
_MAGIC: Final = b"LAMELLA\x00"
_HELLO: Final = struct.Struct("<8sHH16s")  # magic, version, role, nonce
_PROOF: Final = hashlib.sha256

Address = tuple[str, int]  # host and port
Payload: TypeAlias = Any  # bytes, or a contiguous array


class Role(IntEnum):
    """The purpose of a connection."""

    CONTROL = 1  # requests with replies
    STREAM = 2  # the work of a backend, in order
    PEER = 3  # tensors from another worker


class Kind(IntEnum):
    """The kind of a message. The numbers of a message follow its name."""

    # requests
    CALL = 1  # JSON
    WRITE = auto()  # buffer, offset; the bytes
    READ = auto()  # buffer, offset, size
    FILL = auto()  # buffer, offset, size, value
    FREE = auto()  # buffer; no reply
    SET = auto()  # size of JSON; JSON of a tensor, and its bytes
    ECHO = auto()  # any bytes; the reply is empty
    # work of a stream, beside WRITE
    PLAN = auto()  # plan, work buffer; JSON of a graph
    DROP = auto()  # plan
    RUN = auto()  # plan
    PROFILE = auto()  # plan
    COPY = auto()  # buffer, offset, size, to buffer, to offset
    SEND = auto()  # buffer, offset, size, tag, peer
    RECEIVE = auto()  # buffer, offset, size, tag, link
    ASK = auto()  # number: tell when so many messages are done
    SYNC = auto()
    # replies
    RESULT = auto()  # JSON
    DATA = auto()  # bytes
    ERROR = auto()  # JSON
    REACHED = auto()  # the number of an ASK
    # between workers
    LINK = auto()  # link; the sender's name. The first message
    TENSOR = auto()  # tag; the bytes
    FAILED = auto()  # tag


class Message(NamedTuple):
    """A message that arrived."""

    kind: int
    numbers: tuple[int, int, int, int, int]
    data: bytearray

    def json(self) -> Any:
        return json.loads(bytes(self.data))


def to_json(value: object) -> bytes:
    """A value as the payload of a message."""
    return json.dumps(value, separators=(",", ":")).encode()


class Channel:
    """A connection that both sides have accepted. `name` is the other side, for errors.

    One thread at a time may send, and one may receive.
    """

    def __init__(self, sock: socket.socket, name: str, role: Role) -> None:
        self.name = name
        self.role = role
        self._sock = sock
        self._in = sock.makefile("rb", SMALL)
        self._waiting: list[Payload] = []

    def queue(self, kind: Kind, *numbers: int, data: Payload = b"") -> None:
        """Send a message with the next `flush`. Until then, `data` must not change."""
        view = memoryview(data).cast("B")
        padded = (*numbers, 0, 0, 0, 0, 0)[:5]
        self._waiting.append(_HEADER.pack(VERSION, kind, 0, view.nbytes, *padded))
        if view.nbytes:
            self._waiting.append(view)

    def flush(self) -> None:
        """Send all queued messages.

        Raises:
            DeviceLostError: the connection was lost.
        """
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        small: list[Payload] = []
        try:
            for part in waiting:
                if len(part) >= SMALL:
                    self._send_small(small)
                    self._sock.sendall(part)
                else:
                    small.append(part)
            self._send_small(small)
        except OSError as e:
            raise self._lost(e) from None

    def _send_small(self, parts: list[Payload]) -> None:
        if parts:
            self._sock.sendall(parts[0] if len(parts) == 1 else b"".join(parts))
            parts.clear()

    def send(self, kind: Kind, *numbers: int, data: Payload = b"") -> None:
        """Queue a message, and `flush`."""
        self.queue(kind, *numbers, data=data)
        self.flush()

    def receive(self) -> Message:
        """Wait for the next message.

        Raises:
            DeviceLostError: the connection was lost, or its bytes are no messages.
        """
        header = self._read(_HEADER.size)
        version, kind, _, size, *numbers = _HEADER.unpack(header)
        if version != VERSION or size > MAX_BYTES:
            raise self._lost(f"message of version {version} with {size} bytes")
        a, b, c, d, e = numbers
        return Message(kind, (a, b, c, d, e), self._read(size))

    def _read(self, size: int) -> bytearray:
        found = bytearray(size)
        view, n = memoryview(found), 0
        try:
            while n < size and (n_read := self._in.readinto(view[n:])):  # type: ignore[attr-defined]
                n += n_read
        except (OSError, ValueError) as e:  # ValueError: closed by another thread
            raise self._lost(e) from None
        if n < size:
            raise self._lost("it was closed")
        return found

    def _lost(self, why: object) -> DeviceLostError:
        return DeviceLostError(f"{self.name}: the connection to its process was lost: {why}")

    @property
    def is_closed(self) -> bool:
        """True if the other side, or its system, has ended the connection. Does not wait."""
        try:
            return self._sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False  # it is open, and nothing has arrived
        except OSError:
            return True

    def close(self) -> None:
        """End the connection. Waiting threads get an error. A second call does nothing."""
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        with suppress(OSError, ValueError):
            self._in.close()
        self._sock.close()


# --- connecting ---


def new_secret() -> bytes:
    """The secret of a run."""
    return secrets.token_bytes(SECRET_BYTES)


def connect(address: Address, secret: bytes, role: Role, name: str) -> Channel:
    """Connect to a worker.

    Raises:
        DeviceLostError: it does not answer, has another version, or does not know the secret.
    """
    try:
        sock = socket.create_connection(address, CONNECT_SECONDS)
    except OSError as e:
        raise _refused(name, address, e) from None
    try:
        nonce = secrets.token_bytes(16)
        sock.sendall(_HELLO.pack(_MAGIC, VERSION, role, nonce))
        theirs = _parse_hello(_exactly(sock, _HELLO.size))[1]
        proof = _exactly(sock, _PROOF().digest_size)
        if not hmac.compare_digest(proof, _proof(secret, b"worker", nonce, theirs)):
            raise ValueError("it does not know the secret of this run")
        sock.sendall(_proof(secret, b"driver", nonce, theirs))
        _tune(sock)
    except (OSError, ValueError) as e:
        sock.close()
        raise _refused(name, address, e) from None
    return Channel(sock, name, role)


def accept(sock: socket.socket, secret: bytes, name: str) -> Channel:
    """The worker's side of `connect`.

    Raises:
        OSError, ValueError: the other side is no driver of this run.
    """
    sock.settimeout(CONNECT_SECONDS)
    role, theirs = _parse_hello(_exactly(sock, _HELLO.size))
    nonce = secrets.token_bytes(16)
    mine = _proof(secret, b"worker", theirs, nonce)
    sock.sendall(_HELLO.pack(_MAGIC, VERSION, role, nonce) + mine)
    proof = _exactly(sock, _PROOF().digest_size)
    if not hmac.compare_digest(proof, _proof(secret, b"driver", theirs, nonce)):
        raise ValueError("the other side does not know the secret of this run")
    _tune(sock)
    return Channel(sock, name, role)


def _parse_hello(raw: bytes) -> tuple[Role, bytes]:
    magic, version, role, nonce = _HELLO.unpack(raw)
    if magic != _MAGIC:
        raise ValueError("the other side is not Lamella")
    if version != VERSION:
        raise ValueError(f"it speaks version {version}, this process {VERSION}")
    return Role(role), nonce


def _proof(secret: bytes, side: bytes, *nonces: bytes) -> bytes:
    return hmac.digest(secret, b"".join((side, *nonces)), _PROOF)


def _exactly(sock: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = sock.recv(size - len(found))
        if not part:
            raise ConnectionError("it closed the connection")
        found += part
    return found


def _tune(sock: socket.socket) -> None:
    """Send small messages at once, and notice a machine that is gone."""
    sock.settimeout(None)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {
        "TCP_KEEPIDLE": LOST_SECONDS // 3,
        "TCP_KEEPINTVL": LOST_SECONDS // 3,
        "TCP_KEEPCNT": 2,
        "TCP_USER_TIMEOUT": 1000 * LOST_SECONDS,
    }
    for option, value in options.items():
        if hasattr(socket, option):  # not on every system
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _refused(name: str, address: Address, why: object) -> DeviceLostError:
    host, port = address
    return DeviceLostError(f"{name}: cannot connect to its process at {host}:{port}: {why}")
