"""Limits of GBNF grammars, so that hostile ones end early with an error.

Tested by tests/model/test_guide_gbnf_parser.py.
"""

from __future__ import annotations

from typing import Final

N_NODES_MAX: Final = 20_000  # literals, classes, groups and references of a grammar
DEPTH_MAX: Final = 48  # of groups in groups of a regular expression
NODE_DEPTH_MAX: Final = 160  # of expressions in expressions, so that no pass recurses too deep
N_REPEATS_MAX: Final = 65_535  # the largest number in {m,n}
N_SWEEPS_MAX: Final = 64  # over rules that refer to each other
LINEAR_RULES_MAX: Final = 16  # rules that are solved like a finite automaton
LINEAR_SIZE_MAX: Final = 2_000  # expressions of their solution

N_CHARACTERS_MAX: Final = 1 << 24  # of a regular rule, with all rules and repetitions written out
LEXEME_SIZE_MAX: Final = 4_096  # characters and classes of one lexeme, with the rules in it
N_SYMBOLS_MAX: Final = 10_000  # lexemes and references in rules; llguidance has the same limit
N_ROUNDS_MAX: Final = 48  # of splitting lexemes; after the last one all are single characters
N_COPIES_MAX: Final = 32  # an automaton takes longer counted repetitions for unbounded ones
N_STEPS_MAX: Final = 500_000  # of all searches in one grammar; about 0.25 s
