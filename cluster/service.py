"""Runs the application on a Ray cluster until it shall stop.

Tested by tests/cluster/test_ray_command.py.
"""

from __future__ import annotations

import logging
import signal
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import ray
from ray import serve
from ray.serve.config import ProxyLocation
from ray.serve.handle import DeploymentHandle
from ray.serve.schema import LoggingConfig

from ..base.errors import RequestError, UnavailableError
from ..base.log import get_logger
from ..kernels.host import usable_cpus
from ..server.listening import urls
from .application import ModelReplicas, deployments
from .config import ClusterConfig
from .deployments import HandleTarget
from .http import HttpServer
from .ingress import Ingress
from .served import Served

log = get_logger("server")

RUNNING: Final = "RUNNING"  # states of an application of Serve
FAILED: Final = "DEPLOY_FAILED"
POLL_S: Final = 0.1
QUIET: Final = LoggingConfig(log_level="WARNING", enable_access_log=False)  # Serve's log
SLOW_S: Final = 60.0  # a start that takes longer gets a hint
N_STORE_BYTES: Final = 256 * 1024**2  # of Ray's object store on this machine: replies pass it


def run_service(served: Served, cluster: ClusterConfig, listener: socket.socket) -> None:
    """Serve a model on a bound socket until SIGTERM or SIGINT.

    Raises:
        RequestError: there is no such cluster. UnavailableError: no replica could be started.
        LamellaError: the model cannot be served.
    """
    _join(served, cluster)
    # on a cluster that stays, a command replaces what a killed one has left
    name = f"lamella-{socket.gethostname()}-{listener.getsockname()[1]}"
    stop = threading.Event()
    servers = list[HttpServer]()

    def end(*_: object) -> None:
        stop.set()
        for server in servers:
            server.stop()

    for number in (signal.SIGTERM, signal.SIGINT):  # after Ray has set its own handlers
        signal.signal(number, end)
    try:
        handle = _start(name, ModelReplicas(served=served, replicas=cluster.replicas))
        if wait_running(partial(_status, name), stop):
            ingress = Ingress([HandleTarget(served, handle)], served.config)
            found = " and ".join(urls([listener.getsockname()], served.config))
            announce = partial(log.info, "listening on %s", found)
            servers.append(HttpServer(ingress, served.config, announce))
            if not stop.is_set():
                servers[0].serve_on(listener)
        log.info("stopping")
    finally:
        if cluster.address:
            serve.delete(name)
        else:
            serve.shutdown()
        ray.shutdown()


def _start(name: str, model: ModelReplicas) -> DeploymentHandle[Any]:
    """Begin to start the replicas. Return a handle of them. Raises as `run_service`."""
    try:
        (replicas,) = deployments([model])
        serve.start(proxy_location=ProxyLocation.Disabled, logging_config=QUIET)
        target = serve.RunTarget(replicas, name, None, QUIET)
        (handle,) = serve.run_many([target], wait_for_applications_running=False)
    except RuntimeError as error:
        raise UnavailableError(f"Ray Serve cannot start: {_last_line(error)}") from None
    return handle


def _status(name: str) -> tuple[str, str]:
    """The state of an application, and what Serve says about it."""
    found = serve.status().applications[name]
    return found.status, found.message


def wait_running(status: Callable[[], tuple[str, str]], stop: threading.Event) -> bool:
    """Wait until the replicas run; return False if `stop` comes before.

    Raises:
        UnavailableError: Serve has given up.
    """
    began = time.monotonic()
    has_told = False
    while not stop.wait(POLL_S):
        state, message = status()
        if state == RUNNING:
            return True
        if state == FAILED:  # after some attempts
            raise UnavailableError(f"no replica could be started: {message}")
        if not has_told and time.monotonic() - began > SLOW_S:
            has_told = True
            log.warning(
                "not all replicas run after %.0f s: their model is large, or the cluster lacks "
                "memory or processors for them",
                SLOW_S,
            )
    return False


def _last_line(error: Exception) -> str:
    """The cause in an error of Ray, which has the text of a whole traceback."""
    return str(error).strip().splitlines()[-1]


def _join(served: Served, cluster: ClusterConfig) -> None:
    """Join the cluster, or start one. Raises RequestError."""
    options: dict[str, Any] = {"logging_level": logging.WARNING}
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    if cluster.address:
        options["address"] = cluster.address
    else:
        options |= {"address": "local", "include_dashboard": False}
        options["object_store_memory"] = N_STORE_BYTES
        # the replicas may share processors, if they shall
        n_threads = served.params.placement.n_threads or 1
        options["num_cpus"] = max(usable_cpus(), cluster.replicas.high * n_threads)
    try:
        ray.init(**options)
    except (ConnectionError, ValueError) as error:
        raise RequestError(f"--address {cluster.address}: {error}") from None
    except Exception as error:  # Ray has no type of its own for it
        raise UnavailableError(f"Ray cannot start: {_last_line(error)}") from None
