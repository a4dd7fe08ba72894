"""`lamella chat` with tools: calls in an answer, through a pipe and in a terminal; its flags."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import lamella
from open_params import open_params
from scripted import Play, scripted_engines, write_scripted_model
from terminal import WAIT_S, Terminal

from lamella.cli.conversation import Conversation
from lamella.cli.tool_file import tools_of_file
from lamella.model.chat.message import ArgumentsDelta
from lamella.runtime.open import open_instance

PROGRAM = (sys.executable, str(Path(__file__).parent / "mcp_server.py"))
SHOP = " ".join(PROGRAM)

TOOLS = '''\
import os
import time


def add(a: int, b: int = 1) -> int:
    """Add numbers.

    Args:
        a: the first one
    """
    print("adding")
    return a + b


def fail(text: str) -> None:
    """Fail."""
    raise ValueError(text)


def wait() -> str:
    """Wait."""
    open(os.environ["XDG_STATE_HOME"] + "/begun", "x").close()
    time.sleep(1000)
    return "waited"


def long(n: int) -> str:
    """Return a long text."""
    return "x" * n
'''
# a template that teaches Hermes' format
TEMPLATE = """\
{% if tools %}Tools: {{ tools | tojson }} as <tool_call>
{"name": ..., "arguments": ...}
</tool_call>
{% endif %}{% for m in messages %}[{{ m.role }}]
{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}
{% for c in m.tool_calls %}<tool_call>{{ c.function | tojson }}</tool_call>
{% endfor %}{% endfor %}{% if add_generation_prompt %}[assistant]
{% endif %}"""


def call(name: str, **arguments: object) -> str:
    """The text of a call, as a model writes it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Has `scripted.gguf`, `tools.py` and `template.jinja`."""
    folder = tmp_path_factory.mktemp("chat_tools")
    write_scripted_model(folder / "scripted.gguf", marks=["<tool_call>", "</tool_call>"])
    (folder / "tools.py").write_text(TOOLS)
    (folder / "template.jinja").write_text(TEMPLATE)
    return folder


def chat(
    folder: Path, scripts: Play, *args: object, lines: str
) -> subprocess.CompletedProcess[str]:
    """Answer `lines` by scripts, one for each answer."""
    flags = ["-m", folder / "scripted.gguf", "--chat-template-file", folder / "template.jinja"]
    with scripted_engines(scripts):
        return lamella("chat", *flags, "-c", "4096", *args, stdin=lines)


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (["--tools", "nowhere.py"], "nowhere.py cannot be read: No such file"),
        (["--mcp", ""], "--mcp needs a command or a URL"),
        (["--mcp-servers-json", "{"], "the configuration of MCP servers is not JSON"),
        (["--mcp-servers-config", "nowhere.json"], "nowhere.json cannot be read"),
    ],
)
def test_flags_with_errors_end_the_program(folder: Path, args: list[str], complaint: str) -> None:
    done = chat(folder, [], *args, lines="a\n")
    assert done.returncode == 1
    assert complaint in done.stderr


def test_a_broken_file_names_the_line(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("a = 1\ndef f(:\n")
    done = chat(folder, [], "--tools", tmp_path / "broken.py", lines="a\n")
    assert done.returncode == 1
    assert "broken.py, line 2: invalid syntax" in done.stderr


def test_a_list_of_tools(folder: Path) -> None:
    done = chat(folder, [], "--tools", folder / "tools.py", "--yes", lines="/tools\n")
    assert "add (tools): Add numbers.\nfail (tools): Fail.\n" in done.stderr
    done = chat(folder, [], lines="/tools\n")
    assert "there are no tools: see --tools and --mcp" in done.stderr


def saved(folder: Path) -> list[dict[str, object]]:
    """The messages that /save wrote."""
    found: list[dict[str, object]] = json.loads((folder / "talk.json").read_text())["messages"]
    return found


def test_calls_run_until_an_answer(folder: Path) -> None:
    scripts = [
        f"<think>Sums.</think>Let me add.{call('add', a=3)}\n{call('add', a=3, b=4)}",
        call("fail", text="broken"),
        "It is 7.",
        "Yes.",
    ]
    flags = ["--tools", folder / "tools.py", "--yes"]
    done = chat(folder, scripts, *flags, lines=f"how much?\nsure?\n/save {folder}/talk.json\n")
    assert done.returncode == 0
    assert done.stdout == "Let me add.\nIt is 7.\nYes.\n"
    shown = 'add(a=3)\nadding\n  4\nadd(a=3, b=4)\nadding\n  7\nfail(text="broken")\n'
    assert done.stderr.startswith(f"{shown}  error: ValueError: broken\n")
    messages = saved(folder)
    assert [m["role"] for m in messages] == [
        *("user", "assistant", "tool", "tool", "assistant", "tool", "assistant"),
        *("user", "assistant"),
    ]
    assert messages[1]["reasoning_content"] == "Sums."
    assert [m["content"] for m in messages if m["role"] == "tool"] == [
        *("4", "7", "ValueError: broken")
    ]
    again = chat(folder, ["Yes."], *flags, lines=f"/load {folder}/talk.json\nsure?\n")
    assert "loaded 9 messages" in again.stderr
    assert again.stdout == "Yes.\n"


def test_the_model_reads_results(folder: Path) -> None:
    prompts: list[str] = []

    def play(prompt: str) -> str:
        prompts.append(prompt)
        return call("add", a=40, b=2) if len(prompts) == 1 else "Done."

    chat(folder, play, "--tools", folder / "tools.py", "--yes", lines="how much?\n")
    assert '"name": "add"' in prompts[0]
    assert prompts[1].endswith("</tool_call>\n[tool]\n42\n[assistant]\n")


def test_without_a_terminal_calls_are_refused(folder: Path) -> None:
    scripts = [call("add", a=3), "I may not.", call("add", a=4), "Not now either."]
    done = chat(folder, scripts, "--tools", folder / "tools.py", lines="how much?\nand now?\n")
    assert done.stdout == "I may not.\nNot now either.\n"
    assert done.stderr.count("calls of tools are refused, because no one can be asked") == 1
    assert done.stderr.count("error: refused: the user cannot be asked about this call") == 2
    assert "adding" not in done.stderr


def test_an_unknown_tool_and_a_cut_call(folder: Path) -> None:
    flags = ["--tools", folder / "tools.py", "--yes", "-n", "12"]
    done = chat(folder, [call("add", a=123456789012345678)], *flags, lines="how much?\n")
    assert "the call of add is not whole: it is left out" in done.stderr
    assert "adding" not in done.stderr


def test_rounds_are_bounded(folder: Path) -> None:
    scripts = [call("add", a=1)] * 25 + ["Enough."]
    flags = ["--tools", folder / "tools.py", "--yes"]
    done = chat(folder, scripts, *flags, lines="how much?\ngo on\n")
    assert done.stderr.count("adding") == 25
    assert "no answer after 25 rounds of calls" in done.stderr
    assert done.stdout == "Enough.\n"


def test_long_results_leave_room(folder: Path) -> None:
    scripts = [call("long", n=100_000), "Long."]
    flags = ["--tools", folder / "tools.py", "--yes"]
    done = chat(folder, scripts, *flags, lines=f"how?\n/save {folder}/talk.json\n")
    assert done.stdout == "Long.\n"
    content = str(saved(folder)[2]["content"])
    assert " characters are left out]\nxxx" in content
    assert 1000 < len(content) < 20_000


def test_tools_of_an_mcp_server(folder: Path) -> None:
    pytest.importorskip("mcp")
    config = json.dumps({"mcpServers": {"b": {"command": PROGRAM[0], "args": [PROGRAM[1]]}}})
    scripts = [f"{call('price', item='tea')}\n{call('the_shop_price', item='tea')}", "3 coins."]
    flags = ["--mcp", SHOP, "--mcp-servers-json", config, "--yes"]
    missing = chat(folder, [], "--mcp", "no-such-program", lines="a\n")
    assert missing.returncode == 1
    assert "MCP server no-such-program: there is no program" in missing.stderr
    done = chat(folder, scripts, *flags, lines="/tools\nhow much?\n")
    assert "price (the shop): Return the price of an item.\n" in done.stderr
    assert done.stderr.count("1 tea: 3 coins") == 2
    assert done.stdout == "3 coins.\n"


def test_reasoning_in_a_pipe(folder: Path) -> None:
    scripts = ["<think>Hm.</think>Yes."] * 2
    assert chat(folder, scripts, lines="a\n").stdout == "Yes.\n"
    whole = chat(folder, scripts, "--reasoning-format", "none", lines="a\n")
    assert whole.stdout == "<think>Hm.</think>Yes.\n"
    dimmed = chat(folder, scripts, "--color", "on", lines="a\n")
    assert dimmed.stdout == "\x1b[2mHm.\x1b[0m\n\nYes.\n"
    done = lamella("chat", "--reasoning-format", "some")
    assert done.returncode == 2
    assert "--reasoning-format: invalid choice: 'some'" in done.stderr
    with scripted_engines(scripts):
        flags = ["-m", folder / "scripted.gguf", "--chat-template-file", folder / "template.jinja"]
        run = lamella("run", *flags, "-st", "-p", "a", "--json")
    assert json.loads(run.stdout)["reasoning"] == "Hm."
    assert json.loads(run.stdout)["text"] == "Yes."


def test_a_stopped_answer_has_no_calls(folder: Path) -> None:
    text = f"Let me see.{call('add', a=1)}\n{call('add', a=2)}"
    template = (folder / "template.jinja").read_text()
    params = open_params(folder / "scripted.gguf", chat_template=template, n_ctx=4096)
    with scripted_engines([text, text, "Fine."]), open_instance(params) as instance:
        tools = [tool.tool for tool in tools_of_file(folder / "tools.py")]
        talk = Conversation(instance, instance.request_params(), tools=tools)
        deltas = talk.ask("a")
        for delta in deltas:
            if isinstance(delta, ArgumentsDelta):
                deltas.close()  # as Ctrl-C does
        assert talk.messages[1:] == [{"role": "assistant", "content": "Let me see."}]
        assert talk.calls == []
        list(talk.ask("b"))
        assert [one.parsed for one in talk.calls] == [{"a": 1}, {"a": 2}]
        for one in tuple(talk.calls):
            talk.add_result(one, "\udce9")
        assert [message["content"] for message in talk.messages[-2:]] == ["?", "?"]
        list(talk.resume())
        assert talk.messages[-1]["content"] == "Fine."


@pytest.fixture
def terminal(folder: Path, tmp_path: Path) -> Iterator[Terminal]:
    scripts = [
        f"<think>Sums.</think>{call('add', a=40, b=2)}\n{call('add', a=3, b=4)}",
        "It is 42.",
        f"{call('add', a=1)}\n{call('wait')}\n{call('add', a=2)}",
        "Fine.",
        call("add", a=5),
        "Six.",
    ]
    flags = ["--chat-template-file", "template.jinja", "--tools", "tools.py", "-c", "4096"]
    program = str(Path(__file__).parent / "scripted_chat.py")
    command = [sys.executable, program, json.dumps(scripts), "-m", "scripted.gguf", *flags]
    terminal = Terminal(command, tmp_path, folder)
    yield terminal
    terminal.close()


def test_questions_in_a_terminal(terminal: Terminal, tmp_path: Path) -> None:
    terminal.wait_for("4096 tokens of context, 4 tools. /? shows commands")
    terminal.wait_for(">")
    terminal.send("how much?\r")
    terminal.wait_for("\x1b[2mSums.\x1b[0m")
    terminal.wait_for("add(a=40, b=2)")
    terminal.wait_for("call it? y: yes, n: no, a: always this tool: ")
    terminal.send("y\r")
    terminal.wait_for("\x1b[2m  42\x1b[0m")
    terminal.wait_for("add(a=3, b=4)")
    terminal.wait_for("always this tool: ")
    terminal.send("n\r")
    terminal.wait_for("error: the user refused this call")
    terminal.wait_for("It is 42.")
    terminal.wait_for(">")
    terminal.send("and then?\r")
    terminal.wait_for("always this tool: ")
    terminal.send("a\r")
    terminal.wait_for("\x1b[2m  2\x1b[0m")
    terminal.wait_for("wait()")
    terminal.wait_for("always this tool: ")
    terminal.send("y\r")
    while not (tmp_path / "begun").exists():
        time.sleep(0.02)
    os.killpg(terminal.process.pid, signal.SIGINT)
    terminal.wait_for("[stopped]")
    terminal.wait_for(">")
    terminal.send("never mind\r")  # the conversation goes on
    terminal.wait_for("Fine.")
    terminal.wait_for(">")
    terminal.send("more\r")
    terminal.wait_for("add(a=5)")
    terminal.wait_for("Six.")  # no question: always
    terminal.wait_for(">")
    terminal.send("\x04")
    assert terminal.process.wait(timeout=WAIT_S) == 0
