"""A local imitation of the Hugging Face hub: one HTTP server for the hub, one for large files.

It has the real hub's headers, redirects, ranges and error responses.

    with FakeHub() as hub:
        repo = hub.add("user/repo", {"model-Q4_K_M.gguf": data})
        hub.cuts = [1000]   # the next delivery ends after 1,000 bytes

The server for large files also serves every file by its name, as other servers do. Attributes take
effect with the next request. `requests` records the requests.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

SMALL = 512  # files up to this size are stored in git and delivered by the hub itself
GOOD_TOKEN = "hf_good"


class Asked(NamedTuple):
    method: str
    host: str  # hub or files
    path: str
    range: str
    token: str


@dataclass
class Repo:
    """A repository. With `gated`, files need a token of an account with access. With `private`,
    requests without a token do not find it."""

    name: str
    files: dict[str, bytes]
    gated: bool = False
    private: bool = False
    commit: str = field(default="")

    def __post_init__(self) -> None:
        self.commit = self.commit or hashlib.sha1(repr(self.files).encode()).hexdigest()


class FakeHub:
    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.requests: list[Asked] = []
        self.n_sent = 0  # bytes of files
        self.cuts: list[int] = []  # bytes after which the next deliveries end
        self.statuses: list[int] = []  # statuses of the next responses
        self.error, self.error_headers = b"busy", dict[str, str]()  # if it is an error
        self.has_access = True  # the account of GOOD_TOKEN may read gated repositories
        self.knows_ranges = True
        self.damage = False  # deliver each file with a wrong last byte
        self.stall_after: int | None = None  # bytes after which deliveries wait for `go_on`
        self.go_on = threading.Event()
        self._servers = {
            name: ThreadingHTTPServer(("127.0.0.1", 0), _handler(self, name))
            for name in ("hub", "files")
        }
        for server in self._servers.values():
            server.daemon_threads = True
            threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()

    def __enter__(self) -> FakeHub:
        return self

    def __exit__(self, *_: object) -> None:
        self.go_on.set()
        for server in self._servers.values():
            server.shutdown()
            server.server_close()

    def url(self, name: str = "hub") -> str:
        # two host names, as a token is for one of them only
        place = {"hub": "127.0.0.1", "files": "localhost"}[name]
        return f"http://{place}:{self._servers[name].server_address[1]}"

    def add(self, name: str, files: Mapping[str, bytes], **options: Any) -> Repo:
        self.repos[name] = Repo(name, dict(files), **options)
        return self.repos[name]

    def deliveries(self) -> list[Asked]:
        """Return the requests for the content of large files."""
        return [r for r in self.requests if r.host == "files" and r.method == "GET"]

    def forget(self) -> None:
        self.requests.clear()
        self.n_sent = 0


def digest_of(data: bytes) -> str:
    """Return a file's digest: sha256 of a large file, git's sha1 of a small one."""
    if len(data) > SMALL:
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def _listing(repo: Repo) -> bytes:
    siblings = []
    for name, data in repo.files.items():
        sibling = {"rfilename": name, "size": len(data), "blobId": digest_of(data[:SMALL])}
        if len(data) > SMALL:
            sibling["lfs"] = {"sha256": digest_of(data), "size": len(data), "pointerSize": 130}
        siblings.append(sibling)
    about = {"_id": "1", "id": repo.name, "modelId": repo.name, "sha": repo.commit}
    kind: dict[str, Any] = {
        "private": repo.private,
        "gated": "manual" if repo.gated else False,
        "tags": [],
    }
    return json.dumps({**about, **kind, "downloads": 0, "siblings": siblings}).encode()


def _handler(hub: FakeHub, host: str) -> type[BaseHTTPRequestHandler]:
    class Handler(_Handler):
        pass

    Handler.hub, Handler.host = hub, host
    return Handler


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    host: str
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def handle(self) -> None:
        with suppress(ConnectionError):  # the client closed the connection
            super().handle()

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        asked = Asked(self.command, self.host, path, self.headers.get("Range", ""), self.token)
        self.hub.requests.append(asked)
        if self.hub.statuses:
            status = self.hub.statuses.pop(0)
            if status != 200:
                return self._say(status, self.hub.error, self.hub.error_headers)
        if self.host == "files":
            return self._deliver_large(path)
        if self.token and self.token != GOOD_TOKEN:
            return self._refuse(401, "", "Invalid credentials in Authorization header")
        api = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path)
        file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        found = api or file
        repo = self.hub.repos.get(found[1]) if found else None
        if repo is None or (repo.private and not self.token):
            # without a token, a private repository looks like a missing one
            status = 404 if self.token else 401
            return self._refuse(
                status, "RepoNotFound" if self.token else "", "Repository not found"
            )
        if file is None:
            return self._say(200, _listing(repo), {"Content-Type": "application/json"})
        return self._resolve(repo, file[2], file[3])

    def _resolve(self, repo: Repo, revision: str, name: str) -> None:
        if repo.gated and not (self.token and self.hub.has_access):
            text = f"Access to model {repo.name} is restricted"
            return self._refuse(403 if self.token else 401, "GatedRepo", text)
        if revision not in ("main", repo.commit):
            return self._refuse(404, "RevisionNotFound", "Invalid rev id")
        if name not in repo.files:
            return self._refuse(404, "EntryNotFound", "Entry not found")
        data = repo.files[name]
        digest = digest_of(data)
        headers = {"X-Repo-Commit": repo.commit, "ETag": f'"{digest}"'}
        if len(data) <= SMALL:
            return self._deliver(data, headers)
        headers |= {"X-Linked-Etag": f'"{digest}"', "X-Linked-Size": str(len(data))}
        place = f"{self.hub.url('files')}/{digest}?Signature=1"
        return self._say(302, b"Found", {**headers, "Location": place})

    def _deliver_large(self, path: str) -> None:
        every = [file for repo in self.hub.repos.values() for file in repo.files.items()]
        found = [data for _, data in every if digest_of(data) == path.strip("/")]
        found += [data for name, data in every if name == path.strip("/")]
        if not found:
            return self._say(404, b"no such file")
        return self._deliver(found[0], {"ETag": f'"{digest_of(found[0])}"'})

    def _deliver(self, data: bytes, headers: dict[str, str]) -> None:
        if self.hub.damage:
            data = data[:-1] + bytes([data[-1] ^ 1])
        status, body = 200, data
        range = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if range and self.hub.knows_ranges:
            begin, end = int(range[1]), min(int(range[2] or len(data) - 1) + 1, len(data))
            if begin >= len(data):
                return self._say(416, b"", {"Content-Range": f"bytes */{len(data)}"})
            status, body = 206, data[begin:end]
            headers = {**headers, "Content-Range": f"bytes {begin}-{end - 1}/{len(data)}"}
        return self._say(status, body, headers, is_file=self.command == "GET")

    def _refuse(self, status: int, code: str, message: str) -> None:
        headers = {"X-Error-Message": message}
        if code:
            headers["X-Error-Code"] = code
        self._say(status, json.dumps({"error": message}).encode(), headers)

    def _say(
        self,
        status: int,
        body: bytes,
        headers: Mapping[str, str] | None = None,
        is_file: bool = False,
    ) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if is_file:
            self._send_file(body)
        else:
            self.wfile.write(body)

    def _send_file(self, body: bytes) -> None:
        hub = self.hub
        cut = hub.cuts.pop(0) if hub.cuts else len(body)
        self.close_connection = cut < len(body)
        wait = min(cut, len(body) if hub.stall_after is None else hub.stall_after)
        self._send(body[:wait])
        if wait < cut:
            hub.go_on.wait()
            self._send(body[wait:cut])

    def _send(self, body: bytes) -> None:
        for i in range(0, len(body), 1 << 16):
            piece = body[i : i + (1 << 16)]
            self.hub.n_sent += len(piece)  # first, as the test may read it after the last write
            self.wfile.write(piece)
