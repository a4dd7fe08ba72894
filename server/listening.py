"""Where the server listens: addresses, unix sockets, TLS, and the URLs that a user can open.

Knows no route. Tested by tests/server/test_listening.py.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
import stat
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from typing import Any, Final

from aiohttp import web

from ..base.errors import RequestError
from .config import SOCKET_SUFFIX, ServerConfig
from .http_protocol import HttpRunner

N_BACKLOG: Final = 512
# hosts that stand for all addresses: the family, the loopback address, and an address that no
# machine has (RFC 5737, RFC 3849)
ANY_HOST: Final = {
    "0.0.0.0": (socket.AF_INET, "127.0.0.1", "192.0.2.1"),
    "::": (socket.AF_INET6, "::1", "2001:db8::1"),
}
IN_USE: Final = "another program listens there: stop it, or choose another"

ADVICE: Final = {
    errno.EADDRINUSE: f"{IN_USE} --port (0: any free port)",
    errno.EACCES: "ports below 1024 and some folders need more rights: choose another --port",
    errno.EADDRNOTAVAIL: "this machine has no such address: use --host 127.0.0.1, or 0.0.0.0 for "
    "all of its addresses",
}


async def listen(runner: HttpRunner, config: ServerConfig) -> None:
    """Listen on all hosts of `config`.

    Raises:
        RequestError: a TLS file is invalid, or an address cannot be used.
    """
    tls = tls_context(config)
    for host in config.hosts:
        try:
            site = _site(runner, config, host)
            await site.start()
            site.accept(tls)
        except (OSError, OverflowError) as error:
            raise RequestError(_cannot_listen(config, host, error)) from error


def bound(config: ServerConfig) -> socket.socket:
    """A socket that is bound to the only host of `config`. A server begins to listen later.

    Raises:
        RequestError: the address cannot be used.
    """
    host = config.host
    try:
        found = socket.getaddrinfo(host, config.port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = found[0]
        with ExitStack() as stack:
            one = stack.enter_context(socket.socket(family, kind, protocol))
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if config.reuse_port:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            one.bind(address)
            stack.pop_all()
    except (OSError, OverflowError) as error:
        raise RequestError(_cannot_listen(config, host, error)) from error
    return one


def _site(runner: HttpRunner, config: ServerConfig, host: str) -> _Site:
    if host.endswith(SOCKET_SUFFIX):
        return _SocketSite(runner, host)
    return _AddressSite(runner, host, config)


def _cannot_listen(config: ServerConfig, host: str, error: OSError | OverflowError) -> str:
    where = host if host.endswith(SOCKET_SUFFIX) else f"{host}, port {config.port}"
    code = error.errno if isinstance(error, OSError) else None
    if code in ADVICE:
        return f"cannot listen on {where}: {os.strerror(code)}: {ADVICE[code]}"
    cause = (isinstance(error, OSError) and error.strerror) or error
    return f"cannot listen on {where}: {cause}"


class _Site(web.BaseSite):
    """Sockets that asyncio binds. The runner's acceptor accepts from copies of them."""

    _runner: HttpRunner

    __slots__ = ()

    def accept(self, tls: ssl.SSLContext | None) -> None:
        """Begin to accept connections."""
        assert isinstance(self._server, asyncio.Server)
        for bound in self._server.sockets:
            listener = bound.dup()
            listener.listen(N_BACKLOG)
            self._runner.acceptor.start(listener, tls)


class _AddressSite(_Site):
    """The addresses of a host, with one port."""

    __slots__ = ("_config", "_host")

    def __init__(self, runner: HttpRunner, host: str, config: ServerConfig) -> None:
        super().__init__(runner)
        self._host, self._config = host, config

    @property
    def name(self) -> str:
        """See `web.BaseSite`."""
        return self._host

    async def start(self) -> None:
        """Bind the sockets."""
        await super().start()
        self._server = await asyncio.get_running_loop().create_server(
            asyncio.Protocol,
            self._host,
            self._config.port,
            reuse_port=self._config.reuse_port or None,
            start_serving=False,
        )


class _SocketSite(_Site):
    """A unix socket. The end of the runner removes its file, if it is still this server's."""

    __slots__ = ("_file", "_path")

    def __init__(self, runner: HttpRunner, path: str) -> None:
        super().__init__(runner)
        self._path = path
        self._file: tuple[int, int] | None = None

    @property
    def name(self) -> str:
        """See `web.BaseSite`."""
        return self._path

    async def start(self) -> None:
        """Bind it. Raises RequestError if a server listens there, or the file is not a socket."""
        _check_free(self._path)
        await super().start()
        self._server = await asyncio.get_running_loop().create_unix_server(
            asyncio.Protocol, self._path, start_serving=False
        )
        self._file = _identity(self._path)

    async def stop(self) -> None:
        """Stop listening and remove the file."""
        await super().stop()
        with suppress(OSError):
            if self._file == _identity(self._path):
                os.unlink(self._path)


def _identity(path: str) -> tuple[int, int]:
    """The device and the inode of a file."""
    found = os.stat(path)
    return found.st_dev, found.st_ino


def _check_free(path: str) -> None:
    """Check that a unix socket can be bound to `path`: asyncio replaces a socket, even a live one.

    Raises:
        RequestError: a server listens there, or the file is not a socket.
    """
    if not os.path.exists(path):
        return
    if not stat.S_ISSOCK(os.stat(path).st_mode):
        raise RequestError(f"cannot listen on {path}: the file exists and is not a socket")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)  # a full backlog must not stop the start
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return  # left by a server that was killed
        except BlockingIOError:
            pass
    raise RequestError(f"cannot listen on {path}: {IN_USE} --host")


def tls_context(config: ServerConfig) -> ssl.SSLContext | None:
    """TLS with the certificate and key of `config`; None without them.

    Raises:
        RequestError: a file is missing, or the two do not belong together.
    """
    files = {"--ssl-cert-file": config.ssl_cert_file, "--ssl-key-file": config.ssl_key_file}
    if not any(files.values()):
        return None
    for flag, path in files.items():
        if not path:
            raise RequestError(f"{flag} is missing: TLS needs a certificate and its key")
        try:
            open(path, "rb").close()
        except OSError as error:
            raise RequestError(f"{flag} {path}: {error.strerror}") from error
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        # no password: the server must not wait for a terminal
        context.load_cert_chain(config.ssl_cert_file, config.ssl_key_file, password="")
    except ssl.SSLError as error:
        named = ", ".join(f"{flag} {path}" for flag, path in files.items())
        raise RequestError(f"{named}: not a PEM certificate and its key: {error}") from error
    return context


def urls(addresses: Iterable[Any], config: ServerConfig) -> list[str]:
    """The URLs to open, of a server with these addresses of sockets. If it listens on all addresses
    of a machine, the machine's own is one."""
    found: list[str] = []
    scheme = "https" if config.ssl_cert_file else "http"
    for address in addresses:
        if isinstance(address, str):
            found.append(f"unix:{address}")
            continue
        host, port, *_ = address
        for name in _names(host):
            at = f"[{name}]" if ":" in name else name
            found.append(f"{scheme}://{at}:{port}{config.prefix}")
    return list(dict.fromkeys(found))


def _names(host: str) -> Iterator[str]:
    if host not in ANY_HOST:
        yield host
        return
    family, loopback, elsewhere = ANY_HOST[host]
    yield loopback
    with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((elsewhere, 9))  # chooses a route; sends nothing
        yield probe.getsockname()[0]
