"""The `lamella` command: calls the module of its subcommand.

Prints each error of the tree as one line on stderr. Exit statuses: 1 for errors, 2 for wrong flags,
3 for plans that do not fit or break strict placement, 4 and 5 for servers that could not go on or
stop by themselves (server/watchdog.py, server/app.py), 130 for Ctrl-C.
Tested by tests/cli/.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import importlib.metadata
import io
import logging
import os
import shlex
import sys
from collections.abc import Sequence
from functools import cache
from typing import Final

from ..base.errors import LamellaError, RequestError
from ..base.log import Lines, get_logger
from ..base.log_output import LogParams, is_json_log, set_up_log
from ..base.settings import CACHE
from .listings import add_completion_flag
from .parser import INTERRUPTED, Parser, notes

log = get_logger("cli")

OVERVIEW: Final = """\
Lamella runs language models (GGUF files) on your own machine.

  lamella chat                     talk with the small bundled model
  lamella run MODEL "a question"   get an answer
  lamella chat MODEL               talk with a model
  lamella serve MODEL              serve it over HTTP, as llama-server does
  lamella list                     show the downloaded models
  lamella doctor                   show and test the devices of this machine

MODEL is a GGUF file, or USER/REPO on Hugging Face, which is downloaded once.
`lamella help` shows all commands, `lamella help COMMAND` the flags of one.
"""

EPILOG: Final = """examples:
  lamella chat
  lamella run USER/REPO-GGUF "Why is the sky blue?"
  lamella run model.gguf -p "Once upon a time" -n 64
  lamella serve model.gguf --port 8080
  lamella embed encoder.gguf -f texts.txt -o vectors.npy
  lamella pull USER/REPO-GGUF:Q8_0
  lamella plan model.gguf --device sim:24GiB
  lamella explain model.gguf --html page.html
  lamella bench model.gguf -npl 1,8
  lamella doctor

`lamella help COMMAND` shows the flags of a command. Exit status: 0 for success, 1 for an error, 2
for wrong flags, 3 for a model that does not fit or breaks strict placement, 130 after Ctrl-C.
"""


# each is a module of this package with `add_flags(parser)` and `main(args)`
COMMANDS: Final = {
    "run": "answer a question or continue a text",
    "chat": "chat with a model in the terminal",
    "embed": "compute the vectors of texts, or rank documents for a query",
    "serve": "serve a model over HTTP, with the APIs of llama-server and OpenAI",
    "pull": "download a model",
    "list": "show the downloaded models",
    "show": "show what a model is: its architecture, size, template and license",
    "rm": "remove downloaded models",
    "plan": "show where a model would run and how much memory it needs, without loading it",
    "explain": "show each split and node of a model's graph, its device and the reason",
    "profile": "show where a model spends its time: by op, node and device",
    "bench": "measure a model's speed, with the tests of llama-bench",
    "archs": "list the architectures of models that Lamella runs",
    "doctor": "show and test the devices that Lamella can use on this machine",
}

_FILES: Final = "models are files, used as they are"
OTHER_COMMANDS: Final = {
    **dict.fromkeys(("server", "llama-server", "start"), "use `lamella serve`"),
    **dict.fromkeys(("cli", "llama-cli", "main", "generate"), "use `lamella run`"),
    **dict.fromkeys(("download", "get", "install"), "use `lamella pull`"),
    **dict.fromkeys(("remove", "delete", "uninstall"), "use `lamella rm`"),
    **dict.fromkeys(("models", "tags"), "use `lamella list`"),
    **dict.fromkeys(("info", "inspect"), "use `lamella show`"),
    "ps": "a model runs only while its `lamella serve` runs: GET /v1/models names it",
    "stop": "end `lamella serve` with Ctrl-C, or with the signal TERM",
    "cp": f"{_FILES}: -a NAME names one for clients",
    "create": f"{_FILES}: pass a system prompt with -sys and defaults as flags, or by --config",
    "push": "use `hf upload` of Hugging Face",
    **dict.fromkeys(("signin", "login"), "use `hf auth login`, or set HF_TOKEN"),
    **dict.fromkeys(("signout", "logout"), "use `hf auth logout`"),
    "complete": "use `lamella run`",
    "perplexity": "use llama.cpp's llama-perplexity",
    "tokenize": "POST /tokenize of `lamella serve`, or Model.tokenize in Python",
    **dict.fromkeys(("embedding", "embeddings", "rerank"), "use `lamella embed`"),
    "collect-env": "use `lamella doctor`",
    "run-batch": "send requests to `lamella serve`, which decodes them together",
    "quantize": "use llama.cpp's llama-quantize",
    "convert": "use llama.cpp's convert_hf_to_gguf.py",
}

CACHE_HELP: Final = (
    f"folder of compiled kernels and files of URLs, instead of the user's (or {CACHE.name})"
)
ALIASES: Final = {"list": ["ls"]}
USAGE: Final = {
    **{"doctor": "", "list": "[PART] ", "archs": "[PART] ", "pull": "MODEL ", "rm": "MODEL ... "},
    **{"run": "[MODEL [PROMPT]] ", "chat": "[MODEL [MESSAGE]] ", "embed": "[MODEL [TEXT]] "},
}


def parser(argv: Sequence[str]) -> Parser:
    """The parser for these arguments. The parsed `command` is the function to call."""
    top = Parser(
        prog="lamella",
        description="Run GGUF models on your own machine.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    version = importlib.metadata.version("lamella")
    top.add_version_flag(version)
    top.other_commands = OTHER_COMMANDS
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    top.commands = commands.choices
    for name, text in COMMANDS.items():
        aliases = ALIASES.get(name, [])
        sub = commands.add_parser(
            name,
            aliases=aliases,
            help=text,
            description=f"{text[0].upper()}{text[1:]}.",
            usage=f"lamella {name} {USAGE.get(name, '[MODEL] ')}[options]",
            epilog="Defaults are in parentheses. docs/flags.md also has flags without effect.",
        )
        if argv and argv[0] in (name, *aliases):
            # import only the module that is called: web server libraries are slow to import
            module = importlib.import_module(f".{name}", __package__)
            module.add_flags(sub)
            sub.add_argument("--cache-dir", metavar="DIR", help=CACHE_HELP)
            sub.add_config_flag(COMMANDS, _all_flags)
            add_completion_flag(sub, _shown_flags)
            sub.add_version_flag(version)
            sub.set_defaults(command=module.main, parser=sub, logs_info=name == "serve")
    return top


def command_parser(name: str) -> Parser:
    """The parser of a command, with all its flags."""
    found: Parser = parser([name]).commands[name]
    return found


@cache
def _all_flags() -> dict[str, dict[str, argparse.Action]]:
    """The flags of each command that set values. Slow: imports all commands."""
    return {name: command_parser(name).flags_with_values() for name in COMMANDS}


def _shown_flags() -> dict[str, list[str]]:
    """The flags that `--help` shows, for each command."""
    return {name: command_parser(name).shown_flags() for name in COMMANDS}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. Return the exit status."""
    argv = _without_help(sys.argv[1:] if argv is None else argv)
    _prepare_streams()
    gc.disable()  # imports make no garbage
    try:
        if not argv:
            sys.stdout.write(OVERVIEW)
            return 0
        top = parser(argv)
        if argv[0].startswith("-") and argv[0] not in top._option_string_actions:
            top.error(f"begin with a command, such as `lamella serve {shlex.join(argv)}`")
        args = top.parse_args(argv)
        _set_up_log(args)
        for note in [*notes(args), *args.parser.unknown_variables()]:
            _report(logging.WARNING, note)
        if args.cache_dir:
            CACHE.put(args.cache_dir)
        gc.freeze()  # modules live until the end: the garbage collector need not look at them
        gc.enable()
        status = _run(args)
        sys.stdout.flush()
        return status
    except LamellaError as e:
        _report(logging.CRITICAL, str(e))
        return e.exit_status
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        return INTERRUPTED
    except OSError as e:
        # stdout cannot be written any more: avoid a second error when Python flushes it at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(e, BrokenPipeError):  # a reader that closed the pipe is no error
            _report(logging.CRITICAL, str(e))
        return 1
    finally:
        gc.enable()


def _report(level: int, text: str) -> None:
    """Print a line on stderr, as JSON if the log is JSON."""
    if is_json_log():
        log.log(level, Lines(text))
    else:
        error = "error: " if level >= logging.ERROR else ""
        sys.stderr.write(f"lamella: {error}{text}\n")


def _without_help(argv: Sequence[str]) -> Sequence[str]:
    """Replace `help`, `help COMMAND` and `version` by flags."""
    if argv[:1] == ["help"]:
        return [*(name for name in argv[1:2] if name not in ("help", "version")), "--help"]
    return ["--version"] if argv[:1] == ["version"] else argv


def _run(args: argparse.Namespace) -> int:
    """Call the command. Errors about a field are usage errors of its flag, as the user typed it."""
    try:
        status: int = args.command(args)
        return status
    except RequestError as e:
        message = args.parser.in_flags(str(e))
        if message == str(e):
            raise
        _report(logging.CRITICAL, message)
        return 2


def _prepare_streams() -> None:
    """Open os.devnull for closed streams, which Python sets to None. Make invalid bytes of stdin
    lone surrogates, which `check_utf8` finds, and replace text that stdout cannot encode."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
    for stream, errors in ((sys.stdin, "surrogateescape"), (sys.stdout, "replace")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)


def _set_up_log(args: argparse.Namespace) -> None:
    """Log to stderr, as the flags and the environment say."""
    # informational messages are for terminals and for the log of a server
    is_wanted = sys.stderr.isatty() or args.logs_info
    params = args.log_params(args) if hasattr(args, "log_params") else LogParams()
    set_up_log(params, logging.INFO if is_wanted else logging.WARNING)
