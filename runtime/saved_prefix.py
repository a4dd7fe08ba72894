"""Saves evaluated prefixes of a running engine to files, and restores them.

A file has the identity of its keys and values (prefix_identity.py), the salt of the client that
they belong to, and the adapters in use. The engine's thread copies bytes between two steps; the
caller's reads and writes files. Knows no HTTP. Tested by tests/runtime/test_saved_prefixes.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..base.errors import RequestError
from ..model.context import Context
from ..model.kv_cells import part_sizes, read_parts, write_parts
from ..model.kv_prefix import PLAIN, PrefixIdentity
from ..model.prefix_file import Identity, Prefix, read_prefix, write_prefix
from .instance import Instance
from .prefix_identity import adapters_identity, keys_identity


class Saved(NamedTuple):
    """The tokens of a saved or restored prefix, and the size of its file in bytes."""

    tokens: Sequence[int]
    n_bytes: int


def save_prefix(
    instance: Instance, path: Path, tokens: Sequence[int], identity: PrefixIdentity = PLAIN
) -> Saved:
    """Write the longest prefix of `tokens` that the pool holds to a file, or replace the file.

    Raises:
        RequestError: the pool holds none, or the file cannot be written.
        ModelFileError: the model's files cannot be read any more.
        ClosedError: the engine is closed.
    """
    engine = instance.engine

    def read(context: Context) -> Prefix:
        seq = engine.prefixes.tree.find(tokens, identity)
        try:
            parts = read_parts(context.all_groups, seq) if seq.length else ()
            return Prefix(np.array(tokens[: seq.length], np.int32), parts)
        finally:
            seq.free()

    of_file = _of_file(instance, identity)
    prefix = engine.call(read)
    if not len(prefix.tokens):
        raise RequestError(f"{path.name}: none of the {len(tokens)} tokens is in memory any more")
    return Saved(prefix.tokens.tolist(), write_prefix(path, of_file, prefix))


def restore_prefix(instance: Instance, path: Path, identity: PrefixIdentity = PLAIN) -> Saved:
    """Add the prefix of a file to the pool: requests that begin with it reuse it, with equal bits.

    Raises:
        RequestError: there is no such file, or it is damaged, too long or of another identity.
        OutOfMemoryError: the pool is too small.
        ModelFileError: the model's files cannot be read any more.
        ClosedError: the engine is closed.
    """
    engine, context = instance.engine, instance.context

    def sizes_of(n: int) -> list[int]:
        return part_sizes(context.all_groups, context.pool, n)

    prefix = read_prefix(path, _of_file(instance, identity), instance.n_ctx, sizes_of)
    tokens = prefix.tokens.tolist()

    def write(context: Context) -> None:
        seq = context.pool.new_sequence()
        try:
            context.append(seq, len(tokens))
            seq.prepare(len(tokens), len(tokens))
            if seq.states is not None:
                seq.states.restore(len(tokens))
            write_parts(context.all_groups, seq, prefix.parts)
            engine.prefixes.tree.insert(tokens, seq, ended=True, identity=identity)
        finally:
            seq.free()

    engine.call(write, n_tokens=len(tokens))
    return Saved(tokens, path.stat().st_size)


def forget_prefix(
    instance: Instance, tokens: Sequence[int], identity: PrefixIdentity = PLAIN
) -> int:
    """Remove a prefix from the pool, but for what others share. Return the tokens removed."""
    engine = instance.engine
    return engine.call(lambda _: engine.prefixes.forget(tokens, identity))


def _of_file(instance: Instance, identity: PrefixIdentity) -> Identity:
    return {
        **keys_identity(instance.context, instance.params),
        "salt": identity.salt,
        "adapters": adapters_identity(instance.context, identity.lora),
    }
