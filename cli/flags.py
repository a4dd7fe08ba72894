"""The flags that commands share: flags of declared options, and flags that choose the model.

A flag's `dest` is the name of its option, so that errors can name the flag (`Parser.in_flags`).
Knows no option: declarations have the names, the help and the parsing.
Tested by tests/cli/test_flags.py.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from ..base.errors import GrammarError, RequestError
from ..base.log_output import LogParams
from ..base.options import Declared, Options, Shortcut, declarations, groups
from ..base.utf8 import read_text
from ..model.guide import GrammarSpec, validate
from ..runtime.params import ModelParams, OpenParams, RequestParams
from . import peer_options
from .device_list import add_device_list_flag
from .download import download, model_path
from .model_flags import add_model_argument, add_source_flags
from .peer_flags import add_peer_flags
from .texts import text_or_file

# only some commands have use for these
OF_TEMPLATES: Final = ("chat_template", "chat_template_kwargs", "reasoning", "reasoning_effort")
FOR_SERVERS: Final = ("alias", "prefill_assistant", "skip_chat_parsing")
FOR_CHATS: Final = (*OF_TEMPLATES, *FOR_SERVERS)
ONE_SEQUENCE: Final = {"n_parallel": 1}  # defaults of commands with one user


def add_options(
    parser: argparse.ArgumentParser,
    options: type[Options],
    *,
    only: Collection[str] | None = None,
    without: Collection[str] = (),
    defaults: Mapping[str, object] | None = None,
) -> None:
    """Add the flags of a class of options, under its title.

    Args:
        parser: the parser of a command.
        options: the declarations. An absent flag sets nothing: see `given`.
        only: names of the options to add; None: all.
        without: names of options to leave out.
        defaults: defaults to show in the help, of options whose default the command changes.
    """
    group = parser.add_argument_group(options.title, options.description)
    add_flags_of(group, options, only=only, without=without, defaults=defaults)


def add_flags_of(
    group: argparse._ActionsContainer,
    options: type[Options],
    *,
    only: Collection[str] | None = None,
    without: Collection[str] = (),
    defaults: Mapping[str, object] | None = None,
) -> None:
    """As `add_options`, for an existing group."""
    for name, declared in declarations(options).items():
        if declared.option.flags and name not in without and (only is None or name in only):
            _add_flag(group, declared, (defaults or {}).get(name))


def _add_flag(group: argparse._ActionsContainer, declared: Declared, default: object) -> None:
    rule = declared.option
    how: dict[str, Any] = {"dest": declared.name, "default": argparse.SUPPRESS}
    if declared.type is bool and rule.bare is None:
        how.update(action="store_const", const=True)
    else:
        names = (rule.metavar or "N").split()
        how["metavar"] = names[0]
        if len(names) > 1:  # a flag with several values, which `parse` gets one by one
            how.update(metavar=tuple(names), nargs=len(names))
        if rule.choices is None:
            how["type"] = _flag_type(declared.parse)
        else:
            how["choices"] = rule.choices
        if rule.repeats:
            how["action"] = "extend"
        if rule.bare is not None:
            how.update(nargs="?", const=rule.bare)
    action = group.add_argument(*rule.flags, help=_help(declared, default), **how)
    vars(action).update(env=rule.env, off=rule.off, never_empty=rule.never_empty)
    if rule.off:
        how.update(const=False, help=argparse.SUPPRESS)
        group.add_argument(*rule.off, **how)
    for shortcut in rule.shortcuts:
        _add_shortcut(group, declared, shortcut)


def _add_shortcut(
    group: argparse._ActionsContainer, declared: Declared, shortcut: Shortcut
) -> None:
    how: dict[str, Any] = {"action": "store_const", "const": shortcut.value}
    if shortcut.parse is not None:
        how = {"type": _flag_type(shortcut.parse), "metavar": shortcut.metavar or "N"}
        if declared.option.repeats:
            how["action"] = "extend"
    action = group.add_argument(
        *shortcut.flags,
        dest=declared.name,
        default=argparse.SUPPRESS,
        help=shortcut.help,
        **how,
    )
    if shortcut.env is not None:
        vars(action)["env"] = shortcut.env


def _help(declared: Declared, default: object) -> str:
    text = declared.option.default_text if default is None else str(default)
    is_switch = declared.option.off or (declared.option.bare and declared.type is bool)
    if is_switch and declared.default is not None:
        text = "on" if declared.default else "off"
    if text is None and declared.type is not bool:
        value = declared.default
        text = f"{value:g}" if isinstance(value, float) else str(value)
    help = f"{declared.option.help} ({text})" if text else declared.option.help
    return help.replace("%", "%%")  # argparse formats it


def _flag_type(parse_text: Callable[[str], Any]) -> Callable[[str], Any]:
    """The parser of a flag's text, for argparse. Invalid text is a usage error. The options check
    the value itself later."""

    def parse(text: str) -> Any:
        try:
            return parse_text(text)
        except (ValueError, RequestError) as e:
            raise argparse.ArgumentTypeError(str(e)) from None

    return parse


def given(args: argparse.Namespace, options: type[Options]) -> dict[str, Any]:
    """The values that flags, variables or the config file set, by the option's name."""
    found: dict[str, Any] = {}
    for name, declared in declarations(options).items():
        if declared.option.flags and hasattr(args, name):
            value = getattr(args, name)
            found[name] = tuple(value) if declared.option.repeats else value
    return found


def add_log_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the log. `args.log_params(args)` returns their values."""
    add_options(parser, LogParams)
    parser.set_defaults(log_params=lambda args: LogParams.make(given(args, LogParams)))


# --- the model ---


def add_model_flags(
    parser: argparse.ArgumentParser,
    *,
    without: Collection[str] = (),
    defaults: Mapping[str, object] | None = None,
    own: Collection[str] = (),
) -> None:
    """Add the argument MODEL and the flags of all groups of `OpenParams`.

    Args:
        parser: the parser of a command.
        without, defaults: see `add_options`.
        own: flags of the command that other programs use otherwise.
    """
    group = parser.add_argument_group(ModelParams.title)
    add_model_argument(group)
    add_source_flags(group)
    add_flags_of(group, ModelParams, without=(*FOR_CHATS, *without))
    for kind in groups(OpenParams):
        if kind is not ModelParams:
            add_options(parser, kind, without=without, defaults=defaults)
    add_device_list_flag(parser)
    add_log_flags(parser)
    add_peer_flags(parser, peer_options.MODEL + peer_options.OTHERS, own=own)


def add_template_flags(group: argparse._ArgumentGroup) -> None:
    add_flags_of(group, ModelParams, only=OF_TEMPLATES)
    group.add_argument(
        "--chat-template-file",
        dest="chat_template",
        type=read_text,
        default=argparse.SUPPRESS,
        metavar="FILE",
        help="read the chat template from a file",
    )


def add_system_flags(group: argparse._ArgumentGroup) -> None:
    """Add the flags of the system prompt: `system_prompt` reads it."""
    add = group.add_argument
    add("-sys", "--system-prompt", metavar="TEXT", help="instructions for the model")
    add("-sysf", "--system-prompt-file", metavar="FILE", help="read them from a file")


def system_prompt(args: argparse.Namespace) -> str | None:
    """The system prompt; None without one.

    Raises:
        RequestError: two, a file that cannot be read, or a text that is not valid UTF-8.
    """
    return text_or_file(
        "the system prompt",
        *("-sys", args.system_prompt, "-sysf", args.system_prompt_file),
        escapes=args.escape,
    )


def add_escape_flags(group: argparse._ArgumentGroup) -> None:
    """Add `--escape` and `--no-escape`, which set `escape`."""
    on = group.add_argument(
        *("-e", "--escape"),
        action="store_true",
        default=True,
        help=r"replace \n and other escapes in prompts (on)",
    )
    off = group.add_argument(
        "--no-escape", dest="escape", action="store_false", help=argparse.SUPPRESS
    )
    vars(on).update(off=off.option_strings)


def open_params(
    args: argparse.Namespace,
    *,
    defaults: Mapping[str, Any] | None = None,
    header_only: bool = False,
) -> OpenParams:
    """The parameters of the model to open, from flags, variables and config file. Downloads a model
    on Hugging Face, or only its header with `header_only`. `defaults`: the command's own default
    values.

    Raises:
        RequestError: an invalid value. DownloadError: the model cannot be downloaded.
    """
    params = OpenParams.make({**(defaults or {}), **given(args, OpenParams)})
    # download last: invalid values must be reported before
    params = params.change(path=model_path(args, header_only=header_only))
    if params.draft.draft_model:
        path = download(params.draft.draft_model, args, file="", header_only=header_only)
        params = params.change(draft_model=str(path))
    return params


# --- requests ---


def add_request_flags(parser: argparse.ArgumentParser, *, own: Collection[str] = ()) -> None:
    """Add the flags of all groups of `RequestParams`. `own`: see `add_model_flags`."""
    for kind in groups(RequestParams):
        add_options(parser, kind)
    add_peer_flags(parser, peer_options.REQUEST + peer_options.SPECULATIVE, own=own)


def request_defaults(args: argparse.Namespace) -> dict[str, Any]:
    """The options of `RequestParams` that flags, variables or the config file set. The model's file
    may recommend values for the others.

    Raises:
        RequestError: an invalid value. GrammarError: an invalid grammar.
    """
    found = given(args, RequestParams)
    # report invalid values before a model is opened
    grammar = RequestParams.make(found).grammar.spec
    if grammar is not None:
        _validate(grammar)
    return found


def _validate(grammar: GrammarSpec) -> None:
    """Check a grammar without a model. The error names the option."""
    kind = grammar.kind
    option = kind if kind in declarations(RequestParams) else "grammar"
    try:
        validate(grammar)
    except GrammarError as e:
        raise GrammarError(f"{option}: {str(e).removeprefix(f'{kind}: ')}") from None
