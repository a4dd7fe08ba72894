"""`lamella serve --ray`: replicas of a model on the machines of a Ray cluster.

Serves until a signal. The cluster is this machine alone, or a running one (`--address`).
Tested by tests/cluster/test_ray_command.py.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ..base.errors import RequestError
from ..base.log import get_logger
from ..cluster.config import ClusterConfig
from ..cluster.served import Served
from ..kernels.host import usable_cpus
from ..model.shipped import shipped_model
from ..runtime.params import OpenParams
from ..server.config import SOCKET_SUFFIX, ServerConfig
from ..server.router.config import RouterConfig
from .download import model_name
from .flags import given

log = get_logger("server")

INSTALL: Final = "pip install 'lamella[ray]'"


def serve_ray(
    args: argparse.Namespace,
    config: ServerConfig,
    router: RouterConfig,
    cluster: ClusterConfig,
    defaults: Mapping[str, Any],
) -> int:
    """Serve replicas of a model until a signal. Return the exit status.

    Raises:
        RequestError: an option that has no meaning here, Ray is not installed, or the port is in
            use.
        LamellaError: the model cannot be served.
    """
    served = _served(args, config, router, cluster, defaults)
    if importlib.util.find_spec("ray") is None:
        raise RequestError(f"--ray needs packages that are not installed: {INSTALL}")
    served.opened_params(header_only=True)  # no such model: an error before Ray starts
    from ..server.listening import bound, tls_context  # noqa: PLC0415 - slow, and not on all systems

    tls_context(config)  # invalid files: an error before Ray starts
    with bound(config) as listener:
        from ..cluster.service import run_service  # noqa: PLC0415 - needs Ray, is slow to import

        run_service(served, cluster, listener)
    return 0


def _served(
    args: argparse.Namespace,
    config: ServerConfig,
    router: RouterConfig,
    cluster: ClusterConfig,
    defaults: Mapping[str, Any],
) -> Served:
    """The model to serve. Raises RequestError."""
    if router.has_several:
        raise RequestError(
            "--ray serves one model: for several, see the config file in docs/cluster.md"
        )
    if len(config.hosts) > 1 or config.hosts[0].endswith(SOCKET_SUFFIX):
        raise RequestError(f"--host is {config.host}: with --ray it must be one address")
    source = model_name(args) or ""
    path = Path(source or shipped_model())
    if source and path.exists():
        source = str(path.resolve())
    params = OpenParams.make({**given(args, OpenParams), "path": ""})
    if params.placement.n_threads is None and not cluster.address:
        # the replicas share this machine
        n = max(1, usable_cpus() // cluster.replicas.high)
        params = params.change(n_threads=n)
    name = params.model.alias or path.stem
    return Served(
        name=name,
        source=source,
        params=params,
        defaults=defaults,
        config=config,
        offline=args.offline,
    )
