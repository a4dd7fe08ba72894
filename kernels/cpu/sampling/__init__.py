"""sampling: the samplers as kernels. One native call runs the whole chains of all rows."""

from .draw import sample_draw, sample_rows
from .infill import sample_infill
from .select import sample_sort, sample_top_k
from .surprise import (
    sample_adaptive_p,
    sample_adaptive_p_end,
    sample_mirostat_1,
    sample_mirostat_2,
    sample_mirostat_end,
)
from .temper import sample_bias, sample_dynamic_temperature, sample_penalties, sample_temperature
from .truncate import (
    XTC_USED,
    sample_min_p,
    sample_top_n_sigma,
    sample_top_p,
    sample_typical,
    sample_xtc,
)

SAMPLING_KERNELS = (
    *(sample_rows, sample_draw, sample_sort, sample_top_k, sample_top_p, sample_min_p),
    *(sample_temperature, sample_bias, sample_penalties, sample_typical, sample_top_n_sigma),
    *(sample_xtc, sample_dynamic_temperature, sample_infill, sample_mirostat_1),
    *(sample_mirostat_2, sample_mirostat_end, sample_adaptive_p, sample_adaptive_p_end),
)

__all__ = [
    "SAMPLING_KERNELS",
    "XTC_USED",
    "sample_adaptive_p",
    "sample_adaptive_p_end",
    "sample_bias",
    "sample_draw",
    "sample_dynamic_temperature",
    "sample_infill",
    "sample_min_p",
    "sample_mirostat_1",
    "sample_mirostat_2",
    "sample_mirostat_end",
    "sample_penalties",
    "sample_rows",
    "sample_sort",
    "sample_temperature",
    "sample_top_k",
    "sample_top_n_sigma",
    "sample_top_p",
    "sample_typical",
    "sample_xtc",
]
