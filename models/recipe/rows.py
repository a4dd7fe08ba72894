"""Packs documents into rows of tokens. Every row begins with a document, and no document is cut.

Rows have a few lengths of `n_ctx + 1` tokens: inputs are all tokens but the last, targets all but
the first. A row's first document is packed into the shortest length that holds it, as attention
over short rows is cheap. Tested by tests/recipe/test_vocabulary.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from corpus import Document
from vocabulary import EOS, Encoder

_WAITING: Final = 256  # documents of a length that are searched for the best fit

Row = tuple[npt.NDArray[np.uint16], npt.NDArray[np.bool_]]
Encoded = tuple[list[int], list[bool]]
Table = dict[int, Row]
"""n_ctx -> tokens [n_rows, n_ctx + 1], and a mask of the tokens to learn."""


def row_lengths(n_ctx: int) -> list[int]:
    """Return the lengths of rows for a model of `n_ctx`: that and three shorter ones."""
    return [n_ctx // 4, n_ctx * 3 // 8, n_ctx // 2, n_ctx]


def make_rows(documents: Iterable[Document], encoder: Encoder, lengths: Sequence[int]) -> Table:
    """Return all rows. A document longer than the longest row is omitted."""
    made: dict[int, list[Row]] = {length: [] for length in lengths}
    for length, row in _rows(documents, encoder, lengths):
        made[length].append(row)
    return {
        length: (np.stack([ids for ids, _ in rows]), np.stack([mask for _, mask in rows]))
        for length, rows in made.items()
        if rows
    }


def _rows(
    documents: Iterable[Document], encoder: Encoder, lengths: Sequence[int]
) -> Iterator[tuple[int, Row]]:
    waiting: dict[int, list[Encoded]] = {length: [] for length in lengths}
    for document in documents:
        ids, written = encoder.encode(document)
        length = next((length for length in lengths if len(ids) <= length + 1), None)
        if length is None:
            continue
        waiting[length].append((ids, written))
        if len(waiting[length]) == _WAITING:
            yield length, _row(waiting, length)
    for length in reversed(lengths):
        while waiting[length]:
            yield length, _row(waiting, length)


def _row(waiting: dict[int, list[Encoded]], length: int) -> Row:
    """Return a row of the oldest document of a length, filled with the longest ones that fit."""
    ids, written = waiting[length].pop(0)
    while True:
        room = length + 1 - len(ids)
        fitting = [
            (len(more), -i, of)
            for of, documents in waiting.items()
            for i, (more, _) in enumerate(documents)
            if len(more) <= room
        ]
        if not fitting:
            break
        _, i, of = max(fitting)
        more_ids, more_written = waiting[of].pop(-i)
        ids, written = ids + more_ids, written + more_written
    n_free = length + 1 - len(ids)
    return (
        np.array(ids + [EOS] * n_free, np.uint16),
        np.array(written + [False] * n_free, np.bool_),
    )


def write_rows(path: Path, table: Table) -> None:
    """Write the file as a whole: after an interruption it does not exist."""
    part = path.with_suffix(".part.npz")
    arrays: dict[str, Any] = {f"tokens_{n}": tokens for n, (tokens, _) in table.items()}
    arrays |= {f"mask_{n}": mask for n, (_, mask) in table.items()}
    np.savez(part, **arrays)
    part.replace(path)


def read_rows(path: Path) -> Table:
    with np.load(path) as file:
        lengths = sorted(int(name.split("_")[1]) for name in file if name.startswith("tokens"))
        return {n: (file[f"tokens_{n}"], file[f"mask_{n}"]) for n in lengths}
