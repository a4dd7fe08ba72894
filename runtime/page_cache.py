"""Opens the prompt cache of a model: the memory and the files for pages that leave the context.

Knows no HTTP. Tested by tests/runtime/test_prompt_cache.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from ..base.errors import RequestError
from ..model.context import Context
from ..model.page_files import PageFiles
from ..model.page_store import PageStore
from ..model.prefix_file import Identity
from .params import OpenParams
from .prefix_identity import adapters_identity, keys_identity

MIB: Final = 1 << 20
PENDING_SHARE: Final = 8  # a part of the memory is for pages that wait to be written
PENDING_MAX: Final = 256 * MIB


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
    if not params.prompt_cache_dir:
        return PageStore(limit)
    folder = Path(params.prompt_cache_dir)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as e:
        raise RequestError(f"prompt_cache_dir: {folder} cannot be made: {e.strerror or e}") from e
    files = PageFiles(
        folder,
        lambda: _identity(context, opened_with),
        [context.kv.page_bytes(g) for g in range(len(context.kv.all_groups))],
        context.pool.page_size,
        limit=params.prompt_cache_size * MIB,
        n_pending_max=PENDING_MAX if limit is None else min(limit // PENDING_SHARE, PENDING_MAX),
    )
    return PageStore(limit, files)


def _identity(context: Context, params: OpenParams) -> Identity:
    """The identity of all keys and values of a process. Salts and the scales of adapters are part
    of a page's key."""
    n_adapters = len(context.model.adapters.all)
    return {
        **keys_identity(context, params),
        "adapters": adapters_identity(context, (1.0,) * n_adapters),
    }
