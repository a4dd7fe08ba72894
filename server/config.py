"""The server's options: where and how to listen, who may call, what to show and to log.

Knows no request. Tested by tests/server/test_listening.py, test_cors.py and test_http_app.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from ..base.errors import RequestError
from ..base.options import Options, option
from ..model.params import parse_names
from .keys import Key, checked_keys, named_keys, parse_keys, read_keys
from .otel import checked_otel

INT32_MAX: Final = 2**31 - 1
SOCKET_SUFFIX: Final = ".sock"  # of a host that is the path of a unix socket


def _hosts(name: str, value: object) -> str:
    """A comma-separated list of hosts. Raises RequestError if it is empty."""
    if not isinstance(value, str) or not parse_names(value):
        raise RequestError(f"{name} is {value!r}: must be an address, or a list of them")
    return value


def _folder(name: str, value: object) -> str:
    """The path of a folder, or "". Raises RequestError if it is not one."""
    path = str(value)
    if path and not Path(path).is_dir():
        raise RequestError(f"{name}: {path} is not a folder")
    return path


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig(Options):
    """Where and how to listen."""

    title: ClassVar[str] = "server"

    host: str = option(
        "127.0.0.1",
        "--host",
        metavar="ADDR,...",
        check=_hosts,
        help="addresses to listen on; 0.0.0.0: all; a name that ends in .sock: a unix socket",
    )
    port: int = option(
        8080, "--port", low=0, high=65535, help="port to listen on; 0: any free port"
    )
    api_keys: Sequence[str | Key] = option(
        (),
        "--api-key",
        parse=parse_keys,
        env="$LLAMA_API_KEY",
        metavar="KEY,...",
        check=checked_keys,
        never_empty=True,
        help="API keys: clients need one, but not for GET /health, pages and files of --path",
        default_text="",
    )
    api_file_keys: Sequence[str | Key] = option(
        (),
        "--api-key-file",
        parse=read_keys,
        metavar="FILE",
        check=checked_keys,
        never_empty=True,
        help="a file with one API key per line; FILE.toml: with names and limits",
        default_text="",
    )
    ssl_key_file: str = option(
        "", "--ssl-key-file", metavar="FILE", help="PEM file: the key, for HTTPS", default_text=""
    )
    ssl_cert_file: str = option(
        "",
        "--ssl-cert-file",
        metavar="FILE",
        help="PEM file: the certificate, for HTTPS",
        default_text="",
    )
    reuse_port: bool = option(
        False, "--reuse-port", help="let several servers share the port (SO_REUSEPORT)"
    )
    timeout: int = option(
        3600,
        *("-to", "--timeout"),
        low=1,
        high=INT32_MAX,
        help="seconds to wait for a body",
    )
    write_timeout: int = option(
        600,
        "--write-timeout",
        metavar="SECONDS",
        low=1,
        high=INT32_MAX,
        help="seconds that a client may read nothing of its reply; then it is disconnected",
    )
    stream_timeout: int = option(
        300,
        "--stream-timeout",
        metavar="SECONDS",
        low=0,
        high=86400,
        help="seconds that a stream with X-Conversation-Id goes on, and is kept, without a reader; "
        "0: it ends with its client",
    )
    request_timeout: int = option(
        86400,
        "--request-timeout",
        metavar="SECONDS",
        low=0,
        high=INT32_MAX,
        help="longest time of a whole request; 0: no limit",
    )
    max_connections: int = option(
        1000,
        "--max-connections",
        low=1,
        high=1_000_000,
        help="most connections at the same time, less if the limit of open files is lower",
    )
    sse_ping_interval: int = option(
        30,
        "--sse-ping-interval",
        low=-1,
        high=INT32_MAX,
        help="seconds between pings of a silent stream; 0 or -1: no pings",
    )
    api_prefix: str = option(
        "", "--api-prefix", metavar="PREFIX", help="prefix of all paths", default_text=""
    )
    static_path: str = option(
        "",
        "--path",
        env="STATIC_PATH",
        metavar="DIR",
        check=_folder,
        help="serve the files of a folder at /",
        default_text="",
    )
    ui: bool = option(
        True,
        *("--ui", "--webui"),
        off=("--no-ui", "--no-webui"),
        help="a chat page for browsers at GET /",
    )
    tags: Sequence[str] = option(
        (),
        "--tags",
        parse=parse_names,
        metavar="TAG,...",
        help="tags in GET /v1/models",
        default_text="",
    )
    cors_origins: Sequence[str] = option(
        ("localhost",),
        "--cors-origins",
        parse=parse_names,
        metavar="ORIGIN,...",
        help="origins of pages that may call the server; *: all; localhost: all of this machine",
        default_text="localhost",
    )
    cors_methods: str = option(
        "GET, POST, DELETE, OPTIONS",
        "--cors-methods",
        metavar="METHODS",
        help="methods that pages of other origins may use",
    )
    cors_headers: str = option(
        "*",
        "--cors-headers",
        metavar="HEADERS",
        help="headers that pages of other origins may send; *: all",
    )
    cors_credentials: bool = option(
        True,
        "--cors-credentials",
        off=("--no-cors-credentials",),
        help="pages of other origins may send credentials",
    )
    metrics: bool = option(
        False,
        "--metrics",
        env="ENDPOINT_METRICS",
        help="enable GET /metrics, for Prometheus",
    )
    slots: bool = option(
        True,
        "--slots",
        off=("--no-slots",),
        env="ENDPOINT_SLOTS",
        help="enable GET /slots, the running requests",
    )
    slot_save_path: str = option(
        "",
        "--slot-save-path",
        metavar="DIR",
        check=_folder,
        help="folder where POST /slots/ID?action=save writes evaluated prefixes; its clients are "
        "trusted: they may fill the disk",
        default_text="none: saving is off",
    )
    props: bool = option(
        False,
        "--props",
        env="ENDPOINT_PROPS",
        help="enable POST /props, which has nothing to set",
    )
    request_log: bool = option(
        True, "--request-log", off=("--no-request-log",), help="log a line per request"
    )
    log_prompts_dir: str = option(
        "",
        "--log-prompts-dir",
        metavar="DIR",
        help="write the prompts and texts of each request to a file of this folder; the newest "
        "1000 stay",
        default_text="",
    )
    otel: bool = option(
        False,
        "--otel",
        check=checked_otel,
        help="send OpenTelemetry traces; the variables OTEL_* say where to",
    )
    drain: int = option(
        5,
        "--drain",
        metavar="SECONDS",
        low=0,
        high=INT32_MAX,
        help="seconds for running requests after SIGTERM or Ctrl-C; a second signal ends them",
    )
    step_timeout: int = option(
        120,
        "--step-timeout",
        metavar="SECONDS",
        low=1,
        high=INT32_MAX,
        help="seconds that a step of the engine may take; then GET /health is 503",
    )
    watchdog: int = option(
        0,
        "--watchdog",
        metavar="SECONDS",
        low=0,
        high=INT32_MAX,
        help="end the process with status 4 after the engine was dead for so long; 0: never",
    )
    max_body: int = option(
        0,
        "--max-body",
        metavar="MIB",
        low=0,
        high=4096,
        help="longest body of a request; 0: what the context can hold, from 1 to 16",
    )

    request_ram: int = option(
        512,
        "--request-ram",
        metavar="MIB",
        low=1,
        high=INT32_MAX,
        help="most MiB that the texts and probabilities of a request may take",
    )
    requests_ram: int = option(
        2048,
        "--requests-ram",
        metavar="MIB",
        low=1,
        high=INT32_MAX,
        help="most MiB that those of all running requests may take; half of it one client's",
    )

    @property
    def hosts(self) -> tuple[str, ...]:
        """Addresses and paths of sockets, each once."""
        return tuple(dict.fromkeys(parse_names(self.host)))

    @property
    def keys(self) -> tuple[Key, ...]:
        """All API keys, each with a name. Raises RequestError, see `named_keys`."""
        return named_keys((*self.api_keys, *self.api_file_keys))

    @property
    def prefix(self) -> str:
        """The prefix of all paths: "" or "/prefix"."""
        name = self.api_prefix.strip("/")
        return f"/{name}" if name else ""
