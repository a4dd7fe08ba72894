"""The server's metrics for Prometheus: llama-server's, with its names, and Lamella's own.

    metrics = Metrics(state)
    metrics.render()    # the text of GET /metrics

Values are read at each request; nothing is counted here. prometheus-client writes the text: it is
slow to import, so it is imported at the first request. Tested by tests/server/test_metrics.py.
"""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from ..model.page_files import FileCounts
from ..model.page_store import PageStore
from ..runtime.embedder import Embedder
from ..runtime.engine.counters import Counters
from ..runtime.engine.engine import Engine
from ..runtime.engine.histogram import Histogram
from ..runtime.instance import Instance
from .key_limits import KeyUse
from .request_counts import RequestCounts
from .state import ServedModel, ServerState

if TYPE_CHECKING:
    from prometheus_client import Metric as Family

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_OF_PEER: Final = re.compile(rb"^(llamacpp:\w+) (\S+)$", re.MULTILINE)


class Metric(NamedTuple):
    """A metric: its name, help and type, the names of its labels, and (labels, value) pairs."""

    name: str
    text: str
    type: str
    labels: Sequence[str]
    samples: Sequence[tuple[Sequence[str], float]]


class Distribution(NamedTuple):
    """A histogram: its name and help."""

    name: str
    text: str
    histogram: Histogram


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
        self._model: ServedModel | None = None  # these are of; a server may open its model again

    def render(self) -> bytes:
        """Prometheus' text format, 0.0.4. Rates are averages since the last call."""
        return _written(self._collected())

    def _collected(self) -> Iterator[Metric | Distribution]:
        model = self._state.model
        if model is not None:
            if model is not self._model:
                self._model, self._before = model, Counters()
            now = replace(model.worker.counters)
            yield from _totals(now)
            yield from _rates(now, self._before)
            yield from _requests(model.worker, now)
            yield from _graphs(model)
            if isinstance(model, Instance):
                yield from _pages(model)
                yield from _cache(model.engine.store)
                yield from _texts(now)
                yield _drafts(now, self._before)
            yield _buffers(model.buffer_bytes())
            yield from _keys(self._state.key_limits.uses)
            yield from _health(model.worker, self._state)
            yield from _waits(now)
            self._before = now
        yield from _ended(self._state.counts)


def router_metrics(state: ServerState, own: Iterable[Metric]) -> bytes:
    """The text of a router's metrics: `own`, its API keys and its ended requests."""
    return _written([*own, *_keys(state.key_limits.uses), *_ended(state.counts)])


def _written(metrics: Iterable[Metric | Distribution]) -> bytes:
    """The text of metrics."""
    from prometheus_client import CollectorRegistry, generate_latest  # noqa: PLC0415 - slow
    from prometheus_client.registry import Collector  # noqa: PLC0415

    families = [_family(one) for one in metrics]

    class Collected(Collector):
        def collect(self) -> Iterator[Family]:
            return iter(families)

    registry = CollectorRegistry()
    registry.register(Collected())
    return _OF_PEER.sub(_plain, generate_latest(registry))


def _plain(line: re.Match[bytes]) -> bytes:
    """A line with a whole number as llama-server writes it, without `.0`: shells compare them."""
    number = float(line[2])
    return b"%b %d" % (line[1], number) if number.is_integer() else line[0]


def _family(one: Metric | Distribution) -> Family:
    """A metric as prometheus-client has it."""
    from prometheus_client.core import (  # noqa: PLC0415
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )

    if isinstance(one, Distribution):
        buckets = [
            ("+Inf" if bound == math.inf else str(bound), n) for bound, n in one.histogram.buckets()
        ]
        return HistogramMetricFamily(one.name, one.text, buckets, one.histogram.sum)
    kind = CounterMetricFamily if one.type == "counter" else GaugeMetricFamily
    family = kind(one.name, one.text, labels=one.labels)
    for labels, value in one.samples:
        family.add_metric(labels, value)
    return family


# --- llama-server's (tools/server/server-context.cpp, get_metrics) ---


def _totals(now: Counters) -> Iterator[Metric]:
    for name, text, value in (
        ("prompt_tokens", "Number of prompt tokens processed.", now.n_prompt),
        ("prompt_tokens_cached", "Number of prompt tokens taken from the cache.", now.n_cached),
        ("prompt_seconds", "Prompt process time", now.prompt_s),
        ("tokens_predicted", "Number of generation tokens processed.", now.n_predicted),
        ("tokens_predicted_seconds", "Predict process time", now.predicted_s),
        ("n_decode", "Total number of steps of the engine", now.n_steps),
        ("spec_decode_num_draft_tokens", "Guessed tokens that were checked", now.n_drafted),
        ("spec_decode_num_accepted_tokens", "Guessed tokens that came true", now.n_accepted),
        ("spec_decode_num_drafts", "Drafts that were checked", now.n_drafts),
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
    groups = model.context.all_groups
    yield Metric(
        "lamella_kv_pages_free",
        "Pages or slots that no request uses, by group of layers; they may hold cached prefixes",
        "gauge",
        ("group",),
        [((group.name,), group.pool.n_free) for group in groups],
    )
    yield Metric(
        "lamella_kv_pages",
        "Pages of keys and values, or slots of states, by group of layers",
        "gauge",
        ("group",),
        [((group.name,), group.pool.n_pages) for group in groups],
    )


def _cache(store: PageStore | None) -> Iterator[Metric]:
    if store is None:
        return
    counts, files = store.counts, store.files
    on_disk = FileCounts() if files is None else files.counts
    yield Metric(
        "lamella_prompt_cache_bytes",
        "Bytes of pages that left the pool, in memory and in files",
        "gauge",
        ("tier",),
        [(("memory",), store.n_bytes), (("files",), on_disk.n_bytes)],
    )
    for name, text, value in (
        ("restored_tokens", "Prompt tokens whose pages came back", counts.n_restored),
        ("stored_pages", "Pages that left the pool for memory", counts.n_stored),
        ("dropped_pages", "Pages that left memory and are lost", counts.n_dropped + on_disk.n_lost),
        ("files_written", "Pages written to files", on_disk.n_written),
        ("files_read", "Pages read from files", on_disk.n_read),
        ("files_refused", "Files that are damaged or another model's", on_disk.n_refused),
    ):
        yield counter(f"lamella_prompt_cache_{name}", text, value)


def _texts(now: Counters) -> Iterator[Metric]:
    for name, text, value in (
        ("reasoning_tokens", "Generation tokens of reasoning", now.n_reasoning),
        ("constrained_requests", "Ended requests with a grammar or a schema", now.n_constrained),
        ("masks", "Masks of the tokens that a grammar allows", now.n_masks),
        ("mask_seconds", "Time for masks, most of it beside the model's steps", now.mask_s),
        ("mask_wait_seconds", "Time that steps waited for masks", now.mask_wait_s),
    ):
        yield counter(f"lamella_{name}", text, value)


def _drafts(now: Counters, before: Counters) -> Metric:
    n_accepted, n = now.n_accepted - before.n_accepted, now.n_drafts - before.n_drafts
    text = "Guessed tokens of a draft that came true, on average since the last call"
    return gauge("lamella_accepted_length", text, _ratio(n_accepted, n))


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


def _health(worker: Engine | Embedder, state: ServerState) -> Iterator[Metric]:
    pulse = worker.pulse
    yield gauge(
        "lamella_healthy", "1 if the engine works, as in GET /health", not state.engine_trouble
    )
    yield gauge("lamella_step_seconds", "Age of the running step; 0 if none runs", pulse.seconds)
    yield counter("lamella_steps_failed", "Steps that failed as a whole", pulse.n_failed_total)


def _waits(now: Counters) -> Iterator[Metric | Distribution]:
    yield counter("lamella_prompts", "Evaluated prompts", now.n_prompts)
    yield counter("lamella_prefix_hits", "Prompts of which the cache had a part", now.n_prefix_hits)
    for name, text, found in (
        ("queue", "Seconds from a request's arrival to its first step", now.queue_seconds),
        ("inter_token", "Seconds between two tokens of a text", now.token_seconds),
    ):
        yield Distribution(f"lamella_{name}_seconds", text, found)


def _ended(counts: RequestCounts) -> Iterator[Metric | Distribution]:
    yield Metric(
        "lamella_requests",
        "Ended requests, by the path of the endpoint, the status, and how they ended",
        "counter",
        ("path", "status", "end"),
        [((ended.path, str(ended.status), ended.end), n) for ended, n in counts.ended.items()],
    )
    for name, text, found in (
        ("ttft_seconds", "Seconds from a request to its first token", counts.ttft),
        ("request_seconds", "Seconds of requests that the model worked for", counts.seconds),
        ("prompt_length", "Tokens of a request's prompts or texts", counts.n_prompt),
        ("output_length", "Generated tokens of a request", counts.n_predicted),
    ):
        yield Distribution(f"lamella_{name}", text, found)


def _ratio(a: float, b: float) -> float:
    return a / b if b > 0 else 0.0
