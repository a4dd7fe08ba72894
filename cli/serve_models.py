"""Several models in one server: the router, and the processes of the models.

The router is `lamella serve --models-dir DIR` or `--models-preset FILE`. For each model in memory
it starts `lamella serve --router-socket FILE` with the flags of the model's preset and then its
own, which win. A single model that may sleep (`--sleep-idle-seconds`) has a router too.
Tested by tests/cli/test_serve_models.py.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from ..base.background import begin
from ..base.errors import LamellaError, RequestError
from ..base.priority import show_process_name
from ..model.shipped import shipped_model
from ..runtime.instance import EmbeddingInstance, Instance
from ..runtime.open import Admit
from ..runtime.params import OpenParams
from ..server.config import ServerConfig
from ..server.router.config import RouterConfig
from ..server.router.link import RouterLink, link_to_router
from ..server.router.preset import SUFFIX, Preset
from .download import model_name
from .flags import given, open_params
from .presets import CACHE, PresetReader
from .start import open_served, warn_of

N_CONNECTIONS_MAX: Final = 1_000_000
N_ERROR_CHARS: Final = 4000  # of an error that the router gets


def serve_models(args: argparse.Namespace, config: ServerConfig, router: RouterConfig) -> int:
    """Serve several models until a signal. Return the exit status.

    Raises:
        RequestError: an invalid option or preset.
    """
    if sys.platform == "win32":
        raise RequestError("several models in one server need unix sockets: Windows has none")
    OpenParams.make(given(args, OpenParams))
    is_single = not (router.models_dir or router.models_preset)
    find: Callable[[], Sequence[Preset]]
    if is_single:
        find = partial(_only_model, args, router)
    else:
        _check_no_model(args)
        shares_cache = hasattr(args, CACHE) and args.parser.is_typed(CACHE)
        find = partial(PresetReader(args.parser, shares_cache=shares_cache).presets, router)
    presets = find()  # errors are reported before slow imports
    from ..server.router.app import run_router  # noqa: PLC0415 - slow to import

    return run_router(config, router, presets, find, args.parser.typed, is_single=is_single)


def _check_no_model(args: argparse.Namespace) -> None:
    """Raise RequestError if an argument names a model beside those of the folder and the preset."""
    for dest in ("model_name", "model", "model_url", "hf_repo"):
        name = getattr(args, dest, None)
        if name is not None and args.parser.is_typed(dest):
            raise RequestError(
                f"{name} is one model, --models-dir and --models-preset have several: give one of "
                "these"
            )


def _only_model(args: argparse.Namespace, router: RouterConfig) -> Sequence[Preset]:
    source = model_name(args) or str(shipped_model())
    name = getattr(args, "alias", None) or Path(source).name.removesuffix(SUFFIX)
    only = Preset(name=name, source=source, sleep_idle_seconds=router.sleep_idle_seconds)
    return [only]


# --- the process of a model ---


def serve_member(
    args: argparse.Namespace, config: ServerConfig, defaults: Mapping[str, Any], socket: str
) -> int:
    """Serve a model on a socket, for a router, until it says so or is gone. Return the exit
    status."""
    link = link_to_router()
    show_process_name(f"lamella {getattr(args, 'alias', '')}")
    with _reporting(link):
        params = open_params(args)

    def load(admit: Admit) -> Instance | EmbeddingInstance:
        with _reporting(link):
            model = open_served(params, defaults, link, admit=admit)
        warn_of(model)
        return model

    loading = begin(partial(load, link.admitted), "lamella-open")
    from ..server.app import run_server  # noqa: PLC0415 - slow to import: the model loads meanwhile
    from ..server.state import Role  # noqa: PLC0415

    def announce(_: str) -> None:
        link.send(loaded=True)

    try:
        return run_server(
            _on_socket(config, socket),
            loading.result,
            load_again=partial(load, link.again),
            role=Role.MEMBER,
            announce=announce,
        )
    finally:
        if link.is_orphan:
            with suppress(OSError):
                os.rmdir(os.path.dirname(socket))  # fails if there are others


def _on_socket(config: ServerConfig, socket: str) -> ServerConfig:
    """The options of a server that only a router reaches. It keeps the keys, to know that clients
    have some; the router checks them."""
    return config.change(
        host=socket,
        # all are the router's, which closes those of slow clients
        max_connections=min(2 * config.max_connections, N_CONNECTIONS_MAX),
        ssl_cert_file="",
        ssl_key_file="",
        api_prefix="",
        static_path="",
        ui=False,
        cors_origins=("*",),
        cors_credentials=False,
    )


@contextmanager
def _reporting(link: RouterLink) -> Iterator[None]:
    """Tell the router of an error within the block."""
    try:
        yield
    except LamellaError as error:
        link.send(error=str(error)[:N_ERROR_CHARS])
        raise
