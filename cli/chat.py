"""`lamella chat`: chat with a model in the terminal, or through a pipe.

In a terminal: line editing, a saved history, Ctrl-C stops the answer but not the program. Through a
pipe: one line in, one answer out. Tested by tests/cli/test_chat.py.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import platformdirs
from prompt_toolkit import PromptSession
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.history import FileHistory, History, InMemoryHistory

from ..base.errors import CancelledError, LamellaError, RequestError
from ..base.options import declarations
from ..runtime.instance import Instance
from ..runtime.params import RequestParams
from .conversation import Conversation
from .flags import (
    add_model_flags,
    add_request_flags,
    add_template_flags,
    open_params,
    request_defaults,
)
from .start import open_with_progress
from .texts import argument

HELP: Final = """\
/help                 show this help
/reset                start a new conversation
/regen                answer the last question again
/save FILE            save the conversation
/load FILE            continue a saved conversation
/set NAME=VALUE       change a parameter, for example temperature=0.2
/set                  show the parameters
/exit                 exit (also Ctrl-D)
Ctrl-C stops an answer."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("conversation")
    add = group.add_argument
    add("-sys", "--system-prompt", metavar="TEXT", help="instructions for the model")
    add("-p", "--prompt", metavar="TEXT", help="the first message")
    add_template_flags(group)
    add_model_flags(parser)
    add_request_flags(parser)


def main(args: argparse.Namespace) -> int:
    """Chat until the input ends. Return the exit status."""
    defaults = request_defaults(args)
    system = argument("the system prompt", args.system_prompt or "")
    first = None if args.prompt is None else argument("the prompt", args.prompt)
    with open_with_progress(open_params(args), defaults) as instance:
        conversation = Conversation(
            instance,
            instance.request_params(),
            system=system,
        )
        session = _Session(conversation, interactive=sys.stdin.isatty() and sys.stdout.isatty())
        if first is not None:
            session.handle(first)
        for line in session.lines(instance):
            if not session.handle(line):
                break
    return 0


class _Session:
    """Reads lines, executes commands, prints answers."""

    def __init__(self, conversation: Conversation, interactive: bool) -> None:
        self._conversation = conversation
        self._interactive = interactive
        self._left_out = False  # True once the user was notified
        self._commands: dict[str, Callable[[str], None]] = {
            "/help": lambda _: self._print_note(HELP),
            "/reset": self._reset,
            "/regen": self._regen,
            "/save": self._save,
            "/load": self._load,
            "/set": self._set,
        }

    def lines(self, instance: Instance) -> Iterator[str]:
        """The lines that the user enters, until the input ends."""
        if not self._interactive:
            for line in sys.stdin:
                yield line.rstrip("\r\n")
            return
        self._print_note(
            f"{instance.alias}, {instance.n_ctx} tokens of context. /help shows commands."
        )
        prompt = _prompt_session([*self._commands, "/exit"])
        while True:
            try:
                yield prompt.prompt("> ")
            except KeyboardInterrupt:
                continue  # drop the typed text
            except EOFError:
                return

    def handle(self, line: str) -> bool:
        """Answer a line or execute its command. Return False if it ends the program."""
        line = line.strip()
        if line in ("/exit", "/quit"):
            return False
        try:
            if line.startswith("/"):
                name, _, rest = line.partition(" ")
                self._command(name)(rest.strip())
            elif line:
                self._print_answer(self._conversation.ask(line))
        except LamellaError as e:
            self._print_note(f"error: {e}")
        return True

    def _command(self, name: str) -> Callable[[str], None]:
        try:
            return self._commands[name]
        except KeyError:
            known = ", ".join([*self._commands, "/exit"])
            raise RequestError(f"unknown command {name}; commands: {known}") from None

    def _print_answer(self, pieces: Iterator[str]) -> None:
        self._note_left_out()
        try:
            for piece in pieces:
                sys.stdout.write(piece)
                sys.stdout.flush()
        except (KeyboardInterrupt, CancelledError):
            sys.stdout.write(" [stopped]")
        finally:
            sys.stdout.write("\n")
            sys.stdout.flush()

    def _note_left_out(self) -> None:
        """Print once per conversation that it no longer fits the context."""
        left_out = self._conversation.n_left_out > 0
        if left_out and not self._left_out:
            self._print_note(
                "the conversation no longer fits the context: its oldest messages are left out"
            )
        self._left_out = left_out

    def _reset(self, _: str) -> None:
        self._conversation.reset()
        self._print_note("new conversation")

    def _regen(self, _: str) -> None:
        self._print_answer(self._conversation.regenerate())

    def _save(self, path: str) -> None:
        self._conversation.save(_path("/save", path))
        self._print_note(f"saved to {path}")

    def _load(self, path: str) -> None:
        self._conversation.load(_path("/load", path))
        self._print_note(f"loaded {len(self._conversation.messages)} messages from {path}")

    def _set(self, text: str) -> None:
        if text:
            self._conversation.params = _changed(self._conversation.params, text)
        values = self._conversation.params.values()
        for name in _SETTABLE if not text else [text.partition("=")[0].strip()]:
            self._print_note(f"{name}={values[name]}")

    def _print_note(self, text: str) -> None:
        """Print to stderr: stdout has answers only, for pipes."""
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


# parameters whose value is one number
_SETTABLE: Final = tuple(
    name for name, declared in declarations(RequestParams).items() if declared.type in (int, float)
)


def _changed(params: RequestParams, text: str) -> RequestParams:
    """`params` with one parameter changed; `text` is NAME=VALUE."""
    name, equals, value = (part.strip() for part in text.partition("="))
    if name not in _SETTABLE:
        raise RequestError(f"/set {name}: unknown parameter; parameters: {', '.join(_SETTABLE)}")
    try:
        return params.change(**{name: declarations(RequestParams)[name].parse(value)})
    except ValueError as e:
        raise RequestError(f"/set {name}{equals}{value}: {e}") from None


def _path(command: str, text: str) -> Path:
    if not text:
        raise RequestError(f"{command} needs a file name")
    return Path(text).expanduser()


def _history(path: Path) -> History:
    """The input history, in a file if it can be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("ab").close()
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(path))


def _prompt_session(commands: list[str]) -> PromptSession[str]:
    return PromptSession(
        history=_history(Path(platformdirs.user_state_dir("lamella")) / "chat_history"),
        completer=WordCompleter(commands, sentence=True),
        complete_while_typing=False,
    )
