"""minicpm3: MiniCPM 3. MiniCPM's factors, and latent attention with latent queries.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from ...graph import RopeMode
from .minicpm import MiniCPM
from .mla import ExpandedMLA


class MiniCPM3(ExpandedMLA, MiniCPM):
    """https://github.com/OpenBMB/MiniCPM"""

    name = "minicpm3"
    rope_mode = RopeMode.NEOX
