"""What a user enters in a chat: lines, and blocks of lines between triple quotes.

Knows no model and no command. Tested by tests/cli/test_chat_input.py.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import platformdirs

from ..base.utf8 import BOM

if TYPE_CHECKING:
    from prompt_toolkit.history import History

QUOTES: Final = '"""'
PROMPT: Final = "> "
MORE: Final = ". "  # the prompt inside a block

ReadLine = Callable[[str], str]  # returns a line, from its prompt; EOFError at the end


class Entry(NamedTuple):
    """A text that the user entered. A quoted one is a message, even if it looks like a command."""

    text: str
    is_quoted: bool = False


def entries(read: ReadLine, on_interrupt: Callable[[], None]) -> Iterator[Entry]:
    """What the user enters, until the input ends. Ctrl-C drops the text typed so far."""
    while True:
        try:
            yield _entry(read)
        except KeyboardInterrupt:
            on_interrupt()
        except EOFError:
            return


def _entry(read: ReadLine) -> Entry:
    """A line, or a block. The end of the input ends a block too."""
    line = read(PROMPT).strip()
    if not line.startswith(QUOTES):
        return Entry(line)
    lines = [line.removeprefix(QUOTES)]
    try:
        while not lines[-1].rstrip().endswith(QUOTES):
            lines.append(read(MORE))
    except EOFError:
        lines.append(QUOTES)
    return Entry("\n".join(lines).rstrip().removesuffix(QUOTES).strip(), is_quoted=True)


# --- where lines come from ---


def pipe_reader() -> ReadLine:
    """Reads lines of stdin."""

    def read(_: str) -> str:
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        return line.rstrip("\r\n").removeprefix(BOM)

    return read


def terminal_reader(commands: Sequence[str]) -> ReadLine:
    """Reads lines of a terminal, with line editing and a history. A paste of several lines is one
    line with newlines in it."""
    # slow to import, and pipes need none of it
    from prompt_toolkit import PromptSession  # noqa: PLC0415
    from prompt_toolkit.completion import WordCompleter  # noqa: PLC0415

    session: PromptSession[str] = PromptSession(
        history=_history(Path(platformdirs.user_state_dir("lamella")) / "chat_history"),
        completer=WordCompleter(list(commands), sentence=True),
        complete_while_typing=False,
    )
    return session.prompt


def _history(path: Path) -> History:
    """The input history, in a file if it can be written."""
    from prompt_toolkit.history import FileHistory, InMemoryHistory  # noqa: PLC0415

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600))
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(path))
