"""The arguments that name a model, and those of its download.

cli/download.py finds the model. Imports nothing slow. Tested by tests/cli/test_flags.py.
"""

from __future__ import annotations

import argparse
from typing import Final

from ..base.errors import ModelFileError, RequestError
from ..model.hub import is_hub, parse_model, read_url

FLAGS: Final = ("model", "model_url", "hf_repo")  # the flags that name a model


def add_model_argument(
    group: argparse._ActionsContainer, default: str = " (default: the bundled small model)"
) -> None:
    """Add the argument MODEL. `default` is the end of its help."""
    group.add_argument(
        "model_name",
        metavar="MODEL",
        nargs="?",
        default=argparse.SUPPRESS,
        help="a GGUF file (of a split model, the first one), USER/REPO[:QUANT] on Hugging Face, "
        f"the URL of a GGUF file, or a name that `lamella list` shows{default}",
    )


def add_text_argument(group: argparse._ActionsContainer, name: str, *, help: str) -> None:
    """Add an argument after MODEL: the prompt, or the first message."""
    group.add_argument("text", metavar=name, nargs="?", default=argparse.SUPPRESS, help=help)


def text_argument(args: argparse.Namespace) -> str | None:
    """The argument after MODEL; None without one. If a flag names the model, this is the first."""
    named = [dest for dest in FLAGS if getattr(args, dest) is not None]
    is_named = any(args.parser.is_typed(dest) for dest in named)
    if is_named and hasattr(args, "model_name") and not hasattr(args, "text"):
        args.text = args.model_name
        del args.model_name
    text: str | None = getattr(args, "text", None)
    return text


def add_source_flags(group: argparse._ArgumentGroup) -> None:
    """Add the flags that name the model, and those for its download."""
    one = group.add_mutually_exclusive_group()
    one.add_argument("-m", "--model", metavar="MODEL", help="the model, as a flag")
    one.add_argument(
        *("-hf", "-hfr", "--hf-repo"),
        type=hub_name,
        metavar="USER/REPO[:QUANT]",
        help="a model on Hugging Face, downloaded unless cached (default of QUANT: Q4_K_M, or else "
        "the first file)",
    )
    one.add_argument(
        *("-mu", "--model-url"), type=url_name, metavar="URL", help="the URL of a GGUF file"
    )
    add_download_flags(group)


def add_download_flags(group: argparse._ActionsContainer) -> None:
    """Add the flags for the download of a model."""
    add = group.add_argument
    add("-hff", "--hf-file", metavar="FILE", help="the file of a repository, instead of QUANT")
    token = add(
        *("-hft", "--hf-token"),
        metavar="TOKEN",
        help="your token of Hugging Face (that of HF_TOKEN, or of `hf auth login`)",
    )
    vars(token)["env"] = "$HF_TOKEN"
    add("--offline", action="store_true", help="use only cached models, no network")


def hub_name(text: str) -> str:
    """The parser of -hf: the name of a model that can only be on the hub."""
    try:
        source = read_url(text) or parse_model(text)
    except (ModelFileError, RequestError) as e:
        raise argparse.ArgumentTypeError(str(e)) from None
    if isinstance(source, str) and not is_hub(source):
        raise argparse.ArgumentTypeError(f"{text} is not on Hugging Face: give it with -mu")
    is_url = isinstance(source, str) or source.file
    return text if is_url else f"hf://{source}"  # there may be a file with this name


def url_name(text: str) -> str:
    """The parser of -mu."""
    if "://" not in text:
        raise argparse.ArgumentTypeError(f"{text!r}: must be the URL of a GGUF file, https://...")
    return text
