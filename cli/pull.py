"""`lamella pull`: download a model, or a newer version of one from the hub.

Tested by tests/cli/test_models.py.
"""

from __future__ import annotations

import argparse
import sys

from ..base.errors import RequestError
from ..model.hub import cached_models
from .download import download, model_name
from .model_flags import add_model_argument, add_source_flags


def add_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("model")
    add_model_argument(group, default="")
    add_source_flags(group)


def main(args: argparse.Namespace) -> int:
    """Download a model. Return the exit status.

    Raises:
        RequestError: no model. ModelFileError, DownloadError: see `find_file`.
    """
    name = model_name(args)
    if name is None:
        raise RequestError("no model: name one, such as `lamella pull USER/REPO:Q4_K_M`")
    path = download(name, args, update=True)
    model = next((model for model in cached_models() if model.path == path), None)
    if model is None:
        sys.stdout.write(f"{path} is a file of this machine: there is nothing to download\n")
        return 0
    sys.stdout.write(
        f"{model.name} is in {path}\n  lamella chat {model.name}\n  lamella serve {model.name}\n"
    )
    return 0
