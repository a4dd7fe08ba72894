"""What the variables of Google's Vertex AI say: a container there has AIP_MODE=PREDICTION.

Knows no request. Tested by tests/server/test_vertex.py.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from ..base.errors import RequestError
from ..base.log import get_logger
from ..base.settings import environment
from .config import ServerConfig

log = get_logger("server")

N_PORT_MAX: Final = 65535


class Vertex(NamedTuple):
    """What the environment says.

    Attributes:
        predict: the path of predictions.
        health: another path of GET /health; "" if there is none.
        port: where to listen.
    """

    predict: str
    health: str
    port: int


def vertex() -> Vertex | None:
    """What Vertex AI's variables say; None without AIP_MODE=PREDICTION.

    Raises:
        RequestError: one of them is invalid.
    """
    if environment("AIP_MODE") != "PREDICTION":
        return None
    port = environment("AIP_HTTP_PORT") or "8080"
    if not (port.isascii() and port.isdigit() and int(port[:9]) <= N_PORT_MAX):
        raise RequestError(f"AIP_HTTP_PORT is {port!r}: must be 0 to {N_PORT_MAX}")
    predict = _path("AIP_PREDICT_ROUTE") or "/predict"
    return Vertex(predict, _path("AIP_HEALTH_ROUTE"), int(port))


def _path(name: str) -> str:
    path = environment(name) or ""
    if re.search(r"[^\w/.~:@%-]", path):
        raise RequestError(f"{name} is {path!r}: must be a path without special characters")
    return path if not path or path.startswith("/") else f"/{path}"


def on_vertex(config: ServerConfig) -> ServerConfig:
    """The options, with the port of Vertex AI's variables. Raises as `vertex`."""
    found = vertex()
    if found is None or found.port == config.port:
        return config
    log.info("AIP_HTTP_PORT: listening on port %d, not %d", found.port, config.port)
    return config.change(port=found.port)
