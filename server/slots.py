"""What the request in a slot does, or its last one did, as in GET /slots: without its texts.

Knows no route. Tested by tests/server/test_slots.py.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Final

from ..runtime.engine.ticket import RunningJob
from .replies import FIXED_SETTINGS, speculative_settings

Json = dict[str, Any]

# options with texts of the client, or with many numbers
_HIDDEN: Final = frozenset(
    {"logit_bias", "stop", "dry_sequence_breakers", "reasoning_budget_message"}
)


def slot_json(
    id: int, n_ctx: int, job: RunningJob | None, *, is_running: bool, speculates: bool
) -> Json:
    """An element of GET /slots. `job` runs in the slot, or was the last one. `speculates` if the
    tokens of requests are guessed unless they say otherwise."""
    found: Json = {
        "id": id,
        "n_ctx": n_ctx,
        "speculative": speculates if job is None else job.speculative.is_on,
        "is_processing": is_running,
    }
    if job is None:
        return found
    return found | {
        "id_task": job.id,
        "n_prompt_tokens": job.n_prompt,
        "n_prompt_tokens_processed": job.n_evaluated - job.n_cached,
        "n_prompt_tokens_cache": job.n_cached,
        "params": _params(job),
        "next_token": [
            {
                "has_next_token": is_running,
                "has_new_line": job.has_new_line,
                "n_remain": job.n_left,
                "n_decoded": job.n_predicted,
            }
        ],
    }


def _params(job: RunningJob) -> Json:
    values = {
        field.name: getattr(options, field.name)
        for options in (job.sampling, job.params)
        for field in fields(options)
        if field.name not in _HIDDEN
    }
    own = {"seed": job.seed, "max_tokens": job.params.n_predict}
    lora = [{"id": id, "scale": scale} for id, scale in job.params.lora or ()]
    guesses = speculative_settings(job.speculative)
    return values | FIXED_SETTINGS | guesses | own | {"lora": lora}
