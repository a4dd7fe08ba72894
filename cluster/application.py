"""The application for Ray Serve: the ingress, and a deployment of each model.

    from lamella.cluster import app
    serve.run(app({"model": "model.gguf", "replicas": "2..8", "n_ctx": 8192}))

In a config file of Serve, `import_path: lamella.cluster:app` and `args` are the same. Options have
the names that `lamella.load`, requests and config files have. Several models are a list `models`.
Tested by tests/cluster/test_ray_command.py and test_ray.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

import ray
from ray import serve
from ray.serve import Application

from ..base.errors import RequestError
from ..base.log import get_logger
from ..base.options import declarations, refused
from ..kernels.host import default_threads
from ..model.shipped import shipped_model
from ..runtime.fit import plan_model
from ..runtime.params import OpenParams, RequestParams
from ..server.config import ServerConfig
from .config import ClusterConfig, Replicas
from .deployments import IngressActor, ReplicaActor
from .resources import Needs, check_fits, check_together, needs_of
from .served import Served

log = get_logger("cluster")

ROUTER: Final = "lamella.cluster.router:PrefixRouter"
POLICY: Final = "lamella.cluster.autoscaling:by_load"
OWN: Final = ("model", "name", "replicas", "ray_actor_options")
RESOURCES: Final = frozenset(("num_cpus", "memory", "num_gpus"))
HEAD: Final = "node:__internal_head__"  # a resource of the head node that Ray defines
NEWS_S: Final = 1.0
HEALTH_S: Final = 5.0
HEALTH_TIMEOUT_S: Final = 10.0
N_ONGOING: Final = 4096  # requests of a replica; its own limits are lower
N_ONGOING_INGRESS: Final = 10_000
ENDS_S: Final = 5.0  # after the time of --drain, for the end of a replica


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReplicas:
    """A model and its replicas. `actor_options` replace what its plan says."""

    served: Served
    replicas: Replicas = Replicas(1, 1)
    actor_options: Mapping[str, Any] = field(default_factory=dict)


def app(args: Mapping[str, Any]) -> Application:
    """The application of some arguments, see above.

    Raises:
        RequestError: an unknown argument, or an invalid value.
        ModelFileError, DownloadError: there is no such model.
        DoesNotFitError: no node has the memory of a replica.
    """
    common = dict(args)
    models = common.pop("models", None)
    if models is None:
        return application([model_of(common)])
    if not isinstance(models, Sequence) or isinstance(models, str) or not models:
        raise RequestError("models must be a list with the options of each model")
    for i, each in enumerate(models):
        if not isinstance(each, Mapping):
            raise refused(f"models[{i}]", each, 'the options of a model, as {"model": "a.gguf"}')
    return application([model_of({**common, **each}) for each in models])


def model_of(args: Mapping[str, Any]) -> ModelReplicas:
    """A model from the options of its own."""
    groups = (OpenParams, RequestParams, ServerConfig)
    known = [set(declarations(group)) for group in groups]
    names = set(OWN).union(*known)
    for name in args:
        if name not in names:
            close = get_close_matches(str(name), names, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise RequestError(f"unknown argument {name!r}{hint}")
    params, defaults, config = ({k: v for k, v in args.items() if k in each} for each in known)
    defaults.pop("lora", None)  # the adapters' files, not a request's scales
    RequestParams.make(defaults)
    source = str(args.get("model") or "")
    name = str(args.get("name") or params.get("alias") or Path(source or shipped_model()).stem)
    served = Served(
        name=name,
        source=source,
        params=OpenParams.make(params),
        defaults=defaults,
        config=ServerConfig.make(config),
    )
    replicas = ClusterConfig.make({"replicas": args.get("replicas", 1)}).replicas
    options = _actor_options(args.get("ray_actor_options") or {})
    return ModelReplicas(served=served, replicas=replicas, actor_options=options)


def _actor_options(given: object) -> Mapping[str, Any]:
    """Options of Ray. Raises RequestError: it is no object, or a resource is no number."""
    if not isinstance(given, Mapping):
        raise refused("ray_actor_options", given, "an object of options")
    for name in RESOURCES & given.keys():
        value = given[name]
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
            raise refused(f"ray_actor_options.{name}", value, "a number that is at least 0")
    return given


def application(models: Sequence[ModelReplicas]) -> Application:
    """The application of some models. Raises as `app`."""
    names = [model.served.name for model in models]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise RequestError(f"two models have the name {min(twice)}: give each a name of its own")
    replicas = deployments(models)
    ingress = serve.deployment(
        IngressActor,
        name="ingress",
        num_replicas=1,
        max_ongoing_requests=N_ONGOING_INGRESS,
        # with the proxy, as another machine would be one more to lose
        ray_actor_options={"num_cpus": 0, "resources": {HEAD: 0.001}},
        health_check_period_s=HEALTH_S,
        health_check_timeout_s=HEALTH_TIMEOUT_S,
    )
    return ingress.bind([model.served for model in models], *replicas)


def deployments(models: Sequence[ModelReplicas]) -> list[Application]:
    """The replicas of each model. Raises as `app`."""
    found = ray.nodes() if ray.is_initialized() else []
    nodes = [node["Resources"] for node in found if node["Alive"]]
    wanted = [(model.served.name, _needs(model, nodes), model.replicas.low) for model in models]
    check_together(wanted, nodes)
    return [_deployment(model, needs) for model, (_, needs, _) in zip(models, wanted, strict=True)]


def _deployment(model: ModelReplicas, needs: Needs) -> Application:
    served, replicas = model.served, model.replicas
    what = "replica" if replicas.high == 1 else "replicas"
    log.info("%s: %s %s, each with %s", served.name, replicas, what, needs)
    fixed: dict[str, Any] = {"num_replicas": replicas.low}
    if replicas.high > replicas.low:
        fixed = {
            "autoscaling_config": {
                "min_replicas": replicas.low,
                "max_replicas": replicas.high,
                "target_ongoing_requests": served.params.context.n_parallel,
                "policy": {"policy_function": POLICY},
            }
        }
    deployment = serve.deployment(
        ReplicaActor,
        name=served.name.replace("#", "_"),  # Ray has this character for itself
        ray_actor_options={**needs.actor_options, **model.actor_options},
        max_ongoing_requests=N_ONGOING,
        health_check_period_s=HEALTH_S,
        health_check_timeout_s=HEALTH_TIMEOUT_S + served.config.step_timeout,
        graceful_shutdown_timeout_s=served.config.drain + ENDS_S,
        graceful_shutdown_wait_loop_s=0.5,
        request_router_config={
            "request_router_class": ROUTER,
            "request_routing_stats_period_s": NEWS_S,
        },
        **fixed,
    )
    return deployment.bind(served)


def _needs(model: ModelReplicas, nodes: Sequence[Mapping[str, float]]) -> Needs:
    """What a replica takes, after a check that a node has it."""
    n_threads = model.served.params.placement.n_threads or default_threads()
    needs = needs_of(plan_model(model.served.opened_params(header_only=True)), n_threads)
    given = model.actor_options
    needs = Needs(
        given.get("num_cpus", needs.n_cpus),
        given.get("memory", needs.n_bytes),
        given.get("num_gpus", needs.n_gpus),
    )
    check_fits(model.served.name, needs, nodes)
    return needs
