"""Pages of prefixes in files of a folder, up to a number of bytes: they survive the process.

A thread of its own reads and writes, so no other thread waits for a disk. A file is a saved prefix
(`prefix_file`) of one page. Its name is a digest of all that its bytes depend on, so only files of
the same identity are opened. The least recently used files are removed first, whatever process
wrote them. Faults of the disk cost pages, never an error. Knows no pools and no tensors.
Tested by tests/model/test_page_files.py.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from ..alloc.buffer import Bytes
from ..base.errors import LamellaError, RequestError
from ..base.log import get_logger
from ..base.priority import show_thread_name
from .prefix_file import Identity, Prefix, read_prefix, write_prefix

N_NAME: Final = 20  # bytes of a file's name, which has two digits for each
N_FILES_MAX: Final = 200_000
KEPT: Final = 0.9  # of the limit, once files are removed
STALE_S: Final = 3600.0  # age of a half-written file that no process writes any more
FETCH_S: Final = 5.0  # the longest wait for pages of a prompt

_NAME: Final = re.compile(rf"[0-9a-f]{{{2 * N_NAME}}}")
_HALF: Final = re.compile(rf"\.[0-9a-f]{{{2 * N_NAME}}}\..*")

log = get_logger("cache")


class PageKey(NamedTuple):
    """The digest of a prefix that ends with the page, and the group of layers."""

    chain: bytes
    group: int


class Page(NamedTuple):
    """The tokens of a page as bytes, int32, and the bytes of its cells in a group of layers."""

    tokens: bytes
    data: Bytes

    @property
    def n_bytes(self) -> int:
        return len(self.tokens) + self.data.nbytes


@dataclass(slots=True)
class FileCounts:
    """Counters. Any thread may read them: bytes of all files in the folder, and numbers of pages
    written, read, refused as damaged or of another identity, and lost as they were not written."""

    n_bytes: int = 0
    n_written: int = 0
    n_read: int = 0
    n_refused: int = 0
    n_lost: int = 0


class Fetch(NamedTuple):
    """Pages on their way from files to memory. The future is done when all have arrived."""

    future: Future[None]
    deadline: float

    @property
    def is_over(self) -> bool:
        """True if nothing more is worth the wait."""
        return self.future.done() or time.monotonic() > self.deadline


def _nothing() -> Fetch:
    future: Future[None] = Future()
    future.set_result(None)
    return Fetch(future, 0.0)


NOTHING: Final = _nothing()


class PageFiles:
    """The files of a folder, for one identity. `start` starts the thread, `close` ends it.

    Attributes:
        limit: the most bytes of all files.
        n_pending, n_pending_max: the bytes of pages that wait to be written, and their limit.
        is_ready: the identity is known; before, no page is found.
        starting: worth the wait at the start, as the folder has files.
    """

    def __init__(
        self,
        folder: Path,
        identify: Callable[[], Identity],
        page_bytes: Sequence[int],
        page_size: int,
        *,
        limit: int,
        n_pending_max: int,
    ) -> None:
        """`identify` returns the identity of all keys and values; the thread calls it. `page_bytes`
        are those of a page in each group of layers."""
        self.folder = folder
        self.limit = limit
        self.counts = FileCounts()
        self.n_pending = 0
        self.n_pending_max = n_pending_max
        self.is_ready = False
        self.starting = NOTHING
        self._identify = identify
        self._identity: Identity = {}
        self._digest = b""
        self._page_bytes = page_bytes
        self._page_size = page_size
        self._names = set[str]()
        self._pending = OrderedDict[PageKey, Page]()
        self._fetches = deque[Callable[[], None]]()
        self._last: Fetch | None = None
        self._changed = threading.Condition()
        self._closed = False
        self._is_full = False  # the last write failed
        self._thread = threading.Thread(target=self._run, name="lamella-cache", daemon=True)

    # --- for any thread ---

    def start(self) -> None:
        """Start the thread."""
        with suppress(OSError):
            if any(map(_NAME.fullmatch, os.listdir(self.folder))):
                self.starting = Fetch(Future(), time.monotonic() + FETCH_S)
        self._thread.start()

    def has(self, key: PageKey) -> bool:
        """True if a file has a page, as far as its name tells."""
        return self.is_ready and self._name(key) in self._names

    def get(self, key: PageKey) -> Page | None:
        """Return a page that waits to be written."""
        return self._pending.get(key)

    def put(self, key: PageKey, page: Page) -> bool:
        """Write a page later, unless it is there. Return False if too many wait."""
        if self.has(key):
            return True
        with self._changed:
            if self._closed or self.n_pending + page.n_bytes > self.n_pending_max:
                return False
            if key not in self._pending:
                self._pending[key] = page
                self.n_pending += page.n_bytes
            self._changed.notify_all()
        return True

    def fetch(
        self, keys: Sequence[PageKey], store: Callable[[PageKey, Page], None]
    ) -> Fetch | None:
        """Read pages and `store` them; damaged ones are refused. Return None if the disk hangs."""
        if self._last is not None and self._last.is_over and not self._last.future.done():
            return None
        future: Future[None] = Future()

        def read() -> None:
            try:
                self._fetch(keys, store)
            finally:
                future.set_result(None)

        self._last = Fetch(future, time.monotonic() + FETCH_S)
        with self._changed:
            if self._closed:
                return None
            self._fetches.append(read)
            self._changed.notify_all()
        return self._last

    def forget(self, keys: Sequence[PageKey]) -> None:
        """Remove the files of pages, later."""
        names = [self._name(key) for key in keys if self.has(key)]
        if names:
            self._names.difference_update(names)
            with self._changed:
                self._fetches.append(lambda: self._unlink(names))
                self._changed.notify_all()

    def close(self, pages: Iterable[tuple[PageKey, Page]], seconds: float) -> None:
        """Write what waits, then as many of `pages` as fit into the folder and the time. End the
        thread. May be called twice."""
        deadline = time.monotonic() + seconds
        if self._thread.is_alive() and not self._closed:
            n_left = KEPT * self.limit
            for key, page in pages:
                if page.n_bytes > self.n_pending_max:
                    continue  # there is never room
                n_left -= page.n_bytes
                if n_left < 0 or not self._put_in_time(key, page, deadline):
                    break
            with self._changed:
                self._changed.wait_for(self._is_idle, max(deadline - time.monotonic(), 0))
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(max(deadline - time.monotonic(), 0))

    def _put_in_time(self, key: PageKey, page: Page, deadline: float) -> bool:
        """Write a page later, once there is room. Return False if that fails or takes too long."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._closed or self.n_pending + page.n_bytes <= self.n_pending_max,
                max(deadline - time.monotonic(), 0),
            )
        return self.put(key, page) and not self._is_full and time.monotonic() < deadline

    def _is_idle(self) -> bool:
        return not self._pending and not self._fetches

    def _name(self, key: PageKey) -> str:
        raw = key.chain + key.group.to_bytes(4, "little")
        return blake2b(raw, key=self._digest, digest_size=N_NAME).hexdigest()

    # --- the thread ---

    def _run(self) -> None:
        show_thread_name()
        try:
            self._prepare()
        except (LamellaError, OSError) as e:
            log.warning("no pages of prompts are read or written: %s", e)
            with self._changed:
                self._closed = True
        finally:
            if not self.starting.future.done():
                self.starting.future.set_result(None)
        while (work := self._next()) is not None:
            try:
                work()
            except Exception:  # a bug of ours costs a page, not the thread
                log.exception("a page of a prompt is lost")

    def _prepare(self) -> None:
        self._identity = self._identify()
        raw = json.dumps(sorted(self._identity.items())).encode()
        self._digest = blake2b(raw, digest_size=64).digest()
        self._scan()
        self.is_ready = True

    def _next(self) -> Callable[[], None] | None:
        """The next work: a fetch, else a page to write; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or not self._is_idle())
            if self._closed:
                self._drop_all()
                return None
            if self._fetches:
                return self._fetches.popleft()
            key, page = next(iter(self._pending.items()))
        return lambda: self._write_pending(key, page)

    def _drop_all(self) -> None:
        self.counts.n_lost += len(self._pending)
        self._pending.clear()
        self.n_pending = 0
        fetches, self._fetches = self._fetches, deque()
        for each in fetches:
            each()

    def _write_pending(self, key: PageKey, page: Page) -> None:
        try:
            self._write(key, page)
        finally:
            with self._changed:
                if self._pending.pop(key, None) is not None:
                    self.n_pending -= page.n_bytes
                self._changed.notify_all()

    def _write(self, key: PageKey, page: Page) -> None:
        name = self._name(key)
        prefix = Prefix(np.frombuffer(page.tokens, np.int32), [page.data])
        try:
            n_bytes = write_prefix(self.folder / name, self._of_page(key), prefix)
        except RequestError as e:
            self.counts.n_lost += 1
            if not self._is_full:
                self._is_full = True
                log.warning("pages of prompts are lost until the folder can be written: %s", e)
            return
        self._is_full = False
        self._names.add(name)
        self.counts.n_written += 1
        self.counts.n_bytes += n_bytes
        if self.counts.n_bytes > self.limit or len(self._names) > N_FILES_MAX:
            with suppress(OSError):
                self._scan()

    def _fetch(self, keys: Sequence[PageKey], store: Callable[[PageKey, Page], None]) -> None:
        for key in keys:
            name = self._name(key)
            if self._closed or name not in self._names or (page := self._read(key, name)) is None:
                return  # those that follow are of no use
            store(key, page)

    def _read(self, key: PageKey, name: str) -> Page | None:
        size = self._page_bytes[key.group]
        path = self.folder / name
        try:
            prefix = read_prefix(path, self._of_page(key), self._page_size, lambda n: [size])
        except RequestError as e:
            self._names.discard(name)
            if isinstance(e.__cause__, OSError):
                if not isinstance(e.__cause__, FileNotFoundError):  # another process removed it
                    log.warning("a page of a prompt is lost: %s", e)
                return None
            self.counts.n_refused += 1
            log.warning("a page of a prompt is refused and removed: %s", e)
            self._unlink([name])
            return None
        if len(prefix.tokens) != self._page_size:
            return None
        with suppress(OSError):
            os.utime(path)  # the time of the last use
        self.counts.n_read += 1
        return Page(prefix.tokens.tobytes(), prefix.parts[0])

    def _of_page(self, key: PageKey) -> Identity:
        return {**self._identity, "prefix": key.chain.hex(), "group": str(key.group)}

    def _scan(self) -> None:
        """Look at all files. Remove the least recently used ones if they are too many."""
        files = list[tuple[float, int, str]]()
        with os.scandir(self.folder) as entries:
            for entry in entries:
                if _NAME.fullmatch(entry.name) or _HALF.fullmatch(entry.name):
                    with suppress(OSError):
                        if entry.is_file(follow_symlinks=False):
                            found = entry.stat(follow_symlinks=False)
                            files.append((found.st_mtime, found.st_size, entry.name))
        now = time.time()
        stale = [n for mtime, _, n in files if n.startswith(".") and mtime < now - STALE_S]
        files = sorted(each for each in files if not each[2].startswith("."))
        n_bytes, n_files, i = sum(size for _, size, _ in files), len(files), 0
        if n_bytes > self.limit or n_files > N_FILES_MAX:
            while n_bytes > KEPT * self.limit or n_files - i > KEPT * N_FILES_MAX:
                n_bytes -= files[i][1]
                i += 1
        self._unlink([*stale, *(name for _, _, name in files[:i])])
        self._names = {name for _, _, name in files[i:]}
        self.counts.n_bytes = n_bytes

    def _unlink(self, names: Iterable[str]) -> None:
        for name in names:
            with suppress(OSError):
                os.unlink(self.folder / name)
