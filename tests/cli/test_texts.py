"""Texts of arguments, files and pipes: escapes, invalid UTF-8, byte order marks."""

from __future__ import annotations

import io
import os
import subprocess
from pathlib import Path

import pytest
from commands import LAMELLA, lamella, tiny_model

from lamella.base.errors import RequestError
from lamella.base.utf8 import read_text
from lamella.cli import chat, run
from lamella.cli.main import parser
from lamella.cli.texts import argument, read_pipe, unescape


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"a\nb", "a\nb"),
        (r"a\\nb", r"a\nb"),
        (r"\x41\t\"", 'A\t"'),
        (r"C:\dir\q", r"C:\dir\q"),
        ("ends with \\", "ends with \\"),
        (r"é\xc3\xa9", "éé"),  # bytes, as in llama.cpp
    ],
)
def test_unescape(text: str, expected: str) -> None:
    assert unescape(text) == expected


@pytest.mark.parametrize("text", ["caf\udce9", r"caf\xe9"])
def test_an_argument_that_is_not_utf8(text: str) -> None:
    with pytest.raises(RequestError, match=r"^the prompt is not valid UTF-8 \(byte 0xE9 at 3\)$"):
        argument("the prompt", text)


def test_a_surrogate_in_an_argument() -> None:
    with pytest.raises(RequestError, match=r"lone surrogate U\+D800 at 0"):
        argument("the prompt", "\ud800")


def test_text_files(tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_bytes(b"\xef\xbb\xbfa\r\n\xc3\xa9\n")
    assert read_text(str(file)) == "a\né\n"
    file.write_bytes(b"caf\xe9")
    with pytest.raises(RequestError, match=r"prompt\.txt is not valid UTF-8 \(byte 0xE9 at 3\)$"):
        read_text(str(file))
    with pytest.raises(RequestError, match=r"nowhere cannot be read: No such file or directory$"):
        read_text("nowhere")


@pytest.mark.parametrize("command", ["run", "chat"])
def test_one_newline_at_the_end_of_a_file_is_not_part_of_the_text(
    command: str, tmp_path: Path
) -> None:
    (tmp_path / "prompt").write_text("a\n\n")
    args = parser([command]).parse_args([command, "-f", str(tmp_path / "prompt")])
    text = run._prompt(args, None) if command == "run" else chat._first(args)
    assert text == "a\n"


def test_a_line_explains_a_long_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    written = []

    class Stderr(io.StringIO):
        def write(self, text: str) -> int:
            written.append(text)
            os.close(writer)
            return len(text)

    monkeypatch.setattr("lamella.cli.texts.WAIT_SECONDS", 0.01)
    with open(reader, encoding="utf-8") as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        monkeypatch.setattr("sys.stderr", Stderr())
        assert read_pipe("the piped text") == ""
    assert written == [
        "lamella: waiting for the piped text: end the command with </dev/null if there is none\n"
    ]


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        (["-p", "caf\udce9"], "the prompt"),
        (["-p", r"caf\xe9"], "the prompt"),
        (["-p", "caf\udce9", "--no-escape"], "the prompt"),
        (["-f", "FILE"], "FILE"),
        ([], "the prompt"),  # stdin
    ],
)
def test_a_prompt_that_is_not_utf8(tmp_path: Path, flags: list[str], what: str) -> None:
    file = tmp_path / "prompt.txt"
    file.write_bytes(b"caf\xe9")
    flags = [flag.replace("FILE", str(file)) for flag in flags]
    done = lamella("run", "-m", "nowhere", *flags, stdin="caf\udce9")
    assert done.returncode == 1
    what = what.replace("FILE", str(file))
    assert done.stderr == f"lamella: error: {what} is not valid UTF-8 (byte 0xE9 at 3)\n"


def test_bytes_of_a_pipe(tmp_path: Path) -> None:
    command = [*LAMELLA, "run", "-m", str(tiny_model(tmp_path)), "-n", "1", "--json"]
    strict = os.environ | {"PYTHONIOENCODING": "utf-8:strict"}  # as in most locales
    for data, complaint in ((b"caf\xe9", b"(byte 0xE9 at 3)"), (b"\xef\xbb\xbfa\r\n", b"")):
        done = subprocess.run(
            command, input=data, capture_output=True, timeout=250, check=False, env=strict
        )
        assert complaint in done.stderr
        assert done.returncode == (1 if complaint else 0)
        assert b"Traceback" not in done.stderr
