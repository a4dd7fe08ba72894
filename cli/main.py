"""The `lamella` command: run, chat and serve.

Errors of the tree become one line on stderr and status 1, wrong flags status 2, Ctrl-C 130.
Tested by tests/cli/.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import sys
from collections.abc import Sequence
from typing import Final

from ..base.errors import LamellaError
from . import chat, run, serve
from .flags import Parser

EPILOG: Final = """examples:
  lamella run -m model.gguf -p "Once upon a time" -n 64
  lamella chat -m model.gguf
  lamella serve -m model.gguf --port 8080
"""


def parser() -> Parser:
    """The parser of all commands; the parsed `run` is the command to call."""
    top = Parser(
        prog="lamella",
        description="Run GGUF models on your own machine.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    version = importlib.metadata.version("lamella")
    top.add_argument("--version", action="version", version=f"lamella {version}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, text, flags, command in (
        ("run", "continue a text", run.add_flags, run.run),
        ("chat", "talk with a model in the terminal", chat.add_flags, chat.chat),
        ("serve", "answer over HTTP, as llama-server and OpenAI do", serve.add_flags, serve.serve),
    ):
        sub = commands.add_parser(
            name,
            help=text,
            description=f"{text[0].upper()}{text[1:]}.",
            usage=f"lamella {name} -m FILE [options]",
        )
        flags(sub)
        sub.set_defaults(command=command, parser=sub)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status."""
    args = parser().parse_args(argv)
    try:
        status: int = args.command(args)
        sys.stdout.flush()
        return status
    except LamellaError as e:
        sys.stderr.write(f"lamella: error: {e}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        return run.INTERRUPTED
    except BrokenPipeError:
        # whoever read our output has gone; Python would complain once more when it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
