"""Opens the prompt cache of a model: the memory and the files for pages that leave the context.

Knows no HTTP. Tested by tests/runtime/test_prompt_cache.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from ..base.errors import RequestError
from ..base.log import get_logger
from ..model.context import Context
from ..model.kv_prefix import TOKEN_BYTES
from ..model.page_files import PageFiles
from ..model.page_store import PageStore
from ..model.prefix_file import Identity
from .params import OpenParams
from .prefix_identity import adapters_identity, keys_identity

MIB: Final = 1 << 20
PENDING_SHARE: Final = 8  # a part of the memory is for pages that wait to be written
PENDING_MAX: Final = 256 * MIB

log = get_logger("cache")


def open_store(context: Context, opened_with: OpenParams) -> PageStore | None:
    """The pages that leave a context. None: they are lost. `opened_with` has all chosen
    values.

    Raises:
        RequestError: the folder cannot be made, or there is no memory for what is written to it.
    """
    params = opened_with.cache
    assert params.cache_ram is not None, "planning chooses it"
    if params.cache_ram == 0:
        if params.prompt_cache_dir:
            raise RequestError(
                "prompt_cache_dir: pages on their way to files need memory, and cache_ram is 0"
            )
        return None
    limit = None if params.cache_ram < 0 else params.cache_ram * MIB
    sizes = [context.kv.page_bytes(g) for g in range(len(context.kv.all_groups))]
    largest = max(sizes, default=0) + TOKEN_BYTES * context.pool.page_size
    if not params.prompt_cache_dir:
        return _checked(PageStore(limit), largest)
    folder = Path(params.prompt_cache_dir)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as e:
        raise RequestError(f"prompt_cache_dir: {folder} cannot be made: {e.strerror or e}") from e
    files = PageFiles(
        folder,
        lambda: _identity(context, opened_with),
        sizes,
        context.pool.page_size,
        limit=params.prompt_cache_size * MIB,
        n_pending_max=_pending_max(limit, largest),
    )
    return _checked(PageStore(limit, files), largest)


def _pending_max(limit: int | None, largest: int) -> int:
    """The bytes of pages that wait to be written: the largest one fits, if that leaves as many."""
    if limit is None:
        return max(PENDING_MAX, largest)
    usual = min(limit // PENDING_SHARE, PENDING_MAX)
    return max(usual, largest) if 2 * largest <= limit else usual


def _checked(store: PageStore, largest: int) -> PageStore:
    """Warn if the largest pages do not fit. Return the store."""
    room, files = store.n_room, store.files
    if room is not None and room < largest:
        _warn(largest, room, "they are lost when they leave the context")
    elif files is not None and files.n_pending_max < largest:
        _warn(largest, files.n_pending_max, "they are written to no file")
    return store


def _warn(n_bytes: int, room: int, effect: str) -> None:
    log.warning(
        "cache_ram: a page or the states of a prompt have %.1f MiB, room is for %.1f MiB: %s",
        n_bytes / MIB,
        room / MIB,
        effect,
    )


def _identity(context: Context, params: OpenParams) -> Identity:
    """The identity of all keys and values of a process. Salts and the scales of adapters are part
    of a page's key."""
    n_adapters = len(context.model.adapters.all)
    return {
        **keys_identity(context, params),
        "adapters": adapters_identity(context, (1.0,) * n_adapters),
    }
