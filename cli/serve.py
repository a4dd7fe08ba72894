"""`lamella serve`: answer over HTTP. Tested by tests/cli/test_serve.py."""

from __future__ import annotations

import argparse

from ..model.sampling import SamplingParams
from ..runtime.instance import Instance
from ..server.app import run_server
from ..server.state import ServerConfig, ServerModel
from .flags import (
    add_model_flags,
    add_sampling_flags,
    add_template_flags,
    instance_params,
    names,
    sampling_given,
)
from .start import open_with_progress


def add_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("server")
    add = group.add_argument
    add("--host", default="127.0.0.1", metavar="ADDR", help="address to listen on (127.0.0.1)")
    add("--port", type=int, default=8080, metavar="N", help="port; 0 takes a free one (8080)")
    add("-a", "--alias", metavar="NAME", help="the model's name for clients (the file's)")
    add(
        "--api-key",
        type=names,
        default=(),
        metavar="KEY,...",
        help="keys, one of which every request must bring",
    )
    add("--metrics", action="store_true", help="answer GET /metrics, for Prometheus")
    add_template_flags(group)
    add_model_flags(parser)
    add_sampling_flags(parser)


def main(args: argparse.Namespace) -> int:
    """Serve until told to stop; the exit status."""
    given = sampling_given(args)  # first: a wrong value must not be told after a download
    params = instance_params(args)

    def load() -> ServerModel:
        instance = open_with_progress(params)
        return server_model(instance, args.alias or instance.alias, instance.sampling(given))

    config = ServerConfig(
        host=args.host, port=args.port, api_keys=args.api_key, metrics=args.metrics
    )
    return run_server(config, load)


def server_model(instance: Instance, alias: str, sampling: SamplingParams) -> ServerModel:
    """What the routes need to know of an instance."""
    plan = instance.plan
    return ServerModel(
        engine=instance.engine,
        vocab=instance.vocab,
        chat=instance.chat,
        alias=alias,
        path=str(instance.model.path),
        n_ctx=instance.n_ctx,
        n_parallel=instance.params.n_parallel,
        meta=instance.meta,
        sampling=sampling,
        displaced={"decode": plan.decode.displaced, "prefill": plan.prefill.displaced},
        buffer_bytes=instance.context.buffer_bytes,
    )
