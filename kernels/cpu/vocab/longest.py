"""The longest token, again and again, as a kernel: vocabularies of RWKV.

Tested by tests/model/test_vocab_rwkv.py.
"""

from __future__ import annotations

from .access import array_kernel, get_i32, get_u8, put_i32
from .trie import child


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
        node, id, end = 0, none, at + 1
        for i in range(at, n):
            node = child(slots, mask, node, get_u8(text, i))
            if node == 0:
                break
            found = get_i32(ids, node)
            if found >= 0:
                id, end = found, i + 1
        put_i32(out, n_out, id)
        n_out += 1
        at = end
    put_i32(out, 0, n_out - 1)
