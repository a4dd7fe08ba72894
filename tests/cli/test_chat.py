"""`lamella chat`: pipes, terminals, its commands, saved conversations."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import LAMELLA, lamella, tiny_model
from open_params import open_params

from lamella.base.errors import ContextSizeError
from lamella.cli.conversation import Conversation
from lamella.runtime.open import open_instance

NEWLINE = 3 + 10  # its byte token
PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}bot:"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("chat"))


def chat(model: Path, *args: str | Path, lines: str) -> subprocess.CompletedProcess[str]:
    """Answer `lines`. A logit bias prevents newlines in answers."""
    common = ["chat", "-m", model, "-n", "6", "--temp", "0", "-l", f"{NEWLINE}-inf"]
    return lamella(*common, *args, stdin=lines)


def answers(done: subprocess.CompletedProcess[str]) -> list[str]:
    return done.stdout.removesuffix("\n").split("\n")


def test_one_answer_per_line(model: Path) -> None:
    done = chat(model, "--chat-template", "{{ messages[-1].content }}", lines="a b\n\nc d\na b\n")
    assert done.returncode == 0
    first, _, third = answers(done)  # an empty line gets no answer
    assert first == third
    assert done.stderr == ""


def test_answers_depend_on_the_conversation_until_reset(model: Path) -> None:
    done = chat(model, "--chat-template", PLAIN, lines="a b\na b\n/reset\na b\n")
    first, second, third = answers(done)
    assert first == third
    assert first != second


def test_regen_replaces_the_last_answer(model: Path) -> None:
    done = chat(model, "--chat-template", PLAIN, lines="a b\n/regen\n")
    first, second = answers(done)
    assert first == second  # temperature 0: the same prompt gives the same answer
    nothing = chat(model, lines="/regen\n")
    assert "there is no question to answer again" in nothing.stderr


def test_saved_conversations_continue(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    whole = chat(model, "--chat-template", PLAIN, lines=f"a b\n/save {file}\nc\n")
    messages = json.loads(file.read_text())["messages"]
    assert [m["role"] for m in messages] == ["user", "assistant"]
    again = chat(model, "--chat-template", PLAIN, lines=f"/load {file}\nc\n")
    assert answers(again) == answers(whole)[1:]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("/what", "unknown command /what; commands: /help, /reset"),
        ("/set temperatur=1", "/set temperatur: unknown parameter; parameters: n_predict, "),
        ("/set top_k=1.5", "/set top_k=1.5: '1.5' is not a whole number"),
        ("/set temperature=hot", "'hot' is not a number"),
        ("/save", "/save needs a file name"),
        ("/load nowhere.json", "nowhere.json cannot be read"),
        (f"/load {__file__}", "is not a saved conversation"),
    ],
)
def test_errors_of_commands_do_not_end_the_chat(model: Path, line: str, complaint: str) -> None:
    done = chat(model, lines=f"{line}\na\n")
    assert done.returncode == 0
    assert complaint in done.stderr
    assert len(answers(done)) == 1


def test_set(model: Path) -> None:
    done = chat(model, lines="/set temperature=0.5\n/set\n")
    assert done.stderr.count("temperature=0.5") == 2
    assert "top_k=40" in done.stderr


def test_a_question_that_is_too_long_does_not_end_the_chat(model: Path) -> None:
    done = chat(model, "-c", "32", lines="a b c d e f g h i j k l m n o p q r s t\n/reset\n")
    assert "the context holds 32" in done.stderr
    assert done.returncode == 0


def test_a_conversation_larger_than_the_context_loses_its_oldest_messages(
    model: Path, tmp_path: Path
) -> None:
    lines = "".join(f"{word} is all\n" for word in ["one", "two", "three", "four", "five"])
    file = tmp_path / "talk.json"
    done = chat(
        model, "-c", "96", "-sys", "be", "--chat-template", PLAIN, lines=f"{lines}/save {file}\n"
    )
    assert len(answers(done)) == 5
    assert done.stderr.count("no longer fits the context: its oldest messages are left out") == 1
    assert len(json.loads(file.read_text())["messages"]) == 11  # all messages are saved


def test_left_out_messages_leave_room_for_an_answer(model: Path) -> None:
    params = open_params(model, n_ctx=96, devices=["none"], chat_template=PLAIN)
    with open_instance(params) as instance:
        defaults = instance.request_params({"temperature": 0.0, "n_predict": 4})
        talk = Conversation(instance, defaults, system="be")

        def n_read(n_left_out: int) -> int:
            read = [talk.messages[0], *talk.messages[1 + n_left_out : -1]]
            text = instance.chat.render(read, add_generation_prompt=True)
            return len(instance.vocab.tokenize(text, parse_special=True))

        left_out = []
        for word in ["one", "two", "three", "four", "five", "six"]:
            list(talk.ask(f"{word} is all"))
            left_out.append(talk.n_left_out)
            assert n_read(talk.n_left_out) <= 72
            if talk.n_left_out != [0, *left_out][-2]:  # it has just grown, but only as needed
                assert n_read(talk.n_left_out) <= 48 < n_read(talk.n_left_out - 2)
        assert left_out == sorted(left_out)
        assert left_out[-1] > left_out[0] == 0
        with pytest.raises(ContextSizeError):
            talk.ask("x" * 200)
        assert talk.n_left_out == left_out[-1]
        again = "".join(talk.regenerate())
        assert talk.messages[-1]["content"] == again
        talk.reset()
        assert talk.n_left_out == 0


class Terminal:
    """`lamella chat` in a pseudo-terminal."""

    def __init__(self, model: Path, home: Path) -> None:
        self.master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [*LAMELLA, "chat", "-m", str(model), "-c", "100000", "--ignore-eos"],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env={
                **os.environ,
                "XDG_STATE_HOME": str(home),
                "TERM": "xterm",
                "PROMPT_TOOLKIT_NO_CPR": "1",
            },
        )
        os.close(slave)
        self.seen = ""

    def wait_for(self, text: str, seconds: float = 250) -> None:
        """Read until `text` is printed after the last match."""
        end = time.monotonic() + seconds
        while text not in self.seen:
            assert time.monotonic() < end, f"no {text!r} in {self.seen!r}"
            self._read()
        self.seen = self.seen.split(text, 1)[1]

    def wait_for_answer(self) -> None:
        """Read more output than the echo of an entered line."""
        end = time.monotonic() + 250
        while len(self.seen) < 1000:
            assert time.monotonic() < end, f"no answer in {self.seen!r}"
            self._read()

    def _read(self) -> None:
        if select.select([self.master], [], [], 0.1)[0]:
            self.seen += os.read(self.master, 65536).decode("utf-8", "replace")

    def send(self, text: str) -> None:
        os.write(self.master, text.encode())

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)


@pytest.fixture
def terminal(model: Path, tmp_path: Path) -> Iterator[Terminal]:
    terminal = Terminal(model, tmp_path)
    yield terminal
    terminal.close()


def test_ctrl_c_stops_the_answer_but_not_the_program(terminal: Terminal, tmp_path: Path) -> None:
    terminal.wait_for("/help shows commands")
    terminal.wait_for(">")
    terminal.send("a b\r")
    terminal.wait_for_answer()  # it would go on for 100,000 tokens
    os.killpg(terminal.process.pid, signal.SIGINT)
    terminal.wait_for("[stopped]")
    terminal.wait_for(">")
    terminal.send("/set top_k=007\r")
    terminal.wait_for("top_k=7")  # not the echo of the input
    terminal.wait_for(">")  # Ctrl-D counts only at a prompt
    terminal.send("\x04")  # Ctrl-D
    assert terminal.process.wait(timeout=250) == 0
    history = (tmp_path / "lamella" / "chat_history").read_text()
    assert "+a b" in history
