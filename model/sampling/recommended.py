"""The sampling that a model's file recommends: its keys `general.sampling.*`.

As in llama.cpp (common.cpp: common_init_sampler_from_model), they are the defaults of what nobody
has set. Source: the GGUF specification, "Recommended Sampler Parameters". Tested by
tests/model/test_sampling_recommended.py.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from ...base.errors import RequestError
from ...base.log import get_logger
from ..gguf import Metadata
from .params import SamplingParams

log = get_logger("sampling")

PREFIX: Final = "general.sampling."
# by fields of SamplingParams
_KEYS: Final = {
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "xtc_probability": "xtc_probability",
    "xtc_threshold": "xtc_threshold",
    "repeat_last_n": "penalty_last_n",
    "repeat_penalty": "penalty_repeat",
    "samplers": "sequence",
}


def recommended_sampling(metadata: Metadata) -> dict[str, Any]:
    """Fields of `SamplingParams` and what the file recommends for them.

    What cannot be, or Lamella does not have, is left out, and the log tells.
    """
    found = {}
    for field, key in _KEYS.items():
        if PREFIX + key not in metadata:
            continue
        value = _plain(metadata[PREFIX + key], field)
        try:
            SamplingParams(**{field: value})
        except RequestError as e:
            log.warning(f"the file's {PREFIX}{key} is not followed: {e}")
        else:
            found[field] = value
    if metadata.get(f"{PREFIX}mirostat", 0) != 0:
        log.warning(f"the file's {PREFIX}mirostat is not followed: Lamella does not have it")
    return found


def _plain(value: Any, field: str) -> Any:
    """The value as one would write it: 0.7, where a 32-bit float is 0.699999988."""
    if isinstance(value, float):
        return float(str(np.float32(value)))
    if field == "samplers" and isinstance(value, str):
        return tuple(value.split(";"))
    return value
