"""From the engine to the socket: streams over HTTP, compared with the engine alone.

    scripts/bench http [MODEL] [--streams 1,8,32] [--apis native,chat] [-n 128] [-r 5]
    scripts/bench http --peer llama-server        # the same streams of llama.cpp's server

Starts `lamella serve` (or the peer) and opens the same model in this process. The engine alone and
the streams take turns, with the same jobs: prompts of 16 tokens, `n` predicted tokens each, the
default samplers. The client is http_client.c if there is a C compiler, else http_client.py.

Columns: tokens per second over HTTP and of the engine alone (medians), the median of the ratios of
neighboring runs, and microseconds of processor time per streamed token: of the server's event loop,
its engine's thread, its threads for kernels, its other threads, and the client. Then the median and
the 99th percentile of the times between the events of a stream, in milliseconds. The last line is
JSON. Threads and their times are read from /proc, so they are known on Linux only.
Tested by tests/observe/test_bench_http.py.
"""

from __future__ import annotations

import argparse
import json
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from make_model import write_model
from shapes import SHAPES
from weight_types import Type

from lamella.base.errors import LamellaError
from lamella.kernels.cpu.device import processor_name
from lamella.kernels.host import default_threads
from lamella.model.sampling import Logprobs
from lamella.runtime.engine.job import Job, Result
from lamella.runtime.instance import Instance
from lamella.runtime.open import open_instance
from lamella.runtime.params import GenerationParams, OpenParams, RequestParams

HOST: Final = "127.0.0.1"
N_PROMPT: Final = 16
N_WARM_UP: Final = 1  # runs of each kind
START_S: Final = 120.0
DEFAULT_MODEL: Final = Path("build/models/15m-Q4_0.gguf")
ROLES: Final = ("loop", "engine", "workers", "others")
COLUMNS: Final = (
    *("server", "API", "streams", "tokens/s", "engine alone", "ratio"),
    *(f"{role} us" for role in ROLES),
    *("client us", "gap p50 ms", "p99 ms"),
)


@dataclass(frozen=True, slots=True)
class Api:
    """An API: its path, the last event of its streams, and the fields of a request."""

    path: str
    mark: str
    fields: dict[str, Any]
    n_field: str = "max_tokens"

    def request(self, n: int) -> bytes:
        """A whole request for a stream of `n` tokens."""
        fields = {**self.fields, self.n_field: n, "stream": True, "ignore_eos": True}
        body = json.dumps({"model": "m", **fields})
        head = (
            f"POST {self.path} HTTP/1.1",
            f"Host: {HOST}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            *("", body),
        )
        return "\r\n".join(head).encode()


PROMPT: Final = list(range(300, 300 + N_PROMPT))
MESSAGES: Final[dict[str, Any]] = {"messages": [{"role": "user", "content": "a b c d e f"}]}
APIS: Final = {
    "native": Api("/completion", '"stop_type":"limit"', {"prompt": PROMPT}),
    "completions": Api("/v1/completions", "[DONE]", {"prompt": PROMPT}),
    "chat": Api("/v1/chat/completions", "[DONE]", MESSAGES),
    "messages": Api("/v1/messages", "message_stop", MESSAGES),
    "responses": Api("/v1/responses", '"usage":{', {"input": "a b c d e f"}, "max_output_tokens"),
}


class Counted:
    """A sink that only counts."""

    def __init__(self, n_jobs: int) -> None:
        self._n_left = n_jobs
        self.ended = threading.Event()
        self.error: LamellaError | None = None

    def progress(self, n_processed: int, n_total: int, n_cached: int) -> None:
        pass

    def token(self, token: int, logprobs: Logprobs | None) -> bool:
        return True

    def finished(self, result: Result) -> None:
        self._n_left -= 1
        if self._n_left == 0:
            self.ended.set()

    def failed(self, error: LamellaError) -> None:
        self.error = error
        self.ended.set()


def engine_alone(instance: Instance, n_streams: int, n: int) -> float:
    """Tokens per second of the engine for the jobs of the streams."""
    sink = Counted(n_streams)
    params = RequestParams(generation=GenerationParams(n_predict=n, ignore_eos=True))
    begin = time.perf_counter()
    for _ in range(n_streams):
        instance.engine.submit(Job(prompt=tuple(PROMPT), params=params, sink=sink))
    sink.ended.wait()
    if sink.error is not None:
        raise sink.error
    return n_streams * n / (time.perf_counter() - begin)


class Server:
    """A running server."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], port: int) -> None:
        self.name = name
        self.port = port
        self._process = process

    def wait_until_ready(self) -> None:
        """Wait for the model."""
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            if self._process.poll() is not None:
                raise SystemExit(f"{self.name} ended with status {self._process.returncode}")
            try:
                self._get("/health")
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.05)
            else:
                return
        raise SystemExit(f"{self.name} is not ready after {START_S:g} s")

    def n_predicted(self) -> int:
        """Tokens predicted since the start."""
        for line in self._get("/metrics").splitlines():
            if line.startswith("llamacpp:tokens_predicted_total "):
                return int(float(line.split()[1]))
        raise SystemExit(f"{self.name} has no metric of its tokens")

    def seconds(self) -> dict[str, float]:
        """Processor time of its threads so far, by their role; {} if the system cannot tell."""
        found = dict.fromkeys(ROLES, 0.0)
        pid = self._process.pid
        for task in Path(f"/proc/{pid}/task").glob("*"):
            name = (task / "comm").read_text()
            nanoseconds = int((task / "schedstat").read_text().split()[0])
            found[_role(name, is_main=task.name == str(pid))] += 1e-9 * nanoseconds
        return found if found["loop"] else {}

    def _get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://{HOST}:{self.port}{path}", timeout=START_S) as reply:
            return str(reply.read().decode())


def _role(name: str, *, is_main: bool) -> str:
    if is_main:
        return "loop"
    for role, prefix in (("engine", "lamella-engine"), ("workers", "lamella-cpu")):
        if name.startswith(prefix):
            return role
    return "others"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(
    peer: str, model: Path, n_parallel: int, n_ctx: int, n_threads: int
) -> Iterator[Server]:
    """Run a server: lamella, or llama-server at the path `peer`."""
    port = free_port()
    program = [peer] if peer else [sys.executable, "-m", "lamella", "serve"]
    command = [*program, "-m", str(model), "--host", HOST, "--port", str(port), "--metrics"]
    command += ["-np", str(n_parallel), "-c", str(n_ctx), "-t", str(n_threads)]
    command += ["--chat-template", "chatml"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            server = Server(Path(peer).name or "lamella", process, port)
            server.wait_until_ready()
            yield server
        finally:
            process.terminate()


def client_command(folder: Path, *, compiled: bool) -> list[str]:
    """The command of the client. A C compiler makes it if there is one."""
    compiler = shutil.which("cc") if compiled else None
    source = Path(__file__).with_name("http_client.c")
    if compiler is None:
        return [sys.executable, str(source.with_suffix(".py"))]
    program = folder / "http_client"
    subprocess.run([compiler, "-O2", "-o", str(program), str(source)], check=True)
    return [str(program)]


def stream(
    server: Server, client: Sequence[str], api: Api, n_streams: int, n: int
) -> dict[str, Any]:
    """Stream once. Return what the client found, and processor time per token."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(api.request(n))
        file.flush()
        n_before, before = server.n_predicted(), server.seconds()
        arguments = [HOST, str(server.port), str(n_streams), "1", file.name, api.mark]
        done = subprocess.run([*client, *arguments], stdout=subprocess.PIPE, check=True)
        after, n_tokens = server.seconds(), server.n_predicted() - n_before
    found: dict[str, Any] = json.loads(done.stdout)
    us = {role: 1e6 * (after[role] - before[role]) / n_tokens for role in before}
    us["client"] = 1e6 * found["cpu"] / n_tokens
    return {**found, "tokens": n_tokens, "speed": n_tokens / found["seconds"], "us": us}


def measure(
    server: Server,
    client: Sequence[str],
    instance: Instance,
    names: Sequence[str],
    n_streams: int,
    n: int,
    n_runs: int,
) -> Iterator[dict[str, Any]]:
    """Yield a row for each API. The engine alone and the APIs take turns."""
    rounds = []
    for _ in range(N_WARM_UP + n_runs):
        alone = engine_alone(instance, n_streams, n)
        rounds.append((alone, [stream(server, client, APIS[k], n_streams, n) for k in names]))
    rounds = rounds[N_WARM_UP:]
    for i, name in enumerate(names):
        found = [(alone, streams[i]) for alone, streams in rounds]
        median = statistics.median
        yield {
            "server": server.name,
            "api": name,
            "streams": n_streams,
            "speed": median(each["speed"] for _, each in found),
            "alone": median(alone for alone, _ in found),
            "ratio": median(each["speed"] / alone for alone, each in found),
            "ratios": [each["speed"] / alone for alone, each in found],
            "us": {k: median(each["us"][k] for _, each in found) for k in found[0][1]["us"]},
            "gap_ms": [median(each["gap_ms"][i] for _, each in found) for i in range(2)],
            "first_ms": [median(each["first_ms"][i] for _, each in found) for i in range(2)],
            "events_per_token": median(each["events"] / each["tokens"] for _, each in found),
        }


def _row(found: dict[str, Any]) -> str:
    us = found["us"]
    cells = (
        *(found["server"], found["api"], found["streams"]),
        *(f"{found['speed']:.0f}", f"{found['alone']:.0f}", f"{found['ratio']:.3f}"),
        *(f"{us[role]:.1f}" if role in us else "" for role in (*ROLES, "client")),
        *(f"{ms:.2f}" for ms in found["gap_ms"]),
    )
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("model", type=Path, nargs="?", default=DEFAULT_MODEL, metavar="MODEL")
    add("--streams", default="1,8,32", metavar="A,B", help="numbers of streams (1,8,32)")
    add("--apis", default="native,completions,chat", metavar="A,B", help=f"of {', '.join(APIS)}")
    add("-n", type=int, default=128, help="tokens of a stream (128)")
    add("-r", "--runs", type=int, default=5, help="runs of each kind (5)")
    add("-t", "--threads", type=int, default=default_threads(), metavar="N")
    add("--peer", default="", metavar="PATH", help="measure llama-server instead")
    add("--python", action="store_true", help="the client in Python")
    args = parser.parse_args()
    counts = [int(n) for n in args.streams.split(",")]
    names = args.apis.split(",")
    if unknown := set(names) - APIS.keys():
        parser.error(f"--apis {', '.join(unknown)}: must be of {', '.join(APIS)}")
    if args.model == DEFAULT_MODEL and not args.model.exists():
        args.model.parent.mkdir(parents=True, exist_ok=True)
        write_model(SHAPES["15m"], Type.Q4_0, args.model)
    n_parallel = max(counts)
    n_ctx = n_parallel * (args.n + 64)
    params = {"path": args.model, "n_parallel": n_parallel, "n_ctx": n_ctx}
    rows = []
    with (
        tempfile.TemporaryDirectory() as folder,
        open_instance(
            OpenParams.make({**params, "n_threads": args.threads, "devices": ("none",)})
        ) as instance,
        running(args.peer, args.model, n_parallel, n_ctx, args.threads) as server,
    ):
        client = client_command(Path(folder), compiled=not args.python)
        print(f"{processor_name()}, {args.threads} threads, {args.model.stem}\n")
        print(f"| {' | '.join(COLUMNS)} |\n|{' --- |' * len(COLUMNS)}")
        for n_streams in counts:
            for row in measure(server, client, instance, names, n_streams, args.n, args.runs):
                print(_row(row), flush=True)
                rows.append(row)
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
