"""An application on a local Ray cluster, in a process of its own: Ray warns of much.

    with RayWorld({"n_threads": 1}, n_nodes=2) as world:
        world.tell("kill", "replica id")

It has the ingress of `lamella serve --ray`, and that of a config file. Run as a program, it starts
the cluster and obeys lines of JSON.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

N_STORE_BYTES: Final = 80 * 1024**2
N_CPUS: Final = 2  # of a node
N_START_SECONDS: Final = 240.0
# a busy machine needs longer to start what Ray expects within seconds
ENVIRONMENT: Final = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_raylet_start_wait_time_s": "60"}
N_ATTEMPTS: Final = 4  # a raylet ends if a process of its own takes 15 s to start
REPLICA: Final = "x-lamella-replica"


class RayWorld:
    """The application, as a client sees it.

    Attributes:
        port: of the ingress of the command. Requests go there.
        serve_port: of Ray Serve.
    """

    def __init__(self, args: Mapping[str, Any], *, n_nodes: int = 1) -> None:
        self.serve_port, self.port = _free_port(), _free_port()
        self._folder = tempfile.TemporaryDirectory(prefix="ry", ignore_cleanup_errors=True)
        options = {
            "args": args,
            "ports": [self.serve_port, self.port],
            "n_nodes": n_nodes,
            "folder": self._folder.name,
        }
        self._log = (Path(self._folder.name) / "world.log").open("wb")
        command = [sys.executable, "-W", "ignore", __file__, json.dumps(options)]
        environment = {**os.environ, **ENVIRONMENT}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log,
            env=environment, start_new_session=True,
        )  # fmt: skip

    def __enter__(self) -> Self:
        try:
            assert self._answer() == "ready", self.log()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def log(self) -> str:
        """The end of what Ray and its actors have written."""
        return Path(self._log.name).read_text(errors="replace")[-8000:]

    def tell(self, *words: str) -> Any:
        """Give a command, and return the answer."""
        assert self._process.stdin is not None, "there is a pipe"
        self._process.stdin.write(json.dumps(words).encode() + b"\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None, "there is a pipe"
        while line := self._process.stdout.readline():
            if line.startswith(b"> "):
                return json.loads(line[2:])
        raise AssertionError(f"the cluster has ended: {self.log()}")

    def close(self) -> None:
        """End the cluster."""
        with suppress(OSError, AssertionError):
            self.tell("end")
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()
        self._folder.cleanup()

    # --- requests ---

    def _connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)

    @contextmanager
    def through_serve(self) -> Iterator[None]:
        """Within the block, requests go to Ray Serve's port."""
        self.port, self.serve_port = self.serve_port, self.port
        yield
        self.port, self.serve_port = self.serve_port, self.port

    def headers(self, path: str) -> list[tuple[str, str]]:
        """The headers of a reply."""
        with closing(self._connect()) as one:
            one.request("GET", path)
            return one.getresponse().getheaders()

    def ask(self, path: str, body: Any = None, method: str = "") -> tuple[int, Any, str]:
        """The status, the JSON and the replica of a reply."""
        with closing(self._connect()) as one:
            raw = None if body is None else json.dumps(body)
            one.request(method or ("GET" if body is None else "POST"), path, raw)
            reply = one.getresponse()
            return reply.status, json.loads(reply.read() or b"null"), reply.headers.get(REPLICA, "")

    def text(self, path: str) -> str:
        """The body of a reply."""
        with closing(self._connect()) as one:
            one.request("GET", path)
            return one.getresponse().read().decode()

    def events(self, path: str, body: Any) -> Generator[tuple[str, Any], None, None]:
        """The replica and each event of a stream."""
        with closing(self._connect()) as one:
            one.request("POST", path, json.dumps({**body, "stream": True}))
            reply = one.getresponse()
            replica = reply.headers.get(REPLICA, "")
            for line in reply:
                if line.startswith(b"data: ") and line.strip() != b"data: [DONE]":
                    yield replica, json.loads(line[6:])

    def replicas(self, n: int, n_seconds: float, *, lost: str = "") -> set[str]:
        """The replicas, once there are `n` without the lost one."""
        end, found = time.monotonic() + n_seconds, set[str]()
        while len(found) != n or lost in found:
            assert time.monotonic() < end, f"{found} after {n_seconds} s: {self.log()}"
            found = set(self.tell("replicas"))
            time.sleep(0.1)
        return found


def _free_port() -> int:
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


# --- the program ---


def _say(answer: Any) -> None:
    sys.stdout.write(f"> {json.dumps(answer)}\n")
    sys.stdout.flush()


def _pid_and_node(replica: str) -> tuple[int, str]:
    """Where a replica runs. Asks it, so it must not be stopped."""
    import ray  # noqa: PLC0415

    for one in ray.util.list_named_actors(all_namespaces=True):
        if one["name"].endswith(replica) and replica not in PLACES:
            found = ray.get(ray.get_actor(**one).__ray_call__.remote(_where))
            PLACES[replica] = found
    return PLACES[replica]


def _where(_: Any) -> tuple[int, str]:
    import ray  # noqa: PLC0415

    return os.getpid(), ray.get_runtime_context().get_node_id()


def _actor(replica: str) -> Any:
    import ray  # noqa: PLC0415

    actors = ray.util.list_named_actors(all_namespaces=True)
    return next(ray.get_actor(**one) for one in actors if one["name"].endswith(replica))


def _exhaust(_: Any) -> None:
    """Use up all memory that this process may have."""
    import resource  # noqa: PLC0415

    with open("/proc/self/statm") as file:
        n_bytes = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (n_bytes + 8 * 1024**2,) * 2)
    kept = []
    while True:
        with suppress(MemoryError):
            kept.append(bytearray(64 * 1024))
        time.sleep(0.0001)


PLACES: Final[dict[str, tuple[int, str]]] = {}


def _init(**options: Any) -> None:
    """Start Ray on this machine."""
    import ray  # noqa: PLC0415

    for n_left in reversed(range(N_ATTEMPTS)):
        try:
            ray.init("local", **options)
            return
        except Exception:
            if not n_left:
                raise
            ray.shutdown()


def _front(args: Mapping[str, Any], port: int) -> Any:
    """The ingress of the command, in a thread."""
    from ray import serve  # noqa: PLC0415

    from lamella.base.background import begin  # noqa: PLC0415
    from lamella.cluster.application import model_of  # noqa: PLC0415
    from lamella.cluster.deployments import HandleTarget  # noqa: PLC0415
    from lamella.cluster.http import HttpServer  # noqa: PLC0415
    from lamella.cluster.ingress import Ingress  # noqa: PLC0415
    from lamella.server.listening import bound  # noqa: PLC0415

    served = model_of(args).served
    handle = serve.get_deployment_handle(served.name, "default")  # Serve's name of the application
    config = served.config.change(port=port)
    ready = threading.Event()
    front = HttpServer(Ingress([HandleTarget(served, handle)], config), config, ready.set)
    begin(partial(front.serve_on, bound(config)), "front")
    assert ready.wait(60), "it listens"
    return front


def _obey(cluster: Any, workers: Sequence[Any]) -> None:
    """Obey until "end"."""
    import ray  # noqa: PLC0415
    from ray import serve  # noqa: PLC0415

    from lamella.cluster import app  # noqa: PLC0415

    for line in sys.stdin:
        command, *words = json.loads(line)
        if command == "end":
            break
        if command == "replicas":
            actors = ray.util.list_named_actors(all_namespaces=True)
            names = [one["name"] for one in actors if "SERVE_REPLICA::" in one["name"]]
            _say([name.rpartition("#")[2] for name in names if "#ingress#" not in name])
        elif command == "kill":
            actors = ray.util.list_named_actors(all_namespaces=True)
            for one in actors:
                if one["name"].endswith(words[0]):
                    ray.kill(ray.get_actor(**one), no_restart=False)
            _say("killed")
        elif command == "remove a node of":
            assert cluster is not None, "there is one node"
            node_id = _pid_and_node(words[0])[1]
            worker = next(one for one in workers if one.node_id == node_id)
            cluster.remove_node(worker, allow_graceful=False)
            _say("removed")
        elif command == "deploy":
            serve.run(app(json.loads(words[0])))
            _say("deployed")
        elif command == "exhaust":
            _actor(words[0]).__ray_call__.remote(_exhaust)
            _say("exhausted")
        elif command in ("stop", "continue"):
            number = signal.SIGSTOP if command == "stop" else signal.SIGCONT
            os.kill(_pid_and_node(words[0])[0], number)
            _say(command)


def main() -> None:
    """Start the cluster, and obey until "end"."""
    import ray  # noqa: PLC0415 - may not be installed
    from ray import serve  # noqa: PLC0415
    from ray.cluster_utils import Cluster  # noqa: PLC0415

    from lamella.cluster import app  # noqa: PLC0415 - needs Ray

    options = json.loads(sys.argv[1])
    node = {"num_cpus": N_CPUS, "object_store_memory": N_STORE_BYTES}
    cluster, workers = None, []
    folder = options["folder"]
    if options["n_nodes"] > 1:
        # the controller and the ingress stay on the head
        head = {**node, "temp_dir": folder, "include_dashboard": False}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        workers = [cluster.add_node(**node) for _ in range(options["n_nodes"] - 1)]
        ray.init(address=cluster.address, log_to_driver=True)
    else:
        _init(**node, include_dashboard=False, _temp_dir=folder)
    serve_port, port = options["ports"]
    serve.start(http_options={"port": serve_port})
    serve.run(app(options["args"]))
    front = _front(options["args"], port)
    _say("ready")
    _obey(cluster, workers)
    front.stop()
    ray.shutdown()  # Serve's actors end with the cluster
    if cluster is not None:
        cluster.shutdown()
    _say("ended")


if __name__ == "__main__":
    main()
