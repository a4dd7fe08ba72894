"""`lamella run` with a question, and without a prompt: a model with a chat template answers."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from commands import LAMELLA, lamella, tiny_model

from lamella.model.chat.template import NO_TEMPLATE

ROOT = Path(__file__).resolve().parents[2]
ANSWERS = json.loads((ROOT / "models" / "greedy.json").read_text("utf-8"))
QUESTION = "Who are you?"
CHATS = "lamella-stories"  # the bundled model has a chat template
GREEDY = ["--temp", "0"]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model without a chat template."""
    return tiny_model(tmp_path_factory.mktemp("run"))


@pytest.mark.parametrize(
    "args",
    [
        [CHATS, QUESTION],
        ["-m", CHATS, QUESTION],
        ["--temp", "0", CHATS, "-n", "-1", QUESTION],
        ["-st", "-p", QUESTION],
        ["-cnv", "-st", "-p", QUESTION],
    ],
)
def test_a_question_is_answered(args: list[str]) -> None:
    done = lamella("run", *args, *GREEDY)
    assert (done.returncode, done.stdout) == (0, ANSWERS[QUESTION] + "\n")
    assert "ended by eos" in done.stderr


def test_stdin_may_have_the_question() -> None:
    done = lamella("run", "-st", *GREEDY, stdin=QUESTION)
    assert done.stdout == ANSWERS[QUESTION] + "\n"


@pytest.mark.parametrize("args", [["-p", "Once"], [CHATS, "Once", "-no-cnv"], ["-f", "FILE"]])
def test_a_text_is_continued(args: list[str], tmp_path: Path) -> None:
    (tmp_path / "text").write_text("Once")
    args = [str(tmp_path / "text") if arg == "FILE" else arg for arg in args]
    report = json.loads(lamella("run", *args, "-n", "4", *GREEDY, "--json").stdout)
    assert report["text"].startswith(" upon a time")


def test_a_model_without_a_template_continues_the_question(base: Path) -> None:
    flags = ["-n", "5", *GREEDY]
    done = lamella("run", base, "a b", *flags, terminal=True)
    assert done.stdout == lamella("run", base, "-p", "a b", *flags).stdout
    assert "the model has no usable chat template: it continues the prompt" in done.stderr


def test_a_system_prompt_makes_it_a_chat(base: Path) -> None:
    flags = ["-n", "1", *GREEDY, "--json"]
    found = [
        json.loads(lamella("run", base, "-p", "a", *more, *flags).stdout)["prompt_tokens"]
        for more in ([], ["-st"], ["-sys", "b"], ["-st", "-sys", "b"])
    ]
    assert found[2] == found[3]
    assert len(found[0]) < len(found[1]) < len(found[2])
    for more in (["-st"], ["-sys", "b"]):
        done = lamella("run", base, "-p", "a", *more, *flags)
        assert done.stderr.count(NO_TEMPLATE.format("chatml")) == 1
    done = lamella("run", base, "-no-cnv", "-p", "a", "-sys", "b")
    assert done.returncode == 1
    assert "-sys is for chats and cannot be combined with -no-cnv" in done.stderr


def test_a_pipe_comes_before_the_question() -> None:
    run = [*LAMELLA, "run", CHATS, "What?", "-n", "1", "--json"]
    done = subprocess.run(run, input="A fox.\n", capture_output=True, text=True, check=True)
    joined = lamella("run", CHATS, "A fox.\n\nWhat?", "-n", "1", "--json")
    tokens = [json.loads(text)["prompt_tokens"] for text in (done.stdout, joined.stdout)]
    assert tokens[0] == tokens[1]


@pytest.mark.parametrize("args", [[], [CHATS], ["-m", CHATS]])
def test_a_terminal_without_a_prompt_gets_a_chat(args: list[str]) -> None:
    done = lamella("run", *args, *GREEDY, typed=f"{QUESTION}\n/bye\n", terminal=True)
    assert (done.returncode, done.stdout) == (0, ANSWERS[QUESTION] + "\n")
    assert done.stderr.count("comes with Lamella") == (0 if args else 1)


def test_cnv_chats() -> None:
    done = lamella("run", CHATS, QUESTION, "-cnv", *GREEDY, stdin=f"{QUESTION}\n")
    assert done.stdout.startswith(ANSWERS[QUESTION] + "\n") and done.stdout.count("\n") == 2


@pytest.mark.parametrize("args", [["-no-cnv"], ["-st"], ["MODEL"]])
def test_a_terminal_without_a_prompt_is_told_what_to_do(args: list[str], base: Path) -> None:
    done = lamella("run", *(base if arg == "MODEL" else arg for arg in args), typed="")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no prompt: give one as an argument after the model, with -p, -f or a" in done.stderr
    has_hint = "`lamella chat` chats with it nevertheless" in done.stderr
    assert has_hint is (args == ["MODEL"])


@pytest.mark.parametrize("cnv", [[], ["-cnv"]])
@pytest.mark.parametrize(
    ("flags", "name"),
    [
        (["--json"], "--json"),
        (["--trace-tensors", "a"], "--trace-tensors"),
    ],
)
def test_flags_of_one_answer_are_refused_in_a_chat(
    cnv: list[str], flags: list[str], name: str
) -> None:
    done = lamella("run", CHATS, *cnv, *flags, typed="")
    assert done.returncode == 2
    assert f"{name} is for one answer, not for a chat: give a prompt, or -st" in done.stderr


@pytest.mark.parametrize("args", [[CHATS, "a", "-p", "b"], ["-p", "a", "-f", "b"]])
def test_two_prompts(args: list[str]) -> None:
    done = lamella("run", *args)
    assert done.returncode == 1
    assert "PROMPT, -p and -f cannot be combined: give one prompt" in done.stderr


@pytest.mark.parametrize("command", ["run", "chat"])
def test_words_without_quotes(command: str) -> None:
    done = lamella(command, CHATS, "why", "is", "it")
    assert done.returncode == 2
    assert "unexpected argument 'is'; put a text of several words in quotes" in done.stderr


def test_a_message_of_chat_may_follow_m() -> None:
    done = lamella("chat", "-m", CHATS, QUESTION, "-st", *GREEDY)
    assert (done.returncode, done.stdout) == (0, ANSWERS[QUESTION] + "\n")
