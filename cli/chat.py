"""`lamella chat`: chat with a model in the terminal, or through a pipe.

In a terminal: line editing, a saved history, Ctrl-C stops the answer but not the program. Through a
pipe: one line in, one answer out. The model may call tools in between. cli/chat_input.py reads the
lines, cli/screen.py prints answers.
Tested by tests/cli/test_chat.py and tests/cli/test_chat_tools.py.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Callable, Generator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Final

from ..base.errors import CancelledError, ContextSizeError, LamellaError, RequestError
from ..base.options import declarations
from ..base.utf8 import read_text
from ..model.chat.message import Delta
from ..runtime.instance import Instance
from ..runtime.params import OpenParams, RequestParams
from .chat_input import PROMPT, Entry, entries, pipe_reader, terminal_reader
from .conversation import Conversation
from .flags import (
    ONE_SEQUENCE,
    add_escape_flags,
    add_model_flags,
    add_request_flags,
    add_system_flags,
    add_template_flags,
    open_params,
    request_defaults,
    system_prompt,
)
from .model_flags import add_text_argument, text_argument
from .parser import INTERRUPTED
from .peer_flags import add_peer_flags
from .peer_options import CONVERSATION, TERMINAL
from .screen import Screen
from .start import open_with_progress
from .texts import argument, read_stdin, text_or_file
from .tool_calls import NO_TERMINAL, CallRunner
from .tool_flags import DISPLAY_FLAGS, add_display_flags, add_tool_flags, opened_tools
from .toolbox import ToolBox

HELP: Final = '''\
/help, /?             show this help
/clear                start a new conversation
/regen                answer the last question again
/set NAME VALUE       change a parameter, for example temperature 0.2
/set system TEXT      change the system prompt
/set                  show the parameters
/tools                show the tools
/read FILE            add a text file to the next message
/save FILE            save the conversation
/load FILE            continue a saved conversation
/bye, /exit           exit (also Ctrl-D)
"""                   begin and end a message of several lines
Ctrl-C stops an answer.'''
NO_TOOLS: Final = "there are no tools: see --tools and --mcp in `lamella chat --help`"
STOPPED: Final = " [stopped]"
N_ROUNDS: Final = 25  # answers with calls in one turn
ALIASES: Final = {"/?": "/help", "/reset": "/clear", "/exit": "/bye", "/quit": "/bye"}


def add_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("conversation")
    add = group.add_argument
    add_system_flags(group)
    add("-p", "--prompt", metavar="TEXT", help="the first message")
    add("-f", "--file", metavar="FILE", help="read the first message from a file")
    add(
        *("-st", "--single-turn"),
        action="store_true",
        help="print one answer and exit; without -p and -f, to all of stdin",
    )
    add_escape_flags(group)
    add_template_flags(group)
    add_display_flags(group)
    add_tool_flags(parser)
    add_model_flags(parser, defaults=ONE_SEQUENCE)
    add_text_argument(group, "MESSAGE", help="the first message")
    add_request_flags(parser, own=DISPLAY_FLAGS)
    add_peer_flags(parser, TERMINAL + CONVERSATION, own=DISPLAY_FLAGS)


def main(args: argparse.Namespace, params: OpenParams | None = None) -> int:
    """Chat until the input ends. Return the exit status. `params`: the model, if it is known."""
    defaults = request_defaults(args)
    system = system_prompt(args)
    first = _first(args)
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if args.single_turn and first is None and not is_terminal:
        first = read_stdin("the prompt").strip()
    if args.single_turn and first == "":
        raise RequestError("there is no message: give one with -p TEXT, -f FILE or a pipe")
    params = params or open_params(args, defaults=ONE_SEQUENCE)
    with opened_tools(args) as box, open_with_progress(params, defaults) as instance:
        if instance.chat.is_broken:
            raise RequestError(instance.chat.warning)
        screen = Screen(getattr(args, "color", "auto"))
        conversation = Conversation(
            instance,
            instance.request_params(),
            system=system or "",
            tools=box.descriptions,
        )
        ask = input if is_terminal else None
        runner = CallRunner(box, screen, ask, allows_all=getattr(args, "yes", False))
        session = Session(conversation, screen, runner)
        if instance.chat.warning:
            screen.note(f"{instance.chat.warning}, and `lamella run` continues texts")
        if runner.refuses_all:
            screen.note(NO_TERMINAL)
        if args.single_turn and first is not None:
            return 0 if session.answer(first) else INTERRUPTED  # an error ends the program
        if is_terminal:
            screen.note(_welcome(instance, box))
        session.run(first, is_terminal, args.single_turn)
    return 0


def _welcome(instance: Instance, box: ToolBox) -> str:
    tools = f", {len(box)} {'tool' if len(box) == 1 else 'tools'}" if len(box) else ""
    return f"{instance.alias}, {instance.n_ctx} tokens of context{tools}. /? shows commands."


def _first(args: argparse.Namespace) -> str | None:
    """The first message, if the command line has one."""
    message = text_argument(args)
    if message is None:
        return text_or_file("the prompt", "-p", args.prompt, "-f", args.file, escapes=args.escape)
    if args.prompt is not None or args.file is not None:
        raise RequestError("MESSAGE cannot be combined with -p or -f: give one first message")
    return argument("the prompt", message, escapes=args.escape)


class Session:
    """Executes commands and prints answers."""

    def __init__(self, conversation: Conversation, screen: Screen, runner: CallRunner) -> None:
        self._conversation = conversation
        self._screen = screen
        self._runner = runner
        self.note = screen.note
        self._left_out = False  # True once the user was notified
        self._files = ""  # texts for the next message
        self._commands: dict[str, Callable[[str], None]] = {
            "/help": lambda _: self.note(HELP),
            "/clear": self._clear,
            "/regen": self._regen,
            "/set": self._set,
            "/tools": self._tools,
            "/read": self._read,
            "/save": self._save,
            "/load": self._load,
            "/bye": self._end,
        }
        self._names = [*self._commands, *ALIASES]
        self._is_ended = False

    def run(self, first: str | None, is_terminal: bool, single_turn: bool) -> None:
        """Handle a first message and all entries, until the input or the session ends."""
        if first is not None:
            if is_terminal:
                self.note(f"{PROMPT}{first}")
            self.handle(Entry(first, is_quoted=True))
        read = terminal_reader(self._names) if is_terminal else pipe_reader()
        for entry in entries(read, lambda: self.note("/bye or Ctrl-D ends the chat")):
            is_answered = self.handle(entry)
            if self._is_ended or (single_turn and is_answered):
                return

    def handle(self, entry: Entry) -> bool:
        """Answer an entry or execute its command. Return True if it was a message.

        Errors are printed. Ctrl-C stops it, also while a prompt is prepared.
        """
        try:
            command = None if entry.is_quoted else self._command(entry.text)
            if command is not None:
                command()
            elif entry.text:
                self.answer(entry.text)
                return True
        except LamellaError as e:
            self.note(f"error: {e}")
        except KeyboardInterrupt:
            self.note(STOPPED.strip())
        return False

    def _command(self, text: str) -> Callable[[], None] | None:
        """The command in a text, with its argument; None if the text is a message.

        Raises:
            RequestError: an unknown command.
        """
        if "\n" in text:
            return None  # a pasted text
        name = text.split(maxsplit=1)[0] if text else ""
        command = self._commands.get(ALIASES.get(name, name))
        if command is not None:
            return partial(command, text.removeprefix(name).strip())
        if not name.startswith("/") or "/" in name[1:]:
            return None  # such as a path
        close = difflib.get_close_matches(name, self._names, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise RequestError(f"unknown command {name}{hint or '; /help shows the commands'}")

    def answer(self, text: str) -> bool:
        """Print the answer to a message. Return False if Ctrl-C stopped it.

        Raises:
            LamellaError: there is none, for example because the message is too long.
        """
        try:
            pieces = self._conversation.ask(self._files + text)
        except ContextSizeError:
            if self._files:
                self.note("the texts of /read do not fit: the next message begins without them")
            self._files = ""
            raise
        self._files = ""
        return self._print_answer(pieces)

    def _print_answer(self, deltas: Generator[Delta]) -> bool:
        """Print an answer. Run its calls and print the next answer, until one has no calls. Return
        False if Ctrl-C stopped it."""
        for n in range(N_ROUNDS):
            if n > 0:
                deltas = self._conversation.resume()
            self._note_left_out()
            if not self._print_one(deltas):
                return False
            if not self._conversation.calls:
                return True
            for call, outcome in self._runner.run(self._conversation.calls):
                self._conversation.add_result(call, outcome.text)
            if self._runner.is_stopped:
                return False
        self.note(f"no answer after {N_ROUNDS} rounds of calls: a message continues")
        return True

    def _print_one(self, deltas: Generator[Delta]) -> bool:
        """Print one answer. Return False if Ctrl-C stopped it."""
        is_whole = True
        try:
            with closing(deltas):  # the conversation has the answer then
                self._screen.answer(deltas, stopped=STOPPED)
        except (KeyboardInterrupt, CancelledError):
            is_whole = False
        if self._conversation.incomplete:
            self.note(self._conversation.incomplete)
        return is_whole

    def _note_left_out(self) -> None:
        """Print once per conversation that it no longer fits the context."""
        left_out = self._conversation.n_left_out > 0
        if left_out and not self._left_out:
            self.note(
                "the conversation no longer fits the context: its oldest messages are left out"
            )
        self._left_out = left_out

    # --- commands ---

    def _end(self, _: str) -> None:
        self._is_ended = True

    def _clear(self, _: str) -> None:
        self._conversation.reset()
        self._files = ""
        self.note("new conversation")

    def _regen(self, _: str) -> None:
        self._print_answer(self._conversation.regenerate())

    def _read(self, text: str) -> None:
        path = _path("/read", text)
        self._files += f"--- File: {path} ---\n{read_text(str(path))}\n"  # llama-cli's form
        self.note(f"the next message begins with {path}")

    def _save(self, path: str) -> None:
        self._conversation.save(_path("/save", path))
        self.note(f"saved to {path}")

    def _load(self, path: str) -> None:
        self._conversation.load(_path("/load", path))
        self.note(f"loaded {len(self._conversation.messages)} messages from {path}")

    def _tools(self, _: str) -> None:
        self.note(self._runner.listing() or NO_TOOLS)

    def _set(self, text: str) -> None:
        name, value = _assignment(text.removeprefix("parameter "))  # as ollama's command has it
        if name == "system":
            self._conversation.set_system(value)
            return
        if name:
            self._conversation.params = _changed(self._conversation.params, name, value)
        values = self._conversation.params.values()
        for shown in [name] if name else _SETTABLE:
            self.note(f"{shown}={values[shown]}")


# parameters whose value is one number
_SETTABLE: Final = tuple(
    name for name, declared in declarations(RequestParams).items() if declared.type in (int, float)
)


def _assignment(text: str) -> tuple[str, str]:
    """The name and the value in "NAME VALUE" or "NAME=VALUE"."""
    name, value = [*text.split(maxsplit=1), "", ""][:2]
    if "=" in name or value.lstrip().startswith("="):
        name, _, value = text.partition("=")
    return name.strip(), value.strip()


def _changed(params: RequestParams, name: str, value: str) -> RequestParams:
    """`params` with one parameter changed."""
    if name not in _SETTABLE:
        close = difflib.get_close_matches(name, _SETTABLE, n=1)
        hint = f"did you mean {close[0]}?" if close else f"parameters: {', '.join(_SETTABLE)}"
        raise RequestError(f"/set {name}: unknown parameter; {hint}")
    try:
        return params.change(**{name: declarations(RequestParams)[name].parse(value)})
    except ValueError as e:
        raise RequestError(f"/set {name} {value}: {e}") from None


def _path(command: str, text: str) -> Path:
    if not text:
        raise RequestError(f"{command} needs a file name")
    try:
        return Path(text).expanduser()
    except RuntimeError as e:  # ~NAME of no user
        raise RequestError(f"{command} {text}: {e}") from e
