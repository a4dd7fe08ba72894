"""The route of LoRA adapters, as llama-server's: lists them, and sets the scales of requests that
set none.

Tested by tests/server/test_http_adapters.py.
"""

from __future__ import annotations

from typing import Final

from aiohttp import web

from ..base.nesting import limited_nesting
from ..model.adapter_params import check_scales
from ..runtime.adapters import AdapterScales
from ..runtime.instance import EmbeddingInstance
from .bodies import work_on_body
from .parsing import parse_value
from .replies import Json
from .routes import json_response, loaded_model, text_model

BODY: Final = "the body"


def _list(scales: AdapterScales) -> list[Json]:
    return [
        {
            "id": id,
            "path": str(file.path),
            "scale": scale,
            "task_name": file.task_name,
            "prompt_prefix": file.prompt_prefix,
        }
        for file, (id, scale) in zip(scales.files, scales.current, strict=True)
    ]


async def adapters(request: web.Request) -> web.Response:
    """All adapters with their scales."""
    model = loaded_model(request)
    return json_response([] if isinstance(model, EmbeddingInstance) else _list(model.adapters))


async def set_scales(request: web.Request) -> web.Response:
    """Set the scales of requests that come later and set none. Those not listed become 0."""
    scales = text_model(request).adapters  # 501 if the model computes embeddings

    def work(raw: bytes) -> None:
        with limited_nesting(BODY):
            value = parse_value(raw)
        scales.set(BODY, check_scales(BODY, value))

    await work_on_body(request, work)
    return json_response({"success": True})


ROUTES: Final = (
    web.get("/lora-adapters", adapters),
    web.post("/lora-adapters", set_scales),
)
