"""exaone: EXAONE 3 and 3.5. A llama whose rope rotates halves of a head.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

from .decoder import Decoder


class Exaone(Decoder):
    """arXiv 2408.03541, 2412.04862"""

    name = "exaone"
