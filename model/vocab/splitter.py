"""Splits a text into words by the regular expressions of a pre-tokenizer.

    splitter = Splitter(PRE_TOKENIZERS["llama-bpe"].patterns)
    splitter.ends(np.frombuffer("Hello world".encode(), np.uint8))    # [5, 11]

Kernels call `split_words` (kernels/cpu/vocab/split.py) with `*splitter.arrays`.
Tests: tests/model/test_vocab_splitter.py.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from ...kernels.cpu.vocab.access import Argument
from ...kernels.cpu.vocab.split import vocab_split
from .regex import CharSet, Graph, automaton, parse, partition


class Splitter:
    """Splits texts. Immutable and thread-safe.

    Attributes:
        arrays: the class of each code point, all tables, the layout of the tables, and the number
            of expressions.
    """

    def __init__(self, patterns: tuple[str, ...]) -> None:
        """`patterns`: see `PreTokenizer`."""
        self.arrays = _arrays(patterns)

    def ends(self, utf8: npt.NDArray[np.uint8]) -> npt.NDArray[np.int32]:
        """Return the offset of the end of each word, in bytes, of a text in UTF-8."""
        n = len(utf8)
        states = np.empty(n + 1, np.uint16)
        spare, ends, n_words = np.empty(n, np.int32), np.empty(n, np.int32), np.empty(1, np.int64)
        vocab_split(utf8, n, *self.arrays, states, spare, ends, n_words)
        return ends[: n_words[0]].copy()


@cache
def _arrays(patterns: tuple[str, ...]) -> tuple[Argument, ...]:
    graphs = [Graph(parse(pattern)) for pattern in patterns]
    sets: dict[bytes, CharSet] = {}
    for graph in graphs:
        sets |= {step.chars.key: step.chars for step in graph.steps if step.chars}
    class_of_point, classes = partition([*sets.values()])
    numbers = {key: i for i, key in enumerate(sets)}
    tables: list[npt.NDArray[np.uint16]] = []
    layout, size = [], 0
    for graph in graphs:
        of_step = {i: numbers[step.chars.key] for i, step in enumerate(graph.steps) if step.chars}
        steps = [[i for i, number in of_step.items() if number in c] for c in classes]
        back, choice = automaton(graph, steps)
        layout += [size, size + back.size, len(classes), len(back)]
        size += back.size + choice.size
        tables += [back.ravel(), choice.ravel()]
    all_tables = np.concatenate([np.empty(0, np.uint16), *tables])
    return class_of_point, all_tables, np.array(layout, np.int64), len(graphs)
