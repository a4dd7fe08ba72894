"""The `lamella` command: run, chat, serve, plan, explain, profile, bench and doctor.

Errors of the tree become one line on stderr and status 1, wrong flags and plans that cannot be
kept status 2, Ctrl-C 130.
Tested by tests/cli/.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import logging
import os
import sys
from collections.abc import Sequence
from typing import Final

from ..base.errors import DoesNotFitError, LamellaError, PlacementError, RequestError
from .parser import INTERRUPTED, Parser

EPILOG: Final = """examples:
  lamella chat
  lamella run -m model.gguf -p "Once upon a time" -n 64
  lamella chat -m model.gguf
  lamella serve -m model.gguf --port 8080
  lamella plan model.gguf --device sim:24GiB
  lamella explain model.gguf --html page.html
  lamella bench -m model.gguf -npl 1,8
  lamella doctor
"""


# each is a module of this package with `add_flags(parser)` and `main(args)`
COMMANDS: Final = {
    "run": "continue a text",
    "chat": "talk with a model in the terminal",
    "serve": "answer over HTTP, as llama-server and OpenAI do",
    "plan": "show where a model would run and what memory it takes, before it is loaded",
    "explain": "show every split and node of a model's graph, and why it runs where it does",
    "profile": "show where a model's time goes",
    "bench": "measure how fast a model is, as llama-bench does",
    "doctor": "show what Lamella can use here, and test it",
}

REFUSED: Final = 2  # the exit status of what its plan does not allow
USAGE: Final = {"doctor": ""} | dict.fromkeys(("plan", "explain", "profile"), "[MODEL | -hf REPO] ")


def parser(argv: Sequence[str]) -> Parser:
    """The parser for these arguments; the parsed `command` is the function to call."""
    top = Parser(
        prog="lamella",
        description="Run GGUF models on your own machine.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    version = importlib.metadata.version("lamella")
    top.add_argument("--version", action="version", version=f"lamella {version}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, text in COMMANDS.items():
        sub = commands.add_parser(
            name,
            help=text,
            description=f"{text[0].upper()}{text[1:]}.",
            usage=f"lamella {name} {USAGE.get(name, '[-m FILE | -hf REPO] ')}[options]",
        )
        if name in argv[:1]:
            # only the one that is called: a web server's libraries take longer than a short answer
            module = importlib.import_module(f".{name}", __package__)
            module.add_flags(sub)
            sub.set_defaults(command=module.main, parser=sub, tells=name == "serve")
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status."""
    argv = sys.argv[1:] if argv is None else argv
    _open_closed_streams()
    try:
        args = parser(argv).parse_args(argv)
        # what is good to know: for who looks on, and in the log of a server
        _log_to_stderr(logging.INFO if sys.stderr.isatty() or args.tells else logging.WARNING)
        status = _run(args)
        sys.stdout.flush()
        return status
    except LamellaError as e:
        sys.stderr.write(f"lamella: error: {e}\n")
        return REFUSED if isinstance(e, DoesNotFitError | PlacementError) else 1
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        return INTERRUPTED
    except OSError as e:
        # nobody takes our output any more; Python would complain once more when it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(e, BrokenPipeError):  # a reader who has had enough is no error
            sys.stderr.write(f"lamella: error: {e}\n")
        return 1


def _run(args: argparse.Namespace) -> int:
    """Call the command. What is wrong with a field is told of the flag, which is what was typed."""
    try:
        status: int = args.command(args)
        return status
    except RequestError as e:
        raise RequestError(args.parser.in_flags(str(e))) from e


def _open_closed_streams() -> None:
    """A program can be started without stdin, stdout or stderr; Python has None for them then."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def _log_to_stderr(level: int) -> None:
    """What goes wrong inside without being the end, and what LAMELLA_DEBUG asks for."""
    logger = logging.getLogger("lamella")
    logger.setLevel(level)
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("lamella: %(message)s"))
        logger.addHandler(handler)
