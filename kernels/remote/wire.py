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
import threading
import time
from contextlib import suppress
from enum import IntEnum, auto
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from ...base.errors import DeviceLostError
from .spin import Spin

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
    PULSE = 4  # is the process there?


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
    RUN = auto()  # plan, 1 to tell when it is done
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
    DONE = auto()  # the number of a RUN, 1 after a failure; results
    # between workers
    LINK = auto()  # link; the sender's name. The first message
    TENSOR = auto()  # tag; the bytes
    FAILED = auto()  # tag


class Message(NamedTuple):
    """A message that arrived."""

    kind: int
    numbers: tuple[int, int, int, int, int]
    data: memoryview

    def json(self) -> Any:
        return json.loads(bytes(self.data))


def to_json(value: object) -> bytes:
    """A value as the payload of a message."""
    return json.dumps(value, separators=(",", ":")).encode()


class _Head(NamedTuple):
    """A header that arrived, and the memory for the payload after it."""

    kind: int
    numbers: tuple[int, int, int, int, int]
    data: memoryview


class Channel:
    """A connection that both sides have accepted. `name` is the other side, for errors.

    Any thread may send, one at a time may receive. With `spin`, `receive` spins before it
    sleeps.
    """

    def __init__(self, sock: socket.socket, name: str, role: Role) -> None:
        self.name = name
        self.role = role
        self.spin: Spin | None = None
        self._sock = sock
        self._queueing = threading.Lock()  # protects the next one
        self._waiting: list[Payload] = []
        self._sending = threading.Lock()  # a message goes out whole
        self._unsent = memoryview(b"")  # what `flush_ready` could not send
        self._buffer = memoryview(bytearray(SMALL))
        self._begin = self._end = 0  # of the bytes in it that no message has taken
        self._head: _Head | None = None
        self._n_read = 0  # bytes of its payload
        self._is_drained = False  # the last read got less than it could take

    def set_timeout(self, seconds: float) -> None:
        """Let the connection be lost if sending or receiving takes longer."""
        self._sock.settimeout(seconds)

    def fileno(self) -> int:
        return self._sock.fileno()

    # --- sending ---

    def queue(self, kind: Kind, *numbers: int, data: Payload = b"") -> None:
        """Send a message with the next `flush`. Until then, `data` must not change."""
        view = memoryview(data).cast("B")
        padded = (*numbers, 0, 0, 0, 0, 0)[:5]
        head = _HEADER.pack(VERSION, kind, 0, view.nbytes, *padded)
        with self._queueing:
            self._waiting += (head, view) if view.nbytes else (head,)

    def flush(self) -> None:
        """Send all queued messages.

        Raises:
            DeviceLostError: the connection was lost.
        """
        with self._sending:
            small: list[Payload] = []
            try:
                for part in (self._unsent, *self._take_waiting()):
                    if len(part) >= SMALL:
                        self._send_small(small)
                        self._sock.sendall(part)
                    else:
                        small.append(part)
                self._send_small(small)
            except OSError as e:
                raise self._lost(e) from None
            self._unsent = memoryview(b"")

    def _send_small(self, parts: list[Payload]) -> None:
        if parts:
            self._sock.sendall(b"".join(parts))
            parts.clear()

    def _take_waiting(self) -> list[Payload]:
        with self._queueing:
            waiting, self._waiting = self._waiting, []
        return waiting

    def flush_ready(self) -> bool:
        """Send what can be sent without waiting. Return False if something is left, or would take
        long: then `flush` sends it.

        Raises:
            DeviceLostError: the connection was lost.
        """
        if not self._sending.acquire(blocking=False):
            return False
        try:
            if self._unsent or any(len(part) >= SMALL for part in self._waiting):
                return False
            data = memoryview(b"".join(self._take_waiting()))
            self._unsent = data[self._sock.send(data, socket.MSG_DONTWAIT) :] if data else data
        except BlockingIOError:
            self._unsent = data
        except OSError as e:
            raise self._lost(e) from None
        finally:
            self._sending.release()
        return not self._unsent

    def send(self, kind: Kind, *numbers: int, data: Payload = b"") -> None:
        """Queue a message, and `flush`."""
        self.queue(kind, *numbers, data=data)
        self.flush()

    # --- receiving ---

    def receive(self) -> Message:
        """Wait for the next message.

        Raises:
            DeviceLostError: the connection was lost, or its bytes are no messages.
        """
        while (message := self._next()) is None:
            if self.spin is None or not self._spin(self.spin):
                self._fill()
        return message

    def receive_ready(self) -> Message | None:
        """The next message; None if it has not arrived wholly. Does not wait. Errors: see
        `receive`."""
        while (message := self._next()) is None:
            if self._is_drained or not self._fill(socket.MSG_DONTWAIT):
                self._is_drained = False
                return None
        return message

    def _next(self) -> Message | None:
        """The next message, if the bytes that were read have it."""
        head = self._head
        if head is None:
            if self._end - self._begin < _HEADER.size:
                return None
            head = self._head = self._parse_head()
        data, n = head.data, self._n_read
        n_here = min(len(data) - n, self._end - self._begin)
        if n_here:
            data[n : n + n_here] = self._buffer[self._begin : self._begin + n_here]
            self._begin += n_here
            self._n_read = n = n + n_here
        if n < len(data):
            return None
        self._head, self._n_read = None, 0
        return Message(*head)

    def _parse_head(self) -> _Head:
        version, kind, _, size, *numbers = _HEADER.unpack_from(self._buffer, self._begin)
        self._begin += _HEADER.size
        if version != VERSION or size > MAX_BYTES:
            raise self._lost(f"message of version {version} with {size} bytes")
        a, b, c, d, e = numbers
        try:  # the system takes memory for bytes that arrive, not for those that are announced
            data = memoryview(bytearray(size)) if size < SMALL else np.empty(size, np.uint8).data
        except MemoryError:
            raise self._lost(f"no memory for a message of {size} bytes") from None
        return _Head(kind, (a, b, c, d, e), data)

    def _fill(self, flags: int = 0) -> bool:
        """Read what has arrived. Return False if that is nothing, and `flags` say not to wait."""
        if self._head is not None and len(self._head.data) - self._n_read >= SMALL:
            target = self._head.data[self._n_read :]  # without a copy
        else:
            left = self._buffer[self._begin : self._end]  # less than a header
            self._buffer[: len(left)] = left
            self._begin, self._end = 0, len(left)
            target = self._buffer[self._end :]
        try:
            n = self._sock.recv_into(target, 0, flags)
        except BlockingIOError:
            return False
        except OSError as e:
            raise self._lost(e) from None
        if n == 0:
            raise self._lost("it was closed")
        self._is_drained = n < len(target)
        if target.obj is self._buffer.obj:
            self._end += n
        else:
            self._n_read += n
        return True

    def _spin(self, spin: Spin) -> bool:
        """Read what arrives soon; return False if that is nothing."""
        begin = time.perf_counter()
        while not self._fill(socket.MSG_DONTWAIT):
            if not spin.goes_on(begin):
                return False
        return True

    def _lost(self, why: object) -> DeviceLostError:
        if isinstance(why, TimeoutError):
            return DeviceLostError(f"{self.name}: its process does not answer")
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

    def cut(self) -> None:
        """End the connection. The thread that reads it notices, and closes it."""
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the connection. Waiting threads get an error. A second call does nothing."""
        self.cut()
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
    end = time.monotonic() + CONNECT_SECONDS
    try:
        nonce = secrets.token_bytes(16)
        sock.sendall(_HELLO.pack(_MAGIC, VERSION, role, nonce))
        theirs = _parse_hello(_exactly(sock, _HELLO.size, end))[1]
        proof = _exactly(sock, _PROOF().digest_size, end)
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
    end = time.monotonic() + CONNECT_SECONDS
    role, theirs = _parse_hello(_exactly(sock, _HELLO.size, end))
    nonce = secrets.token_bytes(16)
    mine = _proof(secret, b"worker", theirs, nonce)
    sock.sendall(_HELLO.pack(_MAGIC, VERSION, role, nonce) + mine)
    proof = _exactly(sock, _PROOF().digest_size, end)
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


def _exactly(sock: socket.socket, size: int, end: float) -> bytes:
    """Read bytes, until a time of the monotonic clock."""
    found = b""
    while len(found) < size:
        sock.settimeout(max(end - time.monotonic(), 0.001))
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
