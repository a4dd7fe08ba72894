"""Limits of grammars, so that no request uses up the time or the memory of others.

Tested by tests/model/test_guide_limits.py.
"""

from __future__ import annotations

from typing import Final

from llguidance import LLParserLimits

N_CACHED_MAX: Final = 32  # compiled grammars
N_CACHED_BYTES_MAX: Final = 1 << 20  # of their sources

PARSER_LIMITS: Final = LLParserLimits(max_lexer_states=20_000, verbose_errors=False)
