"""A trie over bytes in a hash table: finds all tokens that a text starts with, shortest first.

A node is a number; the root is 0. A slot of the table is 0, or `key + 1 << 32 | child` with the key
`node << 8 | byte`. The number of slots is a power of two. Tested by tests/model/test_vocab_trie.py.
"""

from __future__ import annotations

from typing import Final

from .access import array_kernel, get_i32, get_i64, get_u8, put_i32, put_i64, shared

N_NODES_MAX: Final = 1 << 23  # a key has 31 bits
_MIX: Final = 0x5851F42D
_NODE_MASK: Final = 0xFFFFFFFF


@shared
def slot_of(slots, mask, key):
    """The key's slot, or the empty one where it belongs. `mask`: the number of slots - 1."""
    slot = ((key * _MIX) >> 20) & mask
    while True:
        entry = get_i64(slots, slot)
        if entry == 0 or (entry >> 32) == key + 1:
            return slot
        slot = (slot + 1) & mask


@shared
def child(slots, mask, node, byte):
    """The child of a node, or 0."""
    return get_i64(slots, slot_of(slots, mask, node << 8 | byte)) & _NODE_MASK


@shared
def longest_token(text, begin, end, slots, mask, ids):
    """The longest token at `begin` that ends by `end`: its id << 32 | its end; -1: there is none.

    `ids`: int32s, the id of the token that ends at each node, or -1.
    """
    found, node = -1, 0
    for i in range(begin, end):
        node = child(slots, mask, node, get_u8(text, i))
        if node == 0:
            break
        id = get_i32(ids, node)
        if id >= 0:
            found = (id << 32) | (i + 1)
    return found


@array_kernel
def vocab_trie(data, begins, ends, n, wanted, slots, mask, ids, n_ids, out):
    """Add the texts that `wanted` (uint8s) selects to an empty trie. The first of equal ones wins.

    Args:
        data, begins, ends: the bytes of texts; text `i` is from `begins[i]` to `ends[i]` (int64s).
        slots: int64s, all 0.
        ids: int32s, all -1; becomes the id of the text that ends at a node.
        out: int64, becomes the number of nodes; 0 if there are more than `n_ids`.
    """
    n_nodes = 1
    put_i64(out, 0, 0)
    for id in range(n):
        if get_u8(wanted, id) == 0:
            continue
        node = 0
        for i in range(get_i64(begins, id), get_i64(ends, id)):
            key = node << 8 | get_u8(data, i)
            slot = slot_of(slots, mask, key)
            node = get_i64(slots, slot) & _NODE_MASK
            if node == 0:
                if n_nodes == n_ids:
                    return
                node = n_nodes
                put_i64(slots, slot, ((key + 1) << 32) | node)
                n_nodes += 1
        if node != 0 and get_i32(ids, node) < 0:
            put_i32(ids, node, id)
    put_i64(out, 0, n_nodes)
