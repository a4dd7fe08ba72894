"""gbnf: translates llama.cpp's grammars."""

from llguidance.gbnf_to_lark import gbnf_to_lark

__all__ = ["gbnf_to_lark"]
