"""Ollama's descriptions of models: the served one, and those that are downloaded.

Functions here read files, so they run in threads.
Tested by tests/server/test_ollama_pull.py and test_ollama_client.py.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from ...base.errors import ModelFileError, RequestError
from ...model.chat.formats import find_format
from ...model.description import ModelDescription, describe_model, plain_metadata
from ...model.gguf import open_gguf
from ...model.hub import CachedModel, HubModel, cached_models, read_url, remove
from ...runtime.instance import EmbeddingInstance
from ..replies import Json
from ..state import ServedModel

FAR: Final = "2300-01-01T00:00:00Z"  # when a model that stays loaded leaves the memory
TAG: Final = ":latest"  # ollama's clients add it to names without a tag
NEVER: Final = datetime.fromtimestamp(0, UTC)
TEMPLATE_KEY: Final = "tokenizer.chat_template"  # of the metadata; it is shown apart


@dataclass(frozen=True, slots=True)
class Known:
    """A model that a client may name.

    Attributes:
        name: how the lists show it.
        path: its first file.
        size: bytes of its files.
        family, n_params, quant: its architecture, its number of weights and their type.
    """

    name: str
    path: Path
    size: int
    family: str
    n_params: int
    quant: str

    def as_json(self) -> Json:
        """An element of a list of models, without dates."""
        return {
            "name": self.name,
            "model": self.name,
            "size": self.size,
            "digest": self._digest(),
            "details": self.details(),
        }

    def details(self) -> Json:
        return {
            "parent_model": "",
            "format": "gguf",
            "family": self.family,
            "families": [self.family] if self.family else [],
            "parameter_size": short_count(self.n_params),
            "quantization_level": self.quant,
        }

    def modified(self) -> str:
        """When its file was written, as ollama writes times."""
        found = NEVER
        with suppress(OSError):
            found = datetime.fromtimestamp(self.path.stat().st_mtime, UTC)
        return f"{found.replace(tzinfo=None).isoformat(timespec='seconds')}Z"

    def _digest(self) -> str:
        """The SHA-256 of a file from the hub, whose cache names files so. Of others, that of their
        names, sizes and dates: to read them takes long."""
        blob = self.path.resolve().name
        if re.fullmatch("[0-9a-f]{64}", blob):
            return blob
        identity = f"{self.path.name}\n{self.size}\n{self.modified()}"
        return hashlib.sha256(identity.encode(errors="replace")).hexdigest()


def short_count(n: int) -> str:
    """A number of weights as ollama writes it: 1.2B, 334.09M, 260K."""
    if n >= 10**9:
        return f"{n / 10**9:.1f}B"
    if n >= 10**6:
        return f"{n / 10**6:.2f}M"
    return f"{n // 1000}K" if n >= 1000 else str(n)


def plain_name(name: str) -> str:
    """Return a model's name without what says nothing: the default tag, and the hub's host."""
    name = name.removesuffix(TAG)
    with suppress(ModelFileError, RequestError):  # names that are no URLs
        source = read_url(name) if "/" in name else None
        return str(source) if isinstance(source, HubModel) else name
    return name


def is_served(model: ServedModel, name: str) -> bool:
    """True if a name is one of the served model."""
    plain = plain_name(name).lower()
    known = {model.alias, model.path.name, model.path.stem, str(model.path)}
    if plain in {one.lower() for one in known}:
        return True
    if "/" not in plain:
        return False
    cached = next((one for one in cached_models() if model.path in one.paths), None)
    return cached is not None and plain in (cached.name.lower(), cached.repo.lower())


def check_name(model: ServedModel, name: str) -> None:
    """Check the model of a request that generates. Any name is accepted, except those of other
    downloaded models, which have a slash.

    Raises:
        HTTPNotFound: it is the name of another model.
    """
    if "/" in name and not is_served(model, name):
        raise web.HTTPNotFound(
            text=f'model "{name:.200}" is not loaded: this server serves "{model.alias}"'
        )


def served(model: ServedModel) -> Known:
    """The served model."""
    return Known(
        name=model.alias,
        path=model.path,
        size=int(model.meta.get("size", 0)),
        family=str(model.file_meta.get("general.architecture", "")),
        n_params=int(model.meta.get("n_params", 0)),
        quant=str(model.meta.get("ftype", "")),
    )


def listed(model: ServedModel) -> Iterator[Known]:
    """All models: the served one first, then those that are downloaded."""
    yield served(model)
    for one in cached_models():
        if model.path not in one.paths:
            yield _cached(one)


def _cached(model: CachedModel) -> Known:
    family, n_params = "", 0
    with suppress(ModelFileError, OSError):  # a damaged file is listed too
        found = _description(model.path, model.modified)
        family, n_params = found.architecture, found.n_params
    return Known(model.name, model.path, model.size, family, n_params, model.quant)


def known_file(name: str, path: Path) -> Known:
    """The model of a file."""
    with suppress(ModelFileError, OSError):
        found = _description(path, path.stat().st_mtime)
        size, n_params = found.n_bytes, found.n_params
        return Known(name, path, size, found.architecture, n_params, found.quantization)
    return Known(name, path, 0, "", 0, "")


@lru_cache(256)
def _description(path: Path, _: float) -> ModelDescription:
    """The facts of a model's file, read once for each version of it."""
    with open_gguf(path, header_only=True) as file:
        return describe_model(file)


def cached_model(name: str) -> CachedModel | None:
    """The downloaded model with this whole name; None if there is none."""
    plain = plain_name(name).lower()
    models = cached_models(partial=True)
    return next((model for model in models if model.name.lower() == plain), None)


def cached_with(path: Path) -> CachedModel | None:
    """The downloaded model that a file belongs to; None if it is no download."""
    wanted = path.resolve()
    models = cached_models()
    return next((one for one in models if wanted in {p.resolve() for p in one.paths}), None)


def remove_cached(model: CachedModel) -> None:
    """Remove a downloaded model. Raises HTTPConflict."""
    try:
        remove(model)
    except ModelFileError as error:
        raise web.HTTPConflict(text=str(error)) from None


def shown(model: ServedModel, name: str) -> Json:
    """POST /api/show. Raises HTTPNotFound: there is no such model."""
    if is_served(model, name):
        return _shown_served(model)
    cached = cached_model(name)
    if cached is None or cached.is_partial:
        raise unknown(name)
    return _shown_file(_cached(cached))


def shown_file(name: str, path: Path) -> Json:
    """POST /api/show for the model of a file. Raises HTTPServiceUnavailable: it is damaged."""
    return _shown_file(known_file(name, path))


def _shown_file(known: Known) -> Json:
    try:
        with open_gguf(known.path, header_only=True) as file:
            described, metadata = describe_model(file), plain_metadata(file.metadata)
    except ModelFileError as error:
        raise web.HTTPServiceUnavailable(text=str(error)) from None
    embeds = described.embeds
    template = described.chat_template
    return _shown(
        known,
        metadata,
        template="" if embeds else template,
        params=described.sampling,
        capabilities=["embedding"] if embeds else text_capabilities(template),
    )


def _shown_served(model: ServedModel) -> Json:
    if isinstance(model, EmbeddingInstance):
        kind = "rerank" if model.ranks else "embedding"
        return _shown(served(model), model.file_meta, capabilities=[kind])
    return _shown(
        served(model),
        model.file_meta,
        template=model.chat.source,
        params=model.defaults,
        capabilities=text_capabilities(model.chat.source, fills=model.vocab.fill.is_complete),
    )


def _shown(
    known: Known,
    metadata: Mapping[str, Any],
    *,
    template: str = "",
    params: Mapping[str, Any] | None = None,
    capabilities: Sequence[str] = (),
) -> Json:
    numbers = {k: v for k, v in (params or {}).items() if isinstance(v, int | float)}
    info = {key: _finite(value) for key, value in metadata.items() if key != TEMPLATE_KEY}
    return {
        "license": str(metadata.get("general.license", "")),
        "modelfile": f"FROM {known.name}\n",
        "parameters": "\n".join(f"{name:<30} {value}" for name, value in numbers.items()),
        "template": template,
        "details": known.details(),
        "model_info": info | {"general.parameter_count": known.n_params},
        "capabilities": list(capabilities),
        "modified_at": known.modified(),
    }


def _finite(value: object) -> object:
    """A value of a file; None for a number that JSON lacks."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def text_capabilities(template: str, *, fills: bool = False) -> list[str]:
    """What a model that generates text can do. Tools work with any template. `fills`: it has the
    tokens for the text before a suffix."""
    more = {"thinking": bool(find_format(template).reasoning), "insert": fills}
    return ["completion", "tools", *(name for name, has in more.items() if has)]


def running(model: ServedModel) -> Json:
    """The element of GET /api/ps."""
    plans = [plan for plan in (model.plan, model.plan.draft) if plan is not None]
    devices = [device for plan in plans for device in plan.devices]
    return served(model).as_json() | {
        "size": sum(device.needed for device in devices),
        "size_vram": sum(device.needed for device in devices if device.name != "CPU"),
        "expires_at": FAR,
        "context_length": model.n_ctx,
    }


def unknown(name: str) -> web.HTTPNotFound:
    """The error for the name of no model."""
    return web.HTTPNotFound(text=f"model '{name:.200}' not found")
