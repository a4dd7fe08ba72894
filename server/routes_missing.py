"""The endpoints of llama-server, OpenAI, ollama and vLLM that Lamella does not have yet.

They answer with status 501, and the message names a replacement. Unknown paths are 404; the message
suggests the nearest endpoint.
Tested by tests/server/test_routes_missing.py.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple

from aiohttp import web

N_PATH_CHARS: Final = 60  # of paths that are compared with those of endpoints
CHAT: Final = "POST /v1/chat/completions"


class Missing(NamedTuple):
    """Endpoints of one feature. A path that ends with `*` stands for all paths that begin so."""

    feature: str
    instead: str
    paths: Sequence[str]


MISSING: Final = (
    Missing("vLLM's and TEI's scores", "POST /rerank", ("/v1/score", "/score", "/similarity")),
    Missing("classes of texts", "POST /v1/embeddings", ("/classify", "/pooling")),
    Missing("other forms of vectors", "POST /embed", ("/embed_all", "/embed_sparse", "/v2/embed")),
    Missing(
        "loading adapters later",
        "--lora at the start, and scales by POST /lora-adapters",
        ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"),
    ),
    Missing("vLLM's details", "GET /props", ("/version",)),
    Missing(
        "making models",
        "flags of `lamella serve`",
        ("/api/create", "/api/copy", "/api/push", "/api/blobs/*"),
    ),
    Missing(
        "loading models of a server with one model",
        "`lamella serve --models-dir DIR`, which serves several",
        ("/models/load", "/models/unload", "/models/sse"),
    ),
    Missing("vLLM's health", "GET /health", ("/ping", "/load")),
    Missing("speech", "a server for speech", ("/v1/audio/*", "/audio/*")),
    Missing("pictures and videos", "a server for pictures", ("/v1/images/*", "/v1/videos")),
    Missing("files and batches", CHAT, ("/v1/files", "/v1/files/*", "/v1/batches", "/v1/uploads")),
    Missing(
        "OpenAI's other services",
        CHAT,
        (
            *("/v1/assistants", "/v1/threads", "/v1/vector_stores", "/v1/realtime"),
            *("/v1/moderations", "/v1/fine_tuning/*", "/invocations"),
        ),
    ),
    Missing(
        "Vertex AI's predictions", "its variable AIP_MODE=PREDICTION for the server", ("/predict",)
    ),
    Missing("tools that the server runs", "tools of the client", ("/tools", "/cors-proxy")),
)


async def refuse(missing: Missing, request: web.Request) -> web.Response:
    """Raises HTTPNotImplemented."""
    raise web.HTTPNotImplemented(
        text=f"{request.method} {request.path:.200} ({missing.feature}) is not supported yet: "
        f"use {missing.instead}"
    )


def unknown_path(request: web.Request, known: Iterable[str]) -> str:
    """The error message for an unknown path."""
    message = f"Not Found: {request.method} {request.path:.200}"
    path = request.path[:N_PATH_CHARS]
    close = difflib.get_close_matches(path, known, n=1, cutoff=0.75)
    return f"{message}; did you mean {close[0]}?" if close else message


def _pattern(path: str) -> str:
    return path.removesuffix("*") + "{rest:.*}" if path.endswith("*") else path


ROUTES: Final = (
    *(
        web.route("*", _pattern(path), partial(refuse, missing))
        for missing in MISSING
        for path in missing.paths
    ),
)
