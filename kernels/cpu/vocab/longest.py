"""The longest token, again and again, as a kernel: vocabularies of RWKV.

Tested by tests/model/test_vocab_rwkv.py.
"""

from __future__ import annotations

from typing import Final

from .access import array_kernel, put_i32
from .trie import longest_token

_LOW: Final = 0xFFFFFFFF


@array_kernel
def vocab_longest(text, n, slots, mask, ids, none, out):
    """Write the number of ids and the ids. A byte at which no token starts becomes `none`.

    Args:
        text: `n` bytes.
        slots, mask, ids: the trie of the tokens.
        out: int32s, room for `n + 1`.
    """
    at, n_out = 0, 1
    while at < n:
        found = longest_token(text, at, n, slots, mask, ids)
        put_i32(out, n_out, found >> 32 if found >= 0 else none)
        n_out += 1
        at = found & _LOW if found >= 0 else at + 1
    put_i32(out, 0, n_out - 1)
