"""The `lamella` command: run, chat and serve.

Errors of the tree become one line on stderr and status 1, wrong flags status 2, Ctrl-C 130.
Tested by tests/cli/.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import os
import sys
from collections.abc import Sequence
from typing import Final

from ..base.errors import LamellaError
from .flags import INTERRUPTED, Parser

EPILOG: Final = """examples:
  lamella run -m model.gguf -p "Once upon a time" -n 64
  lamella chat -m model.gguf
  lamella serve -m model.gguf --port 8080
"""


# each is a module of this package with `add_flags(parser)` and `main(args)`
COMMANDS: Final = {
    "run": "continue a text",
    "chat": "talk with a model in the terminal",
    "serve": "answer over HTTP, as llama-server and OpenAI do",
}


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
            usage=f"lamella {name} -m FILE [options]",
        )
        if name in argv[:1]:
            # only the one that is called: a web server's libraries take longer than a short answer
            module = importlib.import_module(f".{name}", __package__)
            module.add_flags(sub)
            sub.set_defaults(command=module.main, parser=sub)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status."""
    argv = sys.argv[1:] if argv is None else argv
    args = parser(argv).parse_args(argv)
    try:
        status: int = args.command(args)
        sys.stdout.flush()
        return status
    except LamellaError as e:
        sys.stderr.write(f"lamella: error: {e}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        return INTERRUPTED
    except BrokenPipeError:
        # whoever read our output has gone; Python would complain once more when it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
