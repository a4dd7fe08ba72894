"""regex: regular expressions of pre-tokenizers as tables that split a text in linear time."""

from .automaton import Automaton, automaton
from .charset import CharSet, partition
from .graph import Graph
from .syntax import parse

__all__ = [
    "END",
    "NONE",
    "START",
    "Automaton",
    "CharSet",
    "Graph",
    "automaton",
    "parse",
    "partition",
]
