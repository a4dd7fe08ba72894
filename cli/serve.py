"""`lamella serve`: serve a model over HTTP, or several. Tested by tests/cli/test_serve.py.

With several models it is a router: see serve_models.py. With --ray, a cluster serves: serve_ray.py.
"""

from __future__ import annotations

import argparse
from typing import Final

from ..base.background import begin
from ..base.crashes import prepare_for_crashes
from ..base.errors import RequestError
from ..base.log import get_logger
from ..cluster.config import ClusterConfig
from ..runtime.instance import EmbeddingInstance, Instance
from ..runtime.params import ModelParams
from ..server.config import ServerConfig
from ..server.progress import LoadProgress
from ..server.router.config import RouterConfig
from ..server.vertex import on_vertex
from .bundles import add_bundle_flags
from .flags import (
    FOR_SERVERS,
    add_flags_of,
    add_model_flags,
    add_options,
    add_request_flags,
    add_template_flags,
    given,
    open_params,
    request_defaults,
)
from .parser import Parser
from .peer_flags import add_peer_flags
from .peer_options import SERVE
from .serve_models import serve_member, serve_models
from .serve_ray import serve_ray
from .start import open_served, warn_of

log = get_logger("server")

N_PLAN_SECONDS: Final = 1.0  # the server listens at the latest so long after loading began


def add_flags(parser: Parser) -> None:
    group = parser.add_argument_group(ServerConfig.title)
    add_flags_of(group, ServerConfig)
    add_flags_of(group, ModelParams, only=FOR_SERVERS)
    add_template_flags(group)
    add_options(parser, RouterConfig)
    add_options(parser, ClusterConfig)
    add_model_flags(parser)
    add_request_flags(parser)
    add_bundle_flags(parser)
    add_peer_flags(parser, SERVE)


def main(args: argparse.Namespace) -> int:
    """Serve until a signal. Return the exit status."""
    prepare_for_crashes()
    # invalid values must be reported before a download
    defaults = request_defaults(args)
    config = on_vertex(ServerConfig.make(given(args, ServerConfig)))
    router = RouterConfig.make(given(args, RouterConfig))
    cluster = ClusterConfig.make(given(args, ClusterConfig))
    if cluster.ray:
        return serve_ray(args, config, router, cluster, defaults)
    if cluster != ClusterConfig():
        raise RequestError("--replicas and --address need --ray")
    if router.has_several:
        return serve_models(args, config, router)
    if router.router_socket:
        return serve_member(args, config, defaults, router.router_socket)
    params = open_params(args)

    progress = LoadProgress()

    def load() -> Instance | EmbeddingInstance:
        model = open_served(params, defaults, progress)
        warn_of(model)
        return model

    loading = begin(load, "lamella-open")
    loading.add_done_callback(lambda _: progress.reading.set())  # also after an error
    # threads that run Python take turns, but weights are read by native code
    progress.reading.wait(N_PLAN_SECONDS)
    from ..server.app import run_server  # noqa: PLC0415 - slow to import: the model loads meanwhile

    return run_server(config, loading.result, progress, load_again=load)
