"""Pages in memory: the least recently used leave first, and the limit holds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lamella.model.page_files import Page, PageFiles, PageKey
from lamella.model.page_store import PageStore

SIZE = 100


def key(i: int) -> PageKey:
    return PageKey(bytes([i]) * 32, 0)


def page(i: int, size: int = SIZE) -> Page:
    return Page(bytes(4), np.full(size - 4, i, np.uint8))


def reads(i: int) -> Callable[[], Page]:
    return lambda: page(i)


def kept(store: PageStore) -> list[int]:
    """The newest first."""
    return [found.chain[0] for found, _ in store.newest()]


def test_the_least_recently_used_pages_leave() -> None:
    store = PageStore(3 * SIZE)
    for i in (1, 2, 3):
        store.keep(key(i), SIZE, reads(i))
    store.keep(key(1), SIZE, lambda: pytest.fail("it is there already"))
    assert kept(store) == [1, 3, 2]
    store.use([key(2), key(3)])
    assert kept(store) == [2, 3, 1]
    store.keep(key(4), SIZE, reads(4))
    assert kept(store) == [4, 2, 3]
    assert store.n_bytes == 3 * SIZE
    assert (store.counts.n_stored, store.counts.n_dropped) == (4, 1)
    found = store.peek(key(2))
    assert found is not None and (found.data == 2).all()
    assert store.peek(key(1)) is None and not store.has(key(1))


def test_a_page_that_never_fits_is_not_read() -> None:
    store = PageStore(SIZE - 1)
    store.keep(key(1), SIZE, lambda: pytest.fail("it does not fit"))
    assert len(store) == 0 and store.counts.n_dropped == 1


def test_no_limit() -> None:
    store = PageStore(None)
    for i in range(200):
        store.keep(key(i), SIZE, reads(i))
    assert len(store) == 200 and store.n_bytes == 200 * SIZE


def test_forgotten_pages_give_their_bytes_back() -> None:
    store = PageStore(5 * SIZE)
    for i in (1, 2, 3):
        store.put(key(i), page(i))
    store.forget([key(2), key(9)])
    assert kept(store) == [3, 1] and store.n_bytes == 2 * SIZE


def test_pages_that_wait_for_a_disk_count(tmp_path: Path) -> None:
    # the thread does not run, so all pages wait
    files = PageFiles(tmp_path, dict, [SIZE], 1, limit=1 << 20, n_pending_max=2 * SIZE)
    store = PageStore(5 * SIZE, files)
    for i in range(9):
        store.keep(key(i), SIZE, reads(i))
        assert store.n_bytes <= 5 * SIZE
    assert kept(store) == [8, 7, 6]
    assert files.n_pending == 2 * SIZE
    waiting = [i for i in range(6) if store.has(key(i))]
    assert waiting == [0, 1] and store.counts.n_dropped == 4
