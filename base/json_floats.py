"""Rows of float32 as JSON, with the fewest digits that read back as the same float32.

`json.dumps` would write the 17 digits of a float64. Tested by tests/base/test_json_floats.py.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import orjson

F32Array = npt.NDArray[np.float32]


def json_row(row: F32Array) -> bytes:
    """Return the numbers of a row [n] as a JSON list.

    Raises:
        ValueError: a number is not finite. JSON has neither NaN nor infinity.
    """
    if not np.isfinite(row).all():
        raise ValueError("JSON has neither NaN nor infinity")
    return orjson.dumps(np.ascontiguousarray(row), option=orjson.OPT_SERIALIZE_NUMPY)
