"""GET /status.json: what the server does now, for the page at GET /status.

    {"model": {...}, "requests": {...}, "totals": {...}, "kv": [...], "cache": {...},
     "devices": [...],
     "steps": [[number, begin, seconds, n_decoded, n_prompt, n_running, is_new_graph], ...]}

Reads counters only, and waits for nothing: it answers also while a step hangs. Times of steps are
seconds of the same clock as `now`. `?since=N` leaves out the steps before number N.
Tested by tests/server/test_status.py.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any, Final

from aiohttp import web

from ..alloc.buffer import UNLIMITED
from ..runtime.instance import EmbeddingInstance, Instance
from .draining import STOPPING
from .replies import Json
from .request_counts import RequestCounts
from .routes import METRICS, json_response, loaded_model
from .state import STATE, ServedModel

VERSION: Final = version("lamella")
N_JOBS: Final = 256  # running requests that are listed
N_CARD_CHARS: Final = 300
# of the file's metadata, by the name in the reply
CARD: Final = {
    "name": "general.name",
    "architecture": "general.architecture",
    "size_label": "general.size_label",
    "organization": "general.organization",
    "author": "general.author",
    "license": "general.license",
    "url": "general.url",
    "description": "general.description",
    "quantized_by": "general.quantized_by",
}


async def status(request: web.Request) -> web.Response:
    """The status. Raises HTTPBadRequest: `since` is not a number."""
    model = loaded_model(request)
    state = request.app[STATE]
    since = _since(request)
    worker, now = model.worker, time.perf_counter()
    trouble = STOPPING if state.running.is_draining else state.engine_trouble
    found: Json = {
        "version": VERSION,
        "now": now,
        "uptime": time.time() - request.app[METRICS].t_start,
        "state": trouble or "ok",
        "step_seconds": worker.pulse.seconds,
        "model": _model(model),
        "requests": _requests(model),
        "totals": _totals(model, state.counts),
        "kv": list(_pools(model)),
        "cache": _cache(model),
        "devices": list(_devices(model)),
        "steps": [list(step) for step in worker.steps.since(since)],
    }
    return json_response(found)


def _since(request: web.Request) -> int:
    text = request.query.get("since", "0")
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise web.HTTPBadRequest(text=f"since is {text!r:.60}: must be the number of a step, 0 on")
    return int(text)


def _model(model: ServedModel) -> Json:
    kind = "text"
    if isinstance(model, EmbeddingInstance):
        kind = "rerank" if model.ranks else "embedding"
    card = {name: model.file_meta[key] for name, key in CARD.items() if key in model.file_meta}
    return {
        "name": model.alias,
        "kind": kind,
        "n_ctx": model.n_ctx,
        **model.meta,
        "card": {name: str(value)[:N_CARD_CHARS] for name, value in card.items()},
    }


def _requests(model: ServedModel) -> Json:
    worker = model.worker
    jobs = model.engine.running if isinstance(model, Instance) else []
    return {
        "running": worker.n_running,
        "waiting": worker.n_waiting,
        "places": worker.n_parallel,
        "jobs": [
            {
                "n_prompt": job.n_prompt,
                "n_cached": job.n_cached,
                "n_done": job.n_evaluated,
                "n_predicted": job.n_predicted,
                "seconds": job.seconds,
            }
            for job in jobs[:N_JOBS]
        ],
    }


def _totals(model: ServedModel, counts: RequestCounts) -> Json:
    counters, steps, context = model.worker.counters, model.worker.steps, model.context
    return {
        "steps": steps.n_steps,
        "prompt_tokens": steps.n_prompt,
        "cached_tokens": counters.n_cached,
        "output_tokens": steps.n_outputs,
        "prompts": counters.n_prompts,
        "prefix_hits": counters.n_prefix_hits,
        "guessed_tokens": counters.n_drafted,
        "accepted_tokens": counters.n_accepted,
        "graphs_built": context.n_graphs_built,
        "graphs_reused": context.n_reused,
        "requests": counts.seconds.buckets()[-1][1],
    }


def _pools(model: ServedModel) -> Iterator[Json]:
    if isinstance(model, Instance):
        for group in model.context.all_groups:
            pool = group.pool
            yield {
                "group": group.name,
                "pages": pool.n_pages,
                "free": pool.n_free,
                "page_tokens": pool.page_size,
            }


def _cache(model: ServedModel) -> Json | None:
    """The pages that left the pools; None if they are lost."""
    store = model.engine.store if isinstance(model, Instance) else None
    if store is None:
        return None
    return {
        "bytes": store.n_bytes,
        "limit": store.limit,
        "pages": len(store),
        "restored_tokens": store.counts.n_restored,
        "file_bytes": None if store.files is None else store.files.counts.n_bytes,
    }


def _devices(model: ServedModel) -> Iterator[Json]:
    """Each device of the plan, with the bytes that are allocated on it now."""
    used = model.buffer_bytes()
    for device in model.plan.devices:
        types = {memory.buffer_type for memory in device.memory}
        memory: dict[str, Any] = {}
        for (buffer_type, use), n_bytes in used.items():
            if buffer_type in types:
                memory[use] = memory.get(use, 0) + n_bytes
        yield {
            "name": device.name,
            "description": device.description,
            "layers": device.n_layers,
            "capacity": None if device.capacity == UNLIMITED else device.capacity,
            "memory": memory,
        }


ROUTES: Final = (web.get("/status.json", status),)
