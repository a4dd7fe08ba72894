"""The server's metrics for Prometheus: llama-server's, with its names, and Lamella's own.

    metrics = Metrics(state)
    metrics.render()    # the text of GET /metrics

Values are read at each request; nothing is counted here. prometheus-client writes the text: it is
slow to import, so it is imported at the first request. Tested by tests/server/test_metrics.py.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Final, NamedTuple

from ..runtime.embedder import Embedder
from ..runtime.engine.counters import Counters
from ..runtime.engine.engine import Engine
from ..runtime.instance import Instance
from .key_limits import KeyUse
from .state import ServedModel, ServerState

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Metric(NamedTuple):
    """A metric: its name, help and type, the names of its labels, and (labels, value) pairs."""

    name: str
    text: str
    type: str
    labels: Sequence[str]
    samples: Sequence[tuple[Sequence[str], float]]


def counter(name: str, text: str, value: float) -> Metric:
    return Metric(name, text, "counter", (), [((), value)])


def gauge(name: str, text: str, value: float) -> Metric:
    return Metric(name, text, "gauge", (), [((), value)])


class Metrics:
    """The metrics of one server."""

    def __init__(self, state: ServerState) -> None:
        self.t_start = time.time()
        self._state = state
        self._before = Counters()  # at the last request

    def render(self) -> bytes:
        """Prometheus' text format, 0.0.4. Rates are averages since the last call."""
        return _written(self._collected())

    def _collected(self) -> Iterator[Metric]:
        model = self._state.model
        if model is not None:
            now = replace(model.worker.counters)
            yield from _totals(now)
            yield from _rates(now, self._before)
            yield from _requests(model.worker, now)
            yield from _graphs(model)
            if isinstance(model, Instance):
                yield from _pages(model)
                yield from _texts(now)
            yield _buffers(model.context.buffer_bytes())
            yield from _keys(self._state.key_limits.uses)
            self._before = now


def _written(metrics: Iterator[Metric]) -> bytes:
    """The text of metrics."""
    from prometheus_client import CollectorRegistry, generate_latest  # noqa: PLC0415 - slow
    from prometheus_client.core import (  # noqa: PLC0415
        CounterMetricFamily,
        GaugeMetricFamily,
    )
    from prometheus_client.registry import Collector  # noqa: PLC0415

    families: list[CounterMetricFamily | GaugeMetricFamily] = []
    for one in metrics:
        kind = CounterMetricFamily if one.type == "counter" else GaugeMetricFamily
        family = kind(one.name, one.text, labels=one.labels)
        for labels, value in one.samples:
            family.add_metric(labels, value)
        families.append(family)

    class Collected(Collector):
        def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
            return iter(families)

    registry = CollectorRegistry()
    registry.register(Collected())
    return generate_latest(registry)


# --- llama-server's (tools/server/server-context.cpp, get_metrics) ---


def _totals(now: Counters) -> Iterator[Metric]:
    for name, text, value in (
        ("prompt_tokens", "Number of prompt tokens processed.", now.n_prompt),
        ("prompt_tokens_cached", "Number of prompt tokens taken from the cache.", now.n_cached),
        ("prompt_seconds", "Prompt process time", now.prompt_s),
        ("tokens_predicted", "Number of generation tokens processed.", now.n_predicted),
        ("tokens_predicted_seconds", "Predict process time", now.predicted_s),
        ("n_decode", "Total number of steps of the engine", now.n_steps),
    ):
        yield counter(f"llamacpp:{name}", text, value)


def _rates(now: Counters, before: Counters) -> Iterator[Metric]:
    n_prompt, prompt_s = now.n_prompt - before.n_prompt, now.prompt_s - before.prompt_s
    n_predicted = now.n_predicted - before.n_predicted
    predicted_s = now.predicted_s - before.predicted_s
    for name, text, value in (
        (
            "prompt_tokens_seconds",
            "Average prompt throughput in tokens/s.",
            _ratio(n_prompt, prompt_s),
        ),
        (
            "predicted_tokens_seconds",
            "Average generation throughput in tokens/s.",
            _ratio(n_predicted, predicted_s),
        ),
    ):
        yield gauge(f"llamacpp:{name}", text, value)


def _requests(worker: Engine | Embedder, now: Counters) -> Iterator[Metric]:
    for name, text, value in (
        ("requests_processing", "Number of requests processing.", worker.n_running),
        ("requests_deferred", "Number of requests deferred.", worker.n_waiting),
        ("n_tokens_max", "Largest observed n_tokens.", now.n_tokens_max),
        (
            "n_busy_slots_per_decode",
            "Average number of requests in a step of the engine",
            _ratio(now.n_busy, now.n_steps),
        ),
    ):
        yield gauge(f"llamacpp:{name}", text, value)


# --- Lamella's own ---


def _graphs(model: ServedModel) -> Iterator[Metric]:
    context = model.context
    yield counter(
        "lamella_graphs_built", "Ubatches that needed a new graph", context.n_graphs_built
    )
    yield counter("lamella_graphs_reused", "Ubatches that reused a graph", context.n_reused)
    yield Metric(
        "lamella_displaced_nodes",
        "Nodes of a graph that run on another device than their layer",
        "gauge",
        ("op", "device", "wanted", "cause", "graph"),
        [
            ((*labels, graph), n)
            for graph, nodes in model.displaced.items()
            for labels, n in Counter((d.op, d.device, d.wanted, d.cause) for d in nodes).items()
        ],
    )


def _pages(model: Instance) -> Iterator[Metric]:
    groups = model.context.groups
    yield Metric(
        "lamella_kv_pages_free",
        "Pages that no request uses, by group of layers; they may hold cached prefixes",
        "gauge",
        ("group",),
        [((group.name,), group.pool.n_free) for group in groups],
    )
    yield Metric(
        "lamella_kv_pages",
        "Pages of keys and values, by group of layers",
        "gauge",
        ("group",),
        [((group.name,), group.pool.n_pages) for group in groups],
    )


def _texts(now: Counters) -> Iterator[Metric]:
    for name, text, value in (
        ("reasoning_tokens", "Generation tokens of reasoning", now.n_reasoning),
        ("constrained_requests", "Ended requests with a grammar or a schema", now.n_constrained),
        ("masks", "Masks of the tokens that a grammar allows", now.n_masks),
        ("mask_seconds", "Time for masks, most of it beside the model's steps", now.mask_s),
        ("mask_wait_seconds", "Time that steps waited for masks", now.mask_wait_s),
    ):
        yield counter(f"lamella_{name}", text, value)


def _keys(uses: Mapping[str, KeyUse]) -> Iterator[Metric]:
    for name, text, kind, value in (
        ("requests", "Requests of an API key", "counter", attrgetter("n_requests")),
        ("refused", "Requests beyond the limits of an API key", "counter", attrgetter("n_refused")),
        ("prompt_tokens", "Prompt tokens of an API key", "counter", attrgetter("n_prompt")),
        (
            "predicted_tokens",
            "Generation tokens of an API key",
            "counter",
            attrgetter("n_predicted"),
        ),
        ("running", "Running requests of an API key", "gauge", attrgetter("n_running")),
    ):
        samples = [((key,), value(use)) for key, use in uses.items()]
        yield Metric(f"lamella_key_{name}", text, kind, ("key",), samples)


def _buffers(sizes: Mapping[tuple[str, str], int]) -> Metric:
    return Metric(
        "lamella_buffer_bytes",
        "Bytes allocated, by buffer type and usage",
        "gauge",
        ("buffer_type", "usage"),
        list(sizes.items()),
    )


def _ratio(a: float, b: float) -> float:
    return a / b if b > 0 else 0.0
