"""The sampling parameters that a model's file recommends: its keys `general.sampling.*`.

They are defaults for unset parameters, as in llama.cpp's common_init_sampler_from_model
(common.cpp). Source: the GGUF specification, "Recommended Sampler Parameters". Tested by
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
# field of SamplingParams -> key
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
    "mirostat": "mirostat",
    "mirostat_tau": "mirostat_tau",
    "mirostat_eta": "mirostat_eta",
}


def recommended_sampling(metadata: Metadata) -> dict[str, Any]:
    """Return the file's recommended values of `SamplingParams` fields.

    Invalid and unsupported values are omitted, with a warning in the log.
    """
    found = {}
    for field, key in _KEYS.items():
        if PREFIX + key not in metadata:
            continue
        value = _plain(metadata[PREFIX + key], field)
        try:
            SamplingParams(**{field: value})
        except RequestError as e:
            log.warning(f"the file's {PREFIX}{key} is ignored: {e}")
        else:
            found[field] = value
    return found


def _plain(value: Any, field: str) -> Any:
    """Return the shortest decimal value: 0.7 for the 32-bit float 0.699999988."""
    if isinstance(value, float):
        return float(str(np.float32(value)))
    if field == "samplers" and isinstance(value, str):
        return tuple(value.split(";"))
    return value
