"""Files of pages: found by a later process, private, bounded, and refused once changed."""

from __future__ import annotations

import errno
import logging
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from lamella.base.errors import ModelFileError
from lamella.model import page_files
from lamella.model.page_files import Page, PageFiles, PageKey

IDENTITY = {"model": "abc", "type of keys": "F16"}
N_TOKENS = 4
SIZES = [24, 40]
SECONDS = 20.0
FILE = 600  # bytes of a file, at most


def key(i: int, group: int = 0) -> PageKey:
    return PageKey(bytes([i]) * 32, group)


def page(i: int, group: int = 0) -> Page:
    tokens = np.full(N_TOKENS, i, np.int32).tobytes()
    return Page(tokens, np.random.default_rng(i).integers(0, 256, SIZES[group], np.uint8))


@contextmanager
def opened(
    folder: Path, identity: dict[str, str] = IDENTITY, limit: int = 1 << 20
) -> Iterator[PageFiles]:
    folder.mkdir(exist_ok=True)
    files = PageFiles(folder, lambda: identity, SIZES, N_TOKENS, limit=limit, n_pending_max=1 << 16)
    files.start()
    until(lambda: files.is_ready)
    yield files
    files.close((), SECONDS)


def until(done: object) -> None:
    assert callable(done)
    end = time.monotonic() + SECONDS
    while not done():
        assert time.monotonic() < end
        time.sleep(0.001)


def fetched(files: PageFiles, *keys: PageKey) -> dict[PageKey, Page]:
    found = dict[PageKey, Page]()
    fetch = files.fetch(keys, found.__setitem__)
    assert fetch is not None
    fetch.future.result(SECONDS)
    assert fetch.is_over
    return found


def written(folder: Path, *numbers: int, limit: int = 1 << 20) -> None:
    with opened(folder, limit=limit) as files:
        for i in numbers:
            assert files.put(key(i), page(i))


def same(a: Page, b: Page) -> bool:
    return a.tokens == b.tokens and a.data.tobytes() == b.data.tobytes()


def test_a_later_process_finds_the_pages(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    with opened(folder) as files:
        files.put(key(1), page(1))
        files.put(key(1, 1), page(1, 1))
        files.close([(key(2), page(2))], SECONDS)
        assert files.counts.n_written == 3 and files.n_pending == 0
        assert not files.put(key(3), page(3))  # closed
    modes = {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()}
    assert modes == {0o600}
    with opened(folder) as files:
        keys = [key(1), key(1, 1), key(2)]
        assert all(map(files.has, keys)) and files.starting.is_over
        assert not files.has(key(3)) and not files.has(key(2, 1))
        found = fetched(files, *keys)
        assert same(found[key(1)], page(1)) and same(found[key(2)], page(2))
        assert same(found[key(1, 1)], page(1, 1))
        assert files.counts.n_bytes == sum(file.stat().st_size for file in folder.iterdir())
    with opened(folder, {**IDENTITY, "model": "other"}) as files:
        assert not any(map(files.has, keys))


def test_every_changed_byte_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    written(tmp_path, 1)
    (file,) = tmp_path.iterdir()
    raw = file.read_bytes()
    assert len(raw) < FILE
    with opened(tmp_path) as files:
        for i in range(len(raw)):
            file.write_bytes(raw[:i] + bytes([raw[i] ^ 1]) + raw[i + 1 :])
            files._names.add(file.name)
            assert not fetched(files, key(1))
            assert not file.exists() and not files.has(key(1))
        assert files.counts.n_refused == len(raw)
        for n in range(0, len(raw), 9):
            file.write_bytes(raw[:n])
            files._names.add(file.name)
            assert not fetched(files, key(1))
        file.write_bytes(raw)
        files._names.add(file.name)
        assert fetched(files, key(1))
    lines = [record.getMessage() for record in caplog.records]
    assert lines[-1] == f"a page of a prompt is refused and removed: {file.name}: is damaged"


def test_a_file_of_another_identity_or_page_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    written(tmp_path / "a", 1, 2)
    names = dict[int, str]()
    with opened(tmp_path / "a") as files:
        for i in (1, 2):
            names[i] = files._name(key(i))
    with opened(tmp_path / "b", {**IDENTITY, "model": "other"}) as files:
        other = tmp_path / "b" / files._name(key(1))
        other.write_bytes((tmp_path / "a" / names[1]).read_bytes())
        files._names.add(other.name)
        assert not fetched(files, key(1)) and files.counts.n_refused == 1
    assert "was saved with another model: abc; this is other" in caplog.messages[-1]
    os.replace(tmp_path / "a" / names[1], tmp_path / "a" / names[2])
    with opened(tmp_path / "a") as files:
        assert not fetched(files, key(2))
    assert "was saved with another prefix" in caplog.messages[-1]


def test_the_folder_is_bounded(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_bytes(bytes(1 << 16))
    limit = 10 * FILE
    for begin in (0, 40):
        with opened(tmp_path, limit=limit) as files:
            for i in range(begin, begin + 40):
                files.put(key(i), page(i))
                until(lambda: not files.n_pending)
                size = sum(f.stat().st_size for f in tmp_path.iterdir()) - (1 << 16)
                assert size <= limit + FILE
                assert size == files.counts.n_bytes
            assert files.has(key(begin + 39)) and not files.has(key(begin))
    assert (tmp_path / "notes.txt").exists()
    with opened(tmp_path, limit=limit // 4) as files:  # now less is allowed
        assert 0 < files.counts.n_bytes <= limit // 4


def test_used_files_stay(tmp_path: Path) -> None:
    written(tmp_path, *range(10))
    with opened(tmp_path) as files:
        for i in range(10):
            at = 1 if i == 3 else 100 + i
            os.utime(tmp_path / files._name(key(i)), (at, at))
        n_bytes = files.counts.n_bytes
        fetched(files, key(3))
    with opened(tmp_path, limit=n_bytes // 2) as files:
        assert files.has(key(3))


def test_half_written_files_are_removed(tmp_path: Path) -> None:
    old, new = (tmp_path / f".{'0' * 40}.{name}" for name in ("old", "new"))
    other = tmp_path / ".profile"
    for file in (old, new, other):
        file.touch()
    for file in (old, other):
        os.utime(file, (1, 1))
    with opened(tmp_path):
        assert new.exists() and other.exists() and not old.exists()


def test_a_full_disk_is_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with opened(tmp_path) as files, caplog.at_level(logging.WARNING):
        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", fails)
            for i in range(5):
                assert files.put(key(i), page(i))
            until(lambda: not files.n_pending)
        assert files.counts.n_lost == 5 and len(caplog.records) == 1
        assert "cannot be written: No space left on device" in caplog.text
        files.put(key(6), page(6))
        until(lambda: files.has(key(6)))


def test_an_identity_that_is_not_found_turns_files_off(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def identify() -> dict[str, str]:
        raise ModelFileError("gone")

    files = PageFiles(tmp_path, identify, SIZES, N_TOKENS, limit=1 << 20, n_pending_max=1 << 16)
    files.put(key(1), page(1))
    files.start()
    until(lambda: not files._thread.is_alive())
    assert not files.is_ready and files.n_pending == 0
    assert not files.put(key(2), page(2)) and files.fetch([key(2)], lambda *_: None) is None
    files.close([(key(1), page(1))], SECONDS)
    assert caplog.messages == ["no pages of prompts are read or written: gone"]


def test_a_page_that_can_never_be_written_keeps_no_other_from_it(tmp_path: Path) -> None:
    begin = time.monotonic()
    with opened(tmp_path) as files:
        files.n_pending_max = 2 * page(1).n_bytes
        large = Page(page(1).tokens, np.zeros(files.n_pending_max, np.uint8))
        files.close([(key(1), large), (key(2), page(2))], SECONDS)
        assert files.counts.n_written == 1 and files.has(key(2))
    assert time.monotonic() - begin < SECONDS / 2


def test_a_disk_that_hangs_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, 1)
    monkeypatch.setattr(page_files, "FETCH_S", 0.01)
    with opened(tmp_path) as files:
        hangs = [True]
        read = files._read

        def slow(key: PageKey, name: str) -> Page | None:
            until(lambda: not hangs[0])
            return read(key, name)

        monkeypatch.setattr(files, "_read", slow)
        fetch = files.fetch([key(1)], lambda *_: None)
        assert fetch is not None
        until(lambda: fetch.is_over)
        assert not fetch.future.done()
        assert files.fetch([key(1)], lambda *_: None) is None
        began = time.monotonic()
        files.close([(key(2), page(2))], 0.05)
        assert time.monotonic() - began < SECONDS / 2
        hangs[0] = False
        until(lambda: not files._thread.is_alive())
