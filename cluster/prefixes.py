"""Prefixes as numbers: one for each page of a prompt, and those that a replica has in memory.

The number of a page stands for all tokens up to its end, and for what else keys and values depend
on: it is the begin of the digest that a node of the prefix tree has. So equal numbers in a prompt
and in a replica are pages that need no evaluation there. Knows no Ray.
Tested by tests/cluster/test_prefixes.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Final

import numpy as np

from ..model.kv_prefix import PLAIN, PrefixIdentity, PrefixTree, next_chain, root_chain

N_NUMBER: Final = 8  # bytes of a number
N_SUMMARY: Final = 4096  # pages of a summary at most: 32 KiB, and 131,072 tokens of usual pages


def page_numbers(
    tokens: Sequence[int], page_size: int, identity: PrefixIdentity = PLAIN
) -> tuple[int, ...]:
    """The numbers of the full pages of a prompt. The last token is left out, as it is always
    evaluated."""
    raw = np.asarray(tokens, np.int32).tobytes()
    n_bytes = page_size * np.dtype(np.int32).itemsize
    chain, found = root_chain(identity), list[int]()
    for page in range((len(tokens) - 1) // page_size):
        chain = next_chain(chain, raw[page * n_bytes : (page + 1) * n_bytes])
        found.append(int.from_bytes(chain[:N_NUMBER], "little"))
    return tuple(found)


def summary(tree: PrefixTree, n_max: int = N_SUMMARY) -> bytes:
    """The numbers of the pages of a tree, of the most recently used ones if there are many. A page
    is never without those before it."""
    nodes = islice(tree.full_nodes(), n_max)
    return b"".join(node.chain()[:N_NUMBER] for node in nodes)


def numbers_of(summary: bytes) -> list[int]:
    """The numbers in a summary, the most recently used first."""
    found: list[int] = np.frombuffer(summary, "<u8").tolist()
    return found
