"""The differences from llama-server that are on purpose, with their reasons.

docs/server.md lists the reasons, and a test compares. Tested by tests/server/test_compat.py.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Final, NamedTuple

ERROR: Final = ("status", "error.type", "body.error.*")


class Known(NamedTuple):
    """A reason, and the steps (`client/step`) and paths that differ for it, as patterns."""

    reason: str
    steps: tuple[str, ...]
    paths: tuple[str, ...] = ERROR


KNOWN: Final[tuple[Known, ...]] = (
    Known(
        "bad requests are 400, also those that are 500 there",
        (
            *("errors/broken JSON", "errors/a role that is missing", "errors/an image"),
            *("errors/grammar and tools", "slots/no name", "infill/without a suffix"),
        ),
    ),
    Known(
        "what is ignored there is refused: unknown adapters, slots and roles, "
        "`echo`, chats without messages, texts that are missing",
        (
            *("tokens/nothing to tokenize", "slots/a wrong slot", "adapters/an unknown id"),
            "resumed/lookup of nothing",
            *("errors/an unknown adapter", "openai/echo", "openai/no messages"),
            "anthropic/a wrong role",
        ),
    ),
    Known("GET of a path that only has POST is 405, not 404", ("errors/GET of a POST",)),
    Known(
        "a server of embeddings generates no text: 501 names the command for another one",
        ("vectors/no completion",),
    ),
    Known(
        "a web page of an origin that `--cors-origins` does not have gets 403",
        ("pages/a page of the internet",),
    ),
    Known(
        "pages of allowed origins may send credentials, as `--cors-credentials` says",
        ("pages/a page of this machine", "browser/with credentials"),
        ("access-control-allow-credentials.*", "type"),
    ),
    Known(
        "`tool_choice` `required` means that the answer is a call; there a text may come first, "
        "or alone",
        (
            *("openai/a tool that must be called", "openai/stream of a call"),
            *("openai/response with a call", "anthropic/a call"),
        ),
        ("choices*", "last.choices*", "order.type", "output*", "content*", "stop_reason"),
    ),
    Known(
        "Responses that a limit cut are `incomplete`, as at OpenAI",
        ("openai/response that is cut",),
        ("*status", "completed_at"),
    ),
    Known(
        "the `code` of Responses' errors is OpenAI's text",
        ("errors/no such stored response",),
    ),
    Known(
        "the `stop_reason` of a stop sequence is `stop_sequence`, as at Anthropic",
        ("anthropic/a stop sequence",),
        ("stop_reason",),
    ),
    Known(
        "the metric `llamacpp:n_tokens_max` is a gauge, not a counter",
        ("prometheus/metrics",),
        ("metrics.llamacpp:n_tokens_max.type",),
    ),
    Known(
        "of several models: an unknown name is 404, and a missing one 400",
        ("router/an unknown model", "router/no model to load"),
    ),
    Known(
        "of several models: GET `/v1/models` shows flags only with `--api-key`, and no `preset`, "
        "`source` and `can_remove`",
        ("router/*models*",),
        ("*.status.args", "*.status.preset", "*.source", "*.can_remove"),
    ),
    Known(
        "of several models: the event of an unload comes when it begins, without an `exit_code`",
        ("router/changes",),
        ("events[[]].data.exit_code",),
    ),
)


def reason_of(client: str, step: str, path: str) -> str:
    """Why a path of a step differs; "" if that is not known."""
    for known in KNOWN:
        if any(fnmatchcase(f"{client}/{step}", pattern) for pattern in known.steps) and any(
            fnmatchcase(path, pattern) for pattern in known.paths
        ):
            return known.reason
    return ""
