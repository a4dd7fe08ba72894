"""Shared by the HTTP tests of grammars: a server of the small model that comes with Lamella."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from http_world import RunningServer, running
from jsonschema import Draft202012Validator
from open_params import open_params

from lamella.model.shipped import shipped_model
from lamella.runtime.instance import Instance
from lamella.runtime.open import open_instance

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "moods": {"type": "array", "items": {"enum": ["glad", "sad"]}, "maxItems": 3},
    },
    "required": ["name", "age", "moods"],
    "additionalProperties": False,
}


def load_stories(**defaults: Any) -> Instance:
    """The model, with default values of `RequestParams`."""
    params = open_params(shipped_model(), n_ctx=2048, n_parallel=4)
    return open_instance(params, defaults=defaults)


@contextmanager
def serving_stories(**defaults: Any) -> Iterator[RunningServer]:
    with running(partial(load_stories, **defaults)) as server:
        yield server


def valid(schema: dict[str, Any], text: str) -> Any:
    """The value of a JSON text, which must match a schema."""
    value = json.loads(text)
    Draft202012Validator(schema).validate(value)
    return value
