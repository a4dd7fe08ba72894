"""Real replicas of `lamella serve --ray`, beside a server without Ray.

    scripts/bench replicas [MODEL] [--replicas 1 2 4] [--clients 8] [--seconds 20]

Each replica has one thread. Clients hold conversations of several turns; each asks as soon as it
has its answer. So a fleet that is twice as fast serves twice as many tokens, until the processors
of the machine are busy. The processor time of a token is that of all processes of the server. The
last line is JSON.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

START_S: Final = 300.0
N_TOKENS: Final = 32  # of an answer
N_TURNS: Final = 4
HOST: Final = "127.0.0.1"


@contextmanager
def serving(model: Sequence[str], flags: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Start a server. Yield its port and its process."""
    with closing(socket.socket()) as free:
        free.bind((HOST, 0))
        port: int = free.getsockname()[1]
    command = [str(Path(sys.executable).with_name("lamella")), "serve", *model, *flags]
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [*command, "--port", str(port)], stdout=log, stderr=log, env=environment
        )
        try:
            _wait(port, process)
            yield port, process.pid
        finally:
            process.terminate()
            process.wait(60)


def _wait(port: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        with suppress(OSError, http.client.HTTPException), closing(_connect(port)) as one:
            one.request("GET", "/health")
            if one.getresponse().status == http.HTTPStatus.OK:
                return
        if process.poll() is not None:
            break
        time.sleep(0.5)
    sys.exit("the server has not started")


def _connect(port: int) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(HOST, port, timeout=120)


def processor_seconds(pid: int) -> dict[int, float]:
    """The processor time of a process and of all that come from it."""
    children: dict[int, list[tuple[int, float]]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            fields = (path / "stat").read_text().rpartition(")")[2].split()
            seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            children.setdefault(int(fields[1]), []).append((int(path.name), seconds))
    own = [each for found in children.values() for each in found if each[0] == pid]
    tree = dict(own)
    todo = [pid]
    while todo:
        found = children.get(todo.pop(), [])
        tree |= found
        todo += [each for each, _ in found]
    return tree


class Client(threading.Thread):
    """Holds one conversation after the other until a time."""

    def __init__(self, port: int, number: int, end: float) -> None:
        super().__init__()
        self._port, self._number, self._end = port, number, end
        self.n_tokens = self.n_prompt = self.n_cached = 0
        self.ttft: list[float] = []

    def run(self) -> None:
        n = 0
        while time.monotonic() < self._end:
            n += 1
            messages: list[dict[str, str]] = []
            for turn in range(N_TURNS):
                text = f"Tell me part {turn} of story {self._number}.{n} about a fox and a bear."
                messages.append({"role": "user", "content": text})
                messages.append({"role": "assistant", "content": self._ask(messages)})

    def _ask(self, messages: Sequence[dict[str, str]]) -> str:
        body = {"messages": messages, "max_tokens": N_TOKENS, "ignore_eos": True, "stream": True}
        body["stream_options"] = {"include_usage": True}
        text, begin, first = "", time.monotonic(), 0.0
        with closing(_connect(self._port)) as one:
            one.request("POST", "/v1/chat/completions", json.dumps(body))
            for line in one.getresponse():
                if not line.startswith(b"data: {"):
                    continue
                event: dict[str, Any] = json.loads(line[6:])
                if usage := event.get("usage"):
                    self.n_tokens += usage["completion_tokens"]
                    self.n_prompt += usage["prompt_tokens"]
                    self.n_cached += usage["prompt_tokens_details"]["cached_tokens"]
                for choice in event["choices"]:
                    piece = choice["delta"].get("content") or ""
                    first = first or (time.monotonic() if piece else 0.0)
                    text += piece
        self.ttft.append((first or time.monotonic()) - begin)
        return text


def measured(port: int, pid: int, n_clients: int, seconds: float) -> dict[str, float]:
    """The figures of a server under the load of some clients."""
    before = processor_seconds(pid)
    begin = time.monotonic()
    clients = [Client(port, i, begin + seconds) for i in range(n_clients)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    took = time.monotonic() - begin
    used = sum(s - before.get(each, 0.0) for each, s in processor_seconds(pid).items())
    n_tokens = sum(client.n_tokens for client in clients)
    ttft = [seconds for client in clients for seconds in client.ttft]
    cuts = statistics.quantiles(ttft, n=100)
    return {
        "requests": len(ttft),
        "tokens_per_s": n_tokens / took,
        "processor_ms": 1e3 * used / max(n_tokens, 1),
        "ttft_p50": cuts[49],
        "ttft_p99": cuts[98],
        "hit_rate": sum(c.n_cached for c in clients) / max(sum(c.n_prompt for c in clients), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model", nargs="*", help="default: the one that comes with Lamella")
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=20.0)
    args = parser.parse_args()
    print(f"{os.cpu_count()} processors, {args.clients} clients, one thread for each replica")
    print("server          tokens/s  processor  TTFT p50    p99  prefix hits")
    common = ["-t", "1", "-c", "8192", "-np", "8", "--no-request-log"]
    servers = {"without Ray": common}
    servers |= {f"{n} replicas": [*common, "--ray", "--replicas", str(n)] for n in args.replicas}
    results = []
    for name, flags in servers.items():
        with serving(args.model, flags) as (port, pid):
            measured(port, pid, args.clients, 3.0)  # warm up
            found = measured(port, pid, args.clients, args.seconds)
        results.append({"server": name, **found})
        print(
            f"{name:14} {found['tokens_per_s']:9.0f} {found['processor_ms']:7.2f} ms"
            f" {found['ttft_p50'] * 1e3:6.0f} ms"
            f" {found['ttft_p99'] * 1e3:4.0f} ms {found['hit_rate']:10.0%}",
            flush=True,
        )
    print(json.dumps({"bench": "replicas", "clients": args.clients, "results": results}))


if __name__ == "__main__":
    main()
