"""gbnf: translates llama.cpp's grammars for llguidance, so that exactly the same texts match.

    lark = gbnf_to_lark('root ::= "yes" | "no"', TokenNames.of(vocab).token)

parser.py reads the text, checks.py refuses unsound rules, shape.py makes as much as possible
regular, lexemes.py divides it into lexemes, lark.py writes them.
"""

from __future__ import annotations

from .automaton import Steps
from .checks import ROOT, check
from .lark import written
from .lexemes import divided
from .parser import FindToken, parse
from .shape import shaped

__all__ = ["gbnf_to_lark"]


def gbnf_to_lark(text: str, find_token: FindToken) -> str:
    """Translate a GBNF grammar.

    Args:
        text: the grammar.
        find_token: finds the tokens that the grammar names; see parser.py.

    Returns:
        rules in llguidance's dialect of Lark, with the start rule `start`.

    Raises:
        GrammarError: the grammar is invalid, too large or too ambiguous.
    """
    parsed = parse(text, find_token)
    check(parsed)
    rules, regular = shaped(parsed.rules, ROOT)
    return written(divided(rules, regular, ROOT, Steps()), rules, ROOT)
