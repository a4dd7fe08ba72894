"""`lamella rm`: remove downloaded models. Files outside the caches are never touched.

Imports nothing slow. Tested by tests/cli/test_models.py.
"""

from __future__ import annotations

import argparse
import os
import sys

from ..base.errors import ModelFileError, RequestError
from ..base.units import size_text
from ..model.hub import CachedModel, cached_models, remove, select, similar
from ..model.shipped import NAME


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "models",
        metavar="MODEL",
        nargs="*",
        help="a name that `lamella list` shows, or a unique part of one",
    )
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")


def main(args: argparse.Namespace) -> int:
    """Remove models. Return the exit status: 1 if the user declines.

    Raises:
        ModelFileError: no cached model, or several, have a name; nothing is removed.
        RequestError: no terminal to ask, and no -y.
    """
    if not args.models:
        raise RequestError("no model: name one that `lamella list` shows")
    models = cached_models(partial=True)
    found = list(dict.fromkeys(_select(models, name) for name in args.models))
    names = ", ".join(model.name for model in found)
    size = size_text(sum(model.size for model in found))
    if not args.yes and not _confirms(f"remove {names} ({size})?"):
        sys.stderr.write("nothing was removed\n")
        return 1
    for model in found:
        sys.stdout.write(f"removed {model.name}: {size_text(remove(model))} freed\n")
    return 0


def _select(models: list[CachedModel], name: str) -> CachedModel:
    found = select(models, name)
    if found is not None:
        return found
    if os.path.lexists(name):
        raise ModelFileError(f"{name} is a file of yours: `lamella rm` removes only downloads")
    if name.lower() == NAME.removesuffix(".gguf").lower():
        raise ModelFileError(f"{name} comes with Lamella: it stays")
    close = similar(models, name)
    hint = f"; there are {close}" if close else "; `lamella list` shows all"
    raise ModelFileError(f"{name}: no downloaded model has this name{hint}")


def _confirms(question: str) -> bool:
    if not sys.stdin.isatty():
        raise RequestError(f"{question} there is no terminal to ask: repeat the command with -y")
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")
