"""Parses the bytes of a request into a body of server/schema.py.

Parsing is strict: every error names the field, the value found and the allowed values. Features of
llama-server or OpenAI that Lamella lacks are refused with status 400. Fields without effect are
listed in `MEANINGLESS`. Unknown fields are logged once.
Tested by tests/server/test_http_schema.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from pydantic import JsonValue, ValidationError

from ..base.errors import RequestError
from ..base.json_depth import check_depth
from ..base.log import get_logger
from ..base.nesting import limited_nesting
from ..base.utf8 import check_utf8
from ..runtime.params import ALIASES
from .constraints import FIELDS
from .given import found
from .logged import LoggedOnce
from .long_json import N_DEPTH_MAX, STRICT, parse_json
from .schema import PARAMS, Body

log = get_logger("server")
_LOGGED: Final = LoggedOnce()  # unknown fields
N_FIELDS_MAX: Final = 1000  # of a body; checks of the names are single calls

# accepted, without effect: hints, labels, and switches of features that are always on or off
MEANINGLESS: Final = frozenset(
    {
        *("backend_sampling", "guided_decoding_backend", "n_cache_reuse"),
        *("metadata", "prediction", "prompt_cache_key"),
        *("prompt_cache_retention", "safety_identifier", "service_tier", "store", "user"),
        "verbosity",
    }
)
# not supported: refused unless the value is one of these, which request nothing
UNSUPPORTED: Final[Mapping[str, tuple[JsonValue, ...]]] = {
    "audio": (),
    "best_of": (1,),
    "echo": (False,),
    "guided_whitespace_pattern": (),
    "modalities": (["text"],),
    "multimodal_data": ([],),
    "prompt_name": (),
    "structural_tag": (),
    "truncation_direction": ("right", "Right"),
    "web_search_options": (),
}
# the same for fields that only some requests have
OF_TEXTS: Final[Mapping[str, tuple[JsonValue, ...]]] = {"input_extra": ([],), "suffix": ("",)}
OF_CHATS: Final[Mapping[str, tuple[JsonValue, ...]]] = {
    "reasoning_control": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
}

# their harmless values, and the requests that have them
OTHERS: Final = {
    **{name: (ok, "chats: use POST /v1/chat/completions") for name, ok in OF_CHATS.items()},
    **{name: (ok, "POST /v1/completions and /infill") for name, ok in OF_TEXTS.items()},
}

AnyBody = TypeVar("AnyBody", bound=Body)


def parse_body(model: type[AnyBody], raw: bytes) -> AnyBody:
    """The body of a request, parsed and checked.

    Raises:
        RequestError: not a JSON object, a field has an invalid type or value, or the body requests
            an unsupported feature.
    """
    with limited_nesting("the body"):
        body = parse_object(raw)
        _refuse_unsupported(model, body)
        _log_unknown(model, body)
        try:
            return model.model_validate(body)
        except ValidationError as error:
            raise RequestError(_sentence(error)) from None


def parse_object(raw: bytes) -> dict[str, Any]:
    """The JSON object in `raw`. Raises RequestError with the place and the cause."""
    body = parse_value(raw)
    if not isinstance(body, dict):
        raise RequestError(f"the body must be a JSON object, found {found(body)}")
    for name, value in body.items():
        check_depth(f"{name:.80}", value, N_DEPTH_MAX)
    return body


def parse_value(raw: bytes) -> Any:
    """The JSON value in `raw`, of any depth. Raises RequestError with the place and the cause."""
    try:
        text = raw.decode(errors="surrogateescape")
        check_utf8("the body", text)
        body = parse_json(text, STRICT)
        if isinstance(body, dict) and len(body) > N_FIELDS_MAX:
            raise ValueError(f"it has {len(body)} fields, at most {N_FIELDS_MAX} are allowed")
        if "\\u" in text:  # an escape can make half a surrogate pair, which is invalid
            _check_strings(body)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise RequestError(f"the body is not JSON: {where}: {error.msg}") from None
    except ValueError as error:  # a number of thousands of digits, NaN, too many fields
        raise RequestError(f"the body is invalid: {error}") from None
    return body


def _check_strings(body: object) -> None:
    """Raise RequestError if a string of the body is not valid UTF-8. It names the field."""
    if not isinstance(body, dict):
        check_utf8("the body", json.dumps(body, ensure_ascii=False))
        return
    for name, value in body.items():
        check_utf8("a name in the body", name)
        # one element at a time: each call holds the interpreter's lock
        for element in value if isinstance(value, list) else [value]:
            text = element if isinstance(element, str) else json.dumps(element, ensure_ascii=False)
            check_utf8(f'"{name}"', text)


def _refuse_unsupported(model: type[Body], body: dict[str, Any]) -> None:
    own = set(model.names())
    for name in sorted(OTHERS.keys() - own):
        harmless, place = OTHERS[name]
        if body.get(name) is not None and body[name] not in harmless:
            raise RequestError(f'"{name}" is a field of {place}')
    for name, harmless in UNSUPPORTED.items():
        value = body.get(name)
        if value is not None and value not in harmless:
            raise RequestError(f'"{name}" is not supported yet, found {found(value)}')
    prompt = body.get("prompt")
    for element in prompt if isinstance(prompt, list) else [prompt]:
        if isinstance(element, dict) and element.get("multimodal_data"):
            raise RequestError('"multimodal_data" in a prompt is not supported yet')


def _log_unknown(model: type[Body], body: dict[str, Any]) -> None:
    known = {*MEANINGLESS, *UNSUPPORTED, *OTHERS, *FIELDS, *PARAMS, *ALIASES, *model.names()}
    for name in _LOGGED.new(body.keys() - known):
        log.warning("ignoring an unknown field of requests: %s", name)


def _sentence(error: ValidationError) -> str:
    """The first error, as a sentence for the client."""
    first, *others = error.errors(include_url=False)
    place = ""
    for step in first["loc"]:
        place += f"[{step}]" if isinstance(step, int) else f".{step}" if place else str(step)
    message = first["msg"].removeprefix("Value error, ")
    message = re.sub(r"^(Input|String|List) should", "must", message)
    if first["type"] == "model_type":
        message = "must be an object"
    if first["type"] == "missing":
        sentence = f'"{place}" is missing'
    elif place:
        sentence = f'"{place}" {message}, found {found(first["input"])}'
    else:  # a rule of the whole body names its fields
        sentence = message
    return f"{sentence} (and {len(others)} more)" if others else sentence
