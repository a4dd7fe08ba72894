"""The flags that commands share: those of declared options, and the model's.

A flag's `dest` is the option that it sets, so that an error of the option can name the flag
(`Parser.in_flags`). Knows no option: what each is, and what a value means, its declaration says.
Tested by tests/cli/test_flags.py.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from ..base.errors import RequestError
from ..base.options import Declared, Options, declarations, from_environment
from ..model.params import ContextParams, PlacementParams
from ..model.sampling import SamplingParams
from ..runtime.params import ModelParams, OpenParams
from .download import hub_model, model_path

SHORTCUT: Final = "{}, by a shortcut"  # the dest of an option's shortcut: it wins over the option


def add_options(
    parser: argparse.ArgumentParser,
    options: type[Options],
    *,
    only: Collection[str] | None = None,
    without: Collection[str] = (),
    defaults: Mapping[str, str] | None = None,
    description: str | None = None,
) -> None:
    """Add the flags of a class of options, under its title.

    Args:
        parser: of a command.
        options: their declarations. A flag that is not given sets nothing: see `given`.
        only: the names of the options to add. All if None.
        without: the names of options to leave out.
        defaults: for the help, the defaults of options whose default the command changes.
        description: a line below the title.
    """
    group = parser.add_argument_group(options.title, description)
    add_flags_of(group, options, only=only, without=without, defaults=defaults)


def add_flags_of(
    group: argparse._ActionsContainer,
    options: type[Options],
    *,
    only: Collection[str] | None = None,
    without: Collection[str] = (),
    defaults: Mapping[str, str] | None = None,
) -> None:
    """As `add_options`, into a group that exists."""
    for name, declared in declarations(options).items():
        if declared.option.flags and name not in without and (only is None or name in only):
            _add_flag(group, declared, (defaults or {}).get(name))


def _add_flag(group: argparse._ActionsContainer, declared: Declared, default: str | None) -> None:
    rule = declared.option
    how: dict[str, Any] = {"dest": declared.name, "default": argparse.SUPPRESS}
    if declared.type is bool:
        how["action"] = "store_false" if declared.default else "store_true"
    else:
        how["metavar"] = rule.metavar or "N"
        if rule.choices is None:
            how["type"] = _flag_type(declared)
        else:
            how["choices"] = rule.choices
        if rule.repeats:
            how["action"] = "extend"
    group.add_argument(*rule.flags, help=_help(declared, default), **how)
    for shortcut in rule.shortcuts:
        group.add_argument(
            *shortcut.flags,
            dest=SHORTCUT.format(declared.name),
            default=argparse.SUPPRESS,
            action="store_const",
            const=shortcut.value,
            help=shortcut.help,
        )


def _help(declared: Declared, default: str | None) -> str:
    text = default or declared.option.default_text
    if text is None and declared.type is not bool:
        value = declared.default
        text = f"{value:g}" if isinstance(value, float) else str(value)
    return f"{declared.option.help} ({text})" if text else declared.option.help


def _flag_type(declared: Declared) -> Callable[[str], Any]:
    """What argparse calls with a flag's text: a text that cannot be read is a usage error. Whether
    the value is valid is checked later, by the options themselves."""

    def parse(text: str) -> Any:
        try:
            return declared.parse(text)
        except ValueError as e:
            raise argparse.ArgumentTypeError(str(e)) from None

    return parse


def given(args: argparse.Namespace, options: type[Options]) -> dict[str, Any]:
    """The values that flags have set, else environment variables, by the option's name.

    Raises:
        RequestError: the text of a variable cannot be read.
    """
    found = from_environment(options)
    for name, declared in declarations(options).items():
        if hasattr(args, name):
            value = getattr(args, name)
            found[name] = tuple(value) if declared.option.repeats else value
        if hasattr(args, SHORTCUT.format(name)):
            found[name] = getattr(args, SHORTCUT.format(name))
    return found


# --- the model ---


def add_model_flags(parser: argparse.ArgumentParser, *, argument: bool = False) -> None:
    """Which model, how large, and where it runs. `argument`: the model may come without its -m."""
    add_model_flag(parser.add_argument_group(ModelParams.title), argument=argument)
    add_options(parser, ContextParams)
    add_options(parser, PlacementParams)


def add_model_flag(group: argparse._ArgumentGroup, *, argument: bool = False) -> None:
    """The model: a file, or one of Hugging Face. By default the one that comes with Lamella."""
    text = "GGUF file, the first of a split one (the small model that comes with Lamella)"
    one = group.add_mutually_exclusive_group()
    if argument:
        # without a default, which would take the place of what -m has given
        one.add_argument("model", metavar="MODEL", nargs="?", default=argparse.SUPPRESS, help=text)
        text = "the same, as a flag"
    one.add_argument("-m", "--model", metavar="FILE", help=text)
    one.add_argument(
        "-hf",
        "--hf-repo",
        type=hub_model,
        metavar="USER/REPO[:QUANT]",
        help="a model of Hugging Face, downloaded if it is not in the cache (:Q4_K_M, else the "
        "first there is)",
    )
    add = group.add_argument
    add("-hff", "--hf-file", metavar="FILE", help="with -hf: the file, whatever its quant is")
    add("--offline", action="store_true", help="with -hf: what the cache has, without the network")


def add_template_flags(group: argparse._ArgumentGroup) -> None:
    add_flags_of(group, ModelParams, only=("chat_template",))
    group.add_argument(
        "--chat-template-file",
        dest="chat_template",
        type=read_text,
        default=argparse.SUPPRESS,
        metavar="FILE",
        help="a file with the template",
    )


def open_params(
    args: argparse.Namespace, settled: Mapping[str, Any] | None = None, *, header_only: bool = False
) -> OpenParams:
    """What to open, from flags and environment. A model of Hugging Face is downloaded, or at least
    its header. `settled`: options that the command itself sets.

    Raises:
        RequestError: an invalid value. DownloadError: the model cannot be downloaded.
    """
    params = OpenParams.make({**given(args, OpenParams), **(settled or {})})
    # last: an invalid value must not be reported after a download
    return params.change(path=model_path(args, header_only=header_only))


# --- requests ---


def add_predict_flag(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "-n",
        "--predict",
        "--n-predict",
        dest="n_predict",
        type=int,
        default=-1,
        metavar="N",
        help="most tokens to generate; -1: until the model ends or the context is full (-1)",
    )


def add_sampling_flags(parser: argparse.ArgumentParser) -> None:
    """How tokens are chosen."""
    add_options(
        parser,
        SamplingParams,
        description="What the model's file recommends comes before the defaults shown.",
    )
    parser.add_argument(
        "--ignore-eos", action="store_true", help="go on after the model has ended the text"
    )


def sampling_given(args: argparse.Namespace) -> dict[str, Any]:
    """The fields of `SamplingParams` that flags or the environment have set. The model's file may
    recommend values for the others.

    Raises:
        RequestError: an invalid value.
    """
    found = given(args, SamplingParams)
    SamplingParams(**found)  # invalid values are reported before a model is opened
    return found


def unescape(text: str) -> str:
    r"""`\n`, `\t`, `\r`, `\\`, `\'`, `\"` and `\xHH` as the characters they stand for.

    Anything else stays as it is, as in llama.cpp.
    """
    plain = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"'}

    def character(match: re.Match[str]) -> str:
        code = match[1]
        return chr(int(code[1:], 16)) if len(code) > 1 else plain[code]

    return re.sub(r"\\([ntr\\'\"]|x[0-9a-fA-F]{2})", character, text)


def read_text(path: str) -> str:
    """A text file's content.

    Raises:
        RequestError: it cannot be read, or is no UTF-8.
    """
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as e:
        raise RequestError(f"{path} cannot be read: {e}") from e
