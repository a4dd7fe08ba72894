"""The client of http_client.c in Python, for machines without a C compiler. Its own time per event
is many times longer, so the server's speed suffers if they share the cores.

    python benchmarks/http_client.py HOST PORT N_STREAMS N_ROUNDS REQUEST_FILE MARK
"""

from __future__ import annotations

import json
import selectors
import socket
import sys
import time
from pathlib import Path


class Stream:
    """One connection, which sends the request several times and reads the replies."""

    def __init__(self, address: tuple[str, int], request: bytes, n_rounds: int, mark: bytes):
        self.socket = socket.create_connection(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.gaps: list[float] = []
        self.firsts: list[float] = []
        self.n_events = self.n_bytes = self.n_replies = 0
        self._request, self._mark = request, mark
        self._rounds_left = n_rounds

    def begin(self) -> None:
        """Send the request."""
        self._raw = b""  # not decoded yet
        self._events = b""  # decoded: no whole event
        self._in_body = False
        self._last: float | None = None
        self._ends_rightly = False
        self._sent = time.perf_counter()
        self.socket.sendall(self._request)

    def read(self) -> bool:
        """Read what has come. Return False after the last reply."""
        data = self.socket.recv(1 << 18)
        if not data:
            raise SystemExit("the server closed the connection")
        self.n_bytes += len(data)
        self._raw += data
        if not self._in_body and not self._read_head():
            return True
        if not self._read_chunks():
            return True
        if not self._ends_rightly:
            raise SystemExit("a stream did not end with the mark")
        self.n_replies += 1
        self._rounds_left -= 1
        if self._rounds_left:
            self.begin()
        return self._rounds_left > 0

    def _read_head(self) -> bool:
        head, end, rest = self._raw.partition(b"\r\n\r\n")
        if not end:
            return False
        if not head.startswith(b"HTTP/1.1 200") or b"chunked" not in head.lower():
            raise SystemExit(f"the reply is not a stream: {self._raw!r}")
        self._raw, self._in_body = rest, True
        return True

    def _read_chunks(self) -> bool:
        """Return True at the end of the reply."""
        while True:
            size, end, rest = self._raw.partition(b"\r\n")
            n = int(size, 16) if end else 0
            if not end or len(rest) < n + 2:
                return False
            self._raw = rest[n + 2 :]
            if n == 0:
                return True
            *events, self._events = (self._events + rest[:n]).split(b"\n\n")
            for event in events:
                self._take(event)

    def _take(self, event: bytes) -> None:
        if b"data: " not in event:  # a ping
            return
        if b'"error":{' in event:
            raise SystemExit(f"an error in a stream: {event!r}")
        now = time.perf_counter()
        self.n_events += 1
        if self._last is None:
            self.firsts.append(now - self._sent)
        else:
            self.gaps.append(now - self._last)
        self._last = now
        self._ends_rightly = self._mark in event


def percentiles(times: list[float]) -> list[float]:
    """The 50th and the 99th, in milliseconds."""
    times = sorted(times) or [0.0]
    return [round(1e3 * times[int(p * (len(times) - 1) + 0.5)], 3) for p in (0.5, 0.99)]


def main() -> None:
    host, port, n_streams, n_rounds, path, mark = sys.argv[1:]
    request = Path(path).read_bytes()
    streams = [
        Stream((host, int(port)), request, int(n_rounds), mark.encode())
        for _ in range(int(n_streams))
    ]
    selector = selectors.DefaultSelector()
    begin, cpu = time.perf_counter(), time.process_time()
    for stream in streams:
        selector.register(stream.socket, selectors.EVENT_READ, stream)
        stream.begin()
    while selector.get_map():
        for key, _ in selector.select():
            if not key.data.read():
                selector.unregister(key.data.socket)
                key.data.socket.close()
    found = {
        "seconds": time.perf_counter() - begin,
        "cpu": time.process_time() - cpu,
        "events": sum(stream.n_events for stream in streams),
        "bytes": sum(stream.n_bytes for stream in streams),
        "replies": sum(stream.n_replies for stream in streams),
        "gap_ms": percentiles([t for stream in streams for t in stream.gaps]),
        "first_ms": percentiles([t for stream in streams for t in stream.firsts]),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
