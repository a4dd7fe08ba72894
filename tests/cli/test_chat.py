"""`lamella chat`: pipes, terminals, its commands, saved conversations."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import LAMELLA, lamella, tiny_model
from full_disk import full_disk
from open_params import open_params
from terminal import Terminal
from tiny_models import TINY, write_model

from lamella.base.errors import ContextSizeError, RequestError
from lamella.cli.chat import Session
from lamella.cli.chat_input import Entry
from lamella.cli.conversation import Conversation
from lamella.cli.screen import Screen
from lamella.cli.tool_calls import CallRunner
from lamella.cli.toolbox import ToolBox
from lamella.model.chat.message import ChatMessage
from lamella.runtime.instance import Instance
from lamella.runtime.open import open_instance
from lamella.runtime.params import RequestParams

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


def test_a_full_disk_leaves_the_older_conversation(tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    nothing: Any = None
    talk = Conversation(nothing, RequestParams(), system="be")
    talk.save(file)
    before = file.read_bytes()
    talk.set_system("be brief")
    with full_disk(9), pytest.raises(RequestError, match="cannot be written: File too large"):
        talk.save(file)
    assert file.read_bytes() == before
    assert os.listdir(tmp_path) == ["talk.json"]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("/what", "unknown command /what; /help shows the commands"),
        ("/claer", "unknown command /claer; did you mean /clear?"),
        ("/set temperatur=1", "/set temperatur: unknown parameter; did you mean temperature?"),
        ("/set x 1", "/set x: unknown parameter; parameters: n_predict, "),
        ("/set top_k=1.5", "/set top_k 1.5: '1.5' is not a whole number"),
        ("/set top_k", "/set top_k : '' is not a whole number"),
        ("caf\udce9", "error: the message is not valid UTF-8 (byte 0xE9 at 3)"),
        ("/set system caf\udce9", "error: the system prompt is not valid UTF-8 (byte 0xE9 at 3)"),
        ("/set temperature=hot", "'hot' is not a number"),
        ("/save", "/save needs a file name"),
        ("/save ~nouser/x", "error: /save ~nouser/x: Could not determine home directory"),
        ("/load nowhere.json", "nowhere.json cannot be read"),
        (f"/load {__file__}", "is not a saved conversation"),
    ],
)
def test_errors_of_commands_do_not_end_the_chat(model: Path, line: str, complaint: str) -> None:
    done = chat(model, lines=f"{line}\na\n")
    assert done.returncode == 0
    assert complaint in done.stderr
    assert len(answers(done)) == 1


def test_other_files_that_are_no_conversations(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "deep.json"
    file.write_text("[" * 100000)
    assert "deep.json is not a saved conversation" in chat(model, lines=f"/load {file}\n").stderr
    file.write_text('{"messages": [{"role": "user", "content": "a"}]}', "utf-8-sig")
    assert "loaded 1 messages" in chat(model, lines=f"/load {file}\n").stderr


def test_files_that_are_too_long_are_dropped(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "big.txt"
    file.write_text("a b c d " * 40)
    flags = ["-c", "32", "--chat-template", "{{ messages[-1].content }}"]
    done = chat(model, *flags, lines=f"/read {file}\na\nb\n")
    assert done.stderr.count("error: ") == 1
    assert "the texts of /read do not fit: the next message begins without them" in done.stderr
    assert len(answers(done)) == 1


def _session(instance: Instance) -> Session:
    screen = Screen()
    runner = CallRunner(ToolBox(), screen, None, allows_all=False)
    return Session(Conversation(instance, instance.request_params()), screen, runner)


def test_a_pasted_text_is_a_message(model: Path) -> None:
    with open_instance(open_params(model)) as instance:
        session = _session(instance)
        assert session._command("/clear ") is not None
        assert session._command("/clear \nis a command of the chat") is None


def test_ctrl_c_while_a_prompt_is_prepared_does_not_end_the_chat(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_instance(open_params(model)) as instance:
        session = _session(instance)

        def interrupted() -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(session._conversation, "_prompt", interrupted)
        assert not session.handle(Entry("a"))
        assert capsys.readouterr().err.endswith("[stopped]\n")
        assert session._conversation.messages == []


def test_ctrl_c_in_a_single_turn_is_a_status(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Screen, "answer", interrupted)
    assert chat(model, "-st", "-p", "a", lines="").returncode == 130


def test_set(model: Path) -> None:
    lines = "/set temperature=0.5\n/set top_k 7\n/set parameter top_p 0.5\n/set seed = 3\n/set\n"
    done = chat(model, lines=lines)
    for shown in ("temperature=0.5", "top_k=7", "top_p=0.5", "seed=3"):
        assert done.stderr.count(shown) == 2
    assert chat(model, lines="/set\ttop_k\t8\n").stderr.endswith("\ntop_k=8\n")


def test_set_system(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "talk.json"

    def messages(*lines: str) -> list[dict[str, str]]:
        chat(model, lines="\n".join([*lines, f"/save {file}"]))
        found: list[dict[str, str]] = json.loads(file.read_text())["messages"]
        return found

    system = {"role": "system", "content": "be brief"}
    assert messages("/set system be brief") == [system]
    assert [m["role"] for m in messages("a", "/set system x", "/set system be brief")] == [
        *("system", "user", "assistant")
    ]
    assert messages("/set system be brief", "a", "/clear") == [system]
    assert messages("/set system be brief", "/set system") == []


def test_other_names_of_commands(model: Path) -> None:
    done = chat(model, lines="/?\n/clear\n/reset\n/bye\na\n")
    assert done.stderr.count("show this help") == 1
    assert done.stderr.count("new conversation\n") == 3  # the help has it, too
    assert done.stdout == ""


def test_messages_that_are_no_commands(model: Path) -> None:
    lines = '"""\n/clear\n"""\n/usr/bin/x fails\n'
    assert len(answers(chat(model, lines=lines))) == 2
    assert len(answers(chat(model, "-p", "/clear", lines=""))) == 1


def test_a_block_is_one_message(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    done = chat(model, lines=f'"""a b\n\n  c\n"""\n/save {file}\n')
    assert json.loads(file.read_text())["messages"][0]["content"] == "a b\n\n  c"
    assert len(answers(done)) == 1


def test_a_file_goes_before_the_next_message(model: Path, tmp_path: Path) -> None:
    file, talk = tmp_path / "a.txt", tmp_path / "talk.json"
    file.write_bytes(b"one\r\n")
    chat(model, lines=f"/read {file}\nsum up\nb\n/save {talk}\n")
    found = [m["content"] for m in json.loads(talk.read_text())["messages"] if m["role"] == "user"]
    assert found == [f"--- File: {file} ---\none\n\nsum up", "b"]
    file.write_bytes(b"caf\xe9")
    done = chat(model, lines=f"/read {file}\n/read\n/read nowhere\n")
    for complaint in ("is not valid UTF-8", "/read needs a file name", "nowhere cannot be read"):
        assert complaint in done.stderr


def test_first_messages_and_system_prompts_of_files(model: Path, tmp_path: Path) -> None:
    (tmp_path / "system.txt").write_bytes(b"\xef\xbb\xbfbe brief\r\n")
    (tmp_path / "first.txt").write_bytes(b"a\r\nb\n")
    files: list[str | Path] = ["-sysf", tmp_path / "system.txt", "-f", tmp_path / "first.txt"]
    chat(model, *files, lines=f"/save {tmp_path}/talk.json\n")
    found = json.loads((tmp_path / "talk.json").read_text())["messages"]
    assert [m["content"] for m in found[:2]] == ["be brief", "a\nb"]
    done = lamella("chat", "-m", "nowhere", *files, "-p", "a")
    assert "-p and -f cannot be combined: both are the prompt" in done.stderr


def test_the_first_message_is_an_argument(model: Path) -> None:
    flag = lamella("chat", "-m", model, "-st", "-n", "3", "--temp", "0", "-p", r"a\nb")
    between = lamella("chat", model, "-st", "-n", "3", r"a\nb", "--temp", "0")
    assert (between.returncode, between.stdout) == (0, flag.stdout)
    done = lamella("chat", model, "a", "-p", "b")
    assert "MESSAGE cannot be combined with -p or -f" in done.stderr


def test_a_single_turn(model: Path) -> None:
    one = chat(model, "-st", "-p", "/a b", lines="c\nd\n")
    assert (one.returncode, len(answers(one))) == (0, 1)
    whole = chat(model, "-st", lines="a b\nc\n")  # all of stdin
    assert len(answers(whole)) == 1
    assert whole.stdout == chat(model, "-st", "-p", r"a b\nc", lines="").stdout
    nothing = chat(model, "-st", lines="\n")
    assert nothing.returncode == 1
    assert "there is no message: give one with -p TEXT" in nothing.stderr
    fails = chat(
        model, "-st", "-c", "32", "-p", "a b c d e f g h i j k l m n o p q r s t", lines=""
    )
    assert fails.returncode == 1
    assert "the context holds 32" in fails.stderr


def test_a_model_without_a_template_has_a_warning(model: Path) -> None:
    done = chat(model, lines="")
    assert done.stderr == (
        "this model has no chat template: it was probably trained to continue texts, not to chat. "
        "Chats use chatml; --chat-template chooses another template, and `lamella run` continues "
        "texts\n"
    )
    assert chat(model, "--chat-template", "llama3", lines="a\n").stderr == ""


def test_a_model_with_a_broken_template_runs_but_does_not_chat(tmp_path: Path) -> None:
    file = tmp_path / "broken.gguf"
    write_model(TINY["llama"], file, metadata={"tokenizer.chat_template": "{% if %}"})
    done = chat(file, lines="a\n")
    assert done.returncode == 1
    assert "error: this model cannot chat: the chat template is invalid in line 1" in done.stderr
    assert chat(file, "--chat-template", "llama3", lines="a\n").returncode == 0
    assert lamella("run", "-m", file, "-p", "a", "-n", "1").returncode == 0


def test_variables_of_the_template(model: Path) -> None:
    source = ["--chat-template", "{{ 'x y z' if long else 'x' }}"]
    plain = chat(model, *source, lines="a\n")
    long = chat(model, *source, "--chat-template-kwargs", '{"long": true}', lines="a\n")
    assert long.stdout == chat(model, "--chat-template", "{{ 'x y z' }}", lines="a\n").stdout
    assert plain.stdout == chat(model, "--chat-template", "{{ 'x' }}", lines="a\n").stdout


@pytest.mark.parametrize(
    ("text", "status", "complaint"),
    [
        ("{", 2, "argument --chat-template-kwargs: '{' is not JSON: Expecting property name"),
        ("[1]", 2, "--chat-template-kwargs is [1]: must be an object like"),
        ('{"messages": []}', 1, "\"chat_template_kwargs\" must not set ['messages']"),
    ],
)
def test_invalid_variables_of_the_template(
    model: Path, text: str, status: int, complaint: str
) -> None:
    done = chat(model, "--chat-template-kwargs", text, lines="a\n")
    assert done.returncode == status
    assert complaint in done.stderr


def test_an_unknown_template_is_refused_before_the_model_is_loaded() -> None:
    done = lamella("chat", "-m", "nowhere", "--chat-template", "llama33")
    assert done.returncode == 2
    assert "error: --chat-template is 'llama33': no built-in template" in done.stderr
    assert "did you mean llama3? Names: bailing, " in done.stderr


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
        answer = ChatMessage()
        answer.add(list(talk.regenerate()))
        assert talk.messages[-1]["content"] == answer.content != ""
        talk.reset()
        assert talk.n_left_out == 0


@pytest.fixture
def terminal(model: Path, tmp_path: Path) -> Iterator[Terminal]:
    flags = ["chat", "-m", str(model), "-c", "100000", "--ignore-eos"]
    terminal = Terminal([*LAMELLA, *flags], tmp_path)
    yield terminal
    terminal.close()


def test_ctrl_c_stops_the_answer_but_not_the_program(terminal: Terminal, tmp_path: Path) -> None:
    terminal.wait_for("/? shows commands")
    terminal.wait_for(">")
    os.write(terminal.master, b"caf\xe9\r")
    terminal.wait_for("not valid UTF-8 (byte 0xE9 at 3)")
    terminal.wait_for(">")
    terminal.send("\x03")
    terminal.wait_for("/bye or Ctrl-D ends the chat")
    terminal.wait_for(">")
    terminal.send("\x1b[200~one\r\ntwo\r\n\x1b[201~\r")  # a paste
    terminal.wait_for_answer()
    os.killpg(terminal.process.pid, signal.SIGINT)
    terminal.wait_for("[stopped]")
    terminal.wait_for(">")
    terminal.send("/set top_k=006\r")  # the paste was one message
    terminal.wait_for("top_k=6")
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
