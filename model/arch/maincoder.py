"""maincoder: Maincoder 1B. A hunyuan whose rope rotates adjacent pairs.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from ...graph import RopeMode
from .hunyuan import Hunyuan


class Maincoder(Hunyuan):
    """https://huggingface.co/Maincode/Maincoder-1B"""

    name = "maincoder"
    rope_mode = RopeMode.NORMAL
