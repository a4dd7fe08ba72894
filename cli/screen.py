"""What a chat prints: content, reasoning, calls of tools and their results.

stdout has answers only, for pipes; all else goes to stderr. Reasoning is dimmed on a terminal with
colors, between marks on another one, and left out of a pipe. Knows no model.
Tested by tests/cli/test_screen.py.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any, Final, TextIO

from ..base.errors import CancelledError
from ..model.chat.message import ContentDelta, Delta, ReasoningDelta
from .toolbox import Outcome

DIM: Final = "\x1b[2m"
RESET: Final = "\x1b[0m"
# llama-cli's marks
BEGIN: Final = "[Start thinking]\n"
END: Final = "[End thinking]\n\n"
WIDTH: Final = 100  # most columns of a call in one line, and of a line of a result
N_LINES: Final = 6  # of a shown result


class Screen:
    """Prints to stdout and stderr."""

    def __init__(self, color: str = "auto") -> None:
        """`color` is on, off or auto: if the stream is a terminal that has colors."""
        self._dims_out = _has_colors(sys.stdout, color)
        self._dims_notes = _has_colors(sys.stderr, color)
        self._shows_reasoning = self._dims_out or sys.stdout.isatty()

    def answer(self, deltas: Iterable[Delta], *, stopped: str = "") -> None:
        """Print an answer as it arrives, and end its line. `call` prints calls.

        `stopped` is printed if Ctrl-C or `CancelledError` stops the answer; these are raised then.
        """
        last: type[Delta] | None = None  # what was printed last
        is_empty = True  # neither text nor calls
        try:
            for delta in deltas:
                is_empty = False
                match delta:
                    case ReasoningDelta(text) if self._shows_reasoning:
                        self._write(text if last is ReasoningDelta else self._begin + text)
                        last = ReasoningDelta
                    case ContentDelta(text):
                        self._write(self._end + text if last is ReasoningDelta else text)
                        last = ContentDelta
        except (KeyboardInterrupt, CancelledError):
            self._write(stopped)
            last = last or ContentDelta
            raise
        finally:
            self._write(self._end.rstrip("\n") if last is ReasoningDelta else "")
            self._write("\n" if last or is_empty else "")

    def call(self, name: str, arguments: str) -> None:
        """Print a call of a tool."""
        self.note(call_text(name, arguments))

    def result(self, outcome: Outcome) -> None:
        """Print what the model reads about a call, shortened."""
        mark = "error: " if outcome.is_error else ""
        self.note(self._dim(shortened(f"{mark}{outcome.text}", indent="  ")))

    def note(self, text: str) -> None:
        """Print a line that is not part of an answer."""
        sys.stderr.write(text + "\n")
        sys.stderr.flush()

    @property
    def _begin(self) -> str:
        return DIM if self._dims_out else BEGIN

    @property
    def _end(self) -> str:
        return f"{RESET}\n\n" if self._dims_out else f"\n{END}"

    def _dim(self, text: str) -> str:
        return f"{DIM}{text}{RESET}" if self._dims_notes else text

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


def call_text(name: str, arguments: str) -> str:
    """A call, readable and whole: `add(a=1, b=2)`, or an argument per line."""
    try:
        given = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict):
        return f"{visible(name)} {visible(arguments)}"
    line = visible(f"{name}({', '.join(f'{key}={_json(value)}' for key, value in given.items())})")
    if len(line) <= WIDTH:
        return line
    parts = [_argument(key, value) for key, value in given.items()]
    return visible("\n".join([name, *parts]))


def visible(text: str) -> str:
    """The text with control characters escaped, so that nothing in it is hidden by a terminal."""
    return "".join(
        c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text
    )


def shortened(text: str, indent: str = "") -> str:
    """The first lines of a text, each with at most `WIDTH` columns."""
    lines = visible(text).split("\n")
    shown = [line if len(line) <= WIDTH else f"{line[:WIDTH]} ..." for line in lines[:N_LINES]]
    n_more = len(lines) - len(shown)
    if n_more:
        shown.append(f"... ({n_more} more {'lines' if n_more > 1 else 'line'})")
    return "\n".join(indent + line for line in shown)


def _argument(key: str, value: Any) -> str:
    if not isinstance(value, str) or "\n" not in value:
        return f"  {key}={_json(value)}"
    lines = "\n".join(f"    {line}" for line in value.split("\n"))
    return f"  {key}=\n{lines}"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _has_colors(stream: TextIO, color: str) -> bool:
    if color != "auto":
        return color == "on"
    if not stream.isatty():
        return False
    from rich.console import Console  # noqa: PLC0415 - slow to import

    console = Console(file=stream)
    has = console.is_terminal and console.color_system is not None and not console.legacy_windows
    return has and not console.no_color
