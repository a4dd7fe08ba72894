"""PLaMo 2 as a kernel: the tokens with the lowest sum of costs, found from the end of the text.

Tested by tests/model/test_vocab_plamo2.py.
"""

from __future__ import annotations

from typing import Final

from .access import array_kernel, get_i32, get_i64, get_u8, put_i32, put_i64, shared
from .trie import child
from .utf8 import n_bytes

UNKNOWN_COST: Final = 10_000_000  # of a character as bytes
UNUSABLE_COST: Final = 20_000_000  # a token of this cost is never used


@shared
def _continues(byte):
    """1 for a byte that is not the first of a character, else 0."""
    return 1 if byte & 0xC0 == 0x80 else 0


@array_kernel
def vocab_plamo2(text, n, slots, mask, ids, costs, bytes, best, ends, tokens, out):
    """Write the number of ids and the ids. Of equal sums, the longest first token wins.

    Args:
        text: valid UTF-8, `n` bytes.
        slots, mask, ids: the trie of the tokens.
        costs: int64s by id.
        bytes: int32s, the ids of the 256 bytes.
        best, ends, tokens: memory for `n + 1` int64s, int32s and int32s.
        out: int32s, room for `n + 1`.
    """
    put_i64(best, n, 0)
    for at in range(n - 1, -1, -1):
        if _continues(get_u8(text, at)) != 0:
            continue
        end = at + n_bytes(get_u8(text, at))
        total, token, node = get_i64(best, end) + UNKNOWN_COST, -1, 0
        for i in range(at, n):
            node = child(slots, mask, node, get_u8(text, i))
            if node == 0:
                break
            id = get_i32(ids, node)
            if id < 0 or get_i64(costs, id) >= UNUSABLE_COST:
                continue
            if i + 1 < n and _continues(get_u8(text, i + 1)) != 0:
                continue
            found = get_i64(best, i + 1) + get_i64(costs, id)
            if found <= total:
                total, token, end = found, id, i + 1
        put_i64(best, at, total)
        put_i32(ends, at, end)
        put_i32(tokens, at, token)
    at, n_out = 0, 1
    while at < n:
        end, token = get_i32(ends, at), get_i32(tokens, at)
        if token >= 0:
            put_i32(out, n_out, token)
            n_out += 1
        else:
            for i in range(at, end):
                put_i32(out, n_out, get_i32(bytes, get_u8(text, i)))
                n_out += 1
        at = end
    put_i32(out, 0, n_out - 1)
