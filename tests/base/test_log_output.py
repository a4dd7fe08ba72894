"""The log's options: levels, formats, files, and writing in the background."""

from __future__ import annotations

import gc
import io
import json
import logging
import os
import re
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lamella.base import log_output
from lamella.base.errors import RequestError
from lamella.base.log import Lines
from lamella.base.log_output import LogParams, log_in_background, set_up_log

log = logging.getLogger("lamella.server")


@pytest.fixture(autouse=True)
def plain_root() -> Iterator[None]:
    """No handlers before a test, and its own are closed after it."""
    root = logging.getLogger("lamella")
    root.handlers.clear()
    yield
    for handler in root.handlers:
        handler.close()


class Answer:
    def as_dict(self) -> dict[str, Any]:
        return {"answer": 42}

    def __str__(self) -> str:
        return "the answer is 42"


def logged(capsys: pytest.CaptureFixture[str], **params: Any) -> str:
    """The lines of one message of each level."""
    set_up_log(LogParams(**params), logging.INFO)
    log.debug("much")
    log.info(Answer())
    log.warning("look")
    log.error("bad: %d", 7)
    log.critical("the end")
    return capsys.readouterr().err


ALL = ["much", "the answer is 42", "look", "error: bad: 7", "error: the end"]


@pytest.mark.parametrize(
    ("params", "first"),
    [
        ({}, 1),
        ({"log_verbosity": 0}, 3),
        ({"log_verbosity": 1}, 3),
        ({"log_verbosity": 2}, 2),
        ({"log_verbosity": 3}, 1),
        ({"log_verbosity": 4}, 0),
        ({"log_verbosity": 99}, 0),
        ({"log_disable": True}, 4),
    ],
)
def test_levels(capsys: pytest.CaptureFixture[str], params: dict[str, Any], first: int) -> None:
    assert logged(capsys, **params).splitlines() == [f"lamella: {text}" for text in ALL[first:]]


def test_prefix_and_time(capsys: pytest.CaptureFixture[str]) -> None:
    lines = logged(capsys, log_prefix=False, log_timestamps=True).splitlines()
    time = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d"
    for line, text in zip(lines, ALL[1:], strict=True):
        assert re.fullmatch(f"{time} {re.escape(text)}", line), line


def test_json_lines(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [json.loads(line) for line in logged(capsys, log_format="json").splitlines()]
    assert [line["level"] for line in lines] == ["info", "warning", "error", "critical"]
    assert {line["room"] for line in lines} == {"server"}
    assert lines[0]["answer"] == 42
    assert lines[2]["message"] == "bad: 7"
    assert all(line["time"][:2] == "20" for line in lines)


def test_a_traceback_is_part_of_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_log(LogParams(log_format="json"), logging.INFO)
    try:
        raise KeyError("x")
    except KeyError:
        log.exception("failed")
    assert "KeyError" in json.loads(capsys.readouterr().err)["traceback"]


FORGED = "a\nlamella: forged\r\x1b[31m\x85\u2028\x00\u202e"
ESCAPED = r"a\nlamella: forged\r\x1b[31m\x85\u2028\x00\u202e"


@pytest.mark.parametrize("in_background", [True, False])
def test_no_text_forges_a_line(capsys: pytest.CaptureFixture[str], in_background: bool) -> None:
    set_up_log(LogParams(), logging.INFO)
    with log_in_background() if in_background else nullcontext():
        log.info(FORGED)
        log.warning("of the type %s: left out", FORGED)
        log.info(ForgedMessage())
        log.error("failed: %s", KeyError("x"), exc_info=ValueError(FORGED))
    first, second, third, fourth, *traceback = capsys.readouterr().err.split("\n")
    assert first == f"lamella: {ESCAPED}"
    assert second == f"lamella: of the type {ESCAPED}: left out"
    assert third == f"lamella: {ESCAPED}"
    assert fourth == "lamella: error: failed: 'x'"
    assert traceback == ["  ValueError: a", "  " + ESCAPED[3:], ""]


class ForgedMessage:
    """A message that is an object."""

    def __str__(self) -> str:
        return FORGED


@pytest.mark.parametrize("format", ["text", "json"])
def test_no_text_makes_a_long_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    # a failure must not print the texts
    monkeypatch.setattr(logging.getLogger("lamella"), "propagate", False)
    set_up_log(LogParams(log_format=format), logging.INFO)
    for text in ("é" * 400_000, "\x1b" * 400_000, "\U0001fffe" * 8192):
        log.warning("of the type %s: left out", text)
        log.info(LongMessage(text))
    for line in capsys.readouterr().err.splitlines():
        text = line if format == "text" else json.loads(line)["message"]
        assert len(text) < 4200 and "characters) ..." in text
        assert len(line) < 50_000  # JSON needs 12 for some characters
    try:
        raise ValueError("b" * 400_000 + "the end")
    except ValueError:
        log.exception("failed")
    shown = capsys.readouterr().err
    assert len(shown) < 40_000 and "Traceback" in shown and "the end" in shown


@dataclass
class LongMessage:
    text: str

    def as_dict(self) -> dict[str, Any]:
        return {"message": self.text, "n": 1}

    def __str__(self) -> str:
        return self.text


def test_lines_of_ours_stay_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    text = "x\n  y\n" + "z" * 100_000
    set_up_log(LogParams(), logging.INFO)
    log.info(Lines(text))
    assert capsys.readouterr().err == f"lamella: {text}\n"


def test_a_log_file_is_appended_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.log"
    path.write_text("before\n")
    shown = logged(capsys, log_file=str(path), log_colors="auto")
    assert path.read_text() == "before\n" + shown


def test_a_log_file_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"--log-file .*a\.log: No such file"):
        set_up_log(LogParams(log_file=str(tmp_path / "no" / "a.log")), logging.INFO)


def test_colors(capsys: pytest.CaptureFixture[str]) -> None:
    assert "\x1b[33mlamella: look\x1b[0m\n" in logged(capsys, log_colors="on")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("no_color", "expected"), [("", True), ("1", False)])
def test_colors_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, no_color: str, expected: bool
) -> None:
    terminal = Terminal()
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setattr("sys.stderr", terminal)
    set_up_log(LogParams(), logging.INFO)
    log.warning("look")
    assert ("\x1b" in terminal.getvalue()) == expected


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The end to read of a pipe that takes the log."""
    reader, writer = os.pipe()
    with open(writer, "w", encoding="utf-8") as full:
        monkeypatch.setattr("sys.stderr", full)
        set_up_log(LogParams(), logging.INFO)
        yield reader
        drain = threading.Thread(target=lambda: list(iter(lambda: os.read(reader, 65536), b"")))
        drain.start()
    drain.join()
    os.close(reader)


def fill() -> None:
    """More than a pipe holds."""
    for _ in range(100):
        log.info("%s", "x" * 5000)


def test_a_log_that_nobody_reads_drops_lines(pipe: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_output, "N_QUEUED_MAX", 20)
    with log_in_background():
        fill()
        with open(os.dup(pipe), encoding="utf-8") as lines:
            n_written = n_dropped = 0
            while n_written + n_dropped < 100:  # a slow machine may drop lines in several batches
                dropped = re.search(r"(\d+) lines? w\w+ dropped", line := lines.readline())
                n_dropped += int(dropped[1]) if dropped else 0
                n_written += "xxx" in line
            assert 20 <= n_written < 100 == n_written + n_dropped
            log.info("again")
            assert lines.readline() == "lamella: again\n"


def test_the_line_about_dropped_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_output, "N_QUEUED_MAX", 2)
    monkeypatch.setattr(log_output, "PAUSE_SECONDS", 60)
    set_up_log(LogParams(log_prefix=False), logging.INFO)
    with log_in_background():
        log.info("first")
        while not (shown := capsys.readouterr().err):
            time.sleep(0.001)
        for i in range(5):
            log.info("%d", i)
    assert shown == "first\n"
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["0", "1", "3 lines were dropped: the reader of the log is too slow"]


def test_the_end_does_not_wait_for_a_paused_reader(
    pipe: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_output, "N_CLOSE_SECONDS", 0.1)
    with log_in_background() as writer:
        fill()
    assert writer.is_stuck


@pytest.mark.usefixtures("pipe")
def test_waiting_lines_do_not_hold_their_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_output, "N_CLOSE_SECONDS", 0.1)
    monkeypatch.setattr(logging.getLogger("lamella"), "propagate", False)  # pytest keeps records
    with log_in_background():
        fill()
        message = Answer()
        known = weakref.ref(message)
        log.info(message)
        del message
        gc.collect()
        assert known() is None


def test_an_invalid_character_loses_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # pytest must not capture the record: a process of pytest-xdist cannot send such a text
    monkeypatch.setattr(logging.getLogger("lamella"), "propagate", False)
    path = tmp_path / "a.log"
    set_up_log(LogParams(log_file=str(path), log_prefix=False), logging.INFO)
    with log_in_background():
        for text in ("before", "bad \udcff", "after"):
            log.info(text)
    assert path.read_text() == "before\nbad \\udcff\nafter\n"


def test_filters_of_outputs_work_in_the_background(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_log(LogParams(log_prefix=False), logging.INFO)
    logging.getLogger("lamella").handlers[0].addFilter(lambda record: record.msg != "no")
    with log_in_background():
        log.info("no")
        log.info("yes")
    assert capsys.readouterr().err == "yes\n"


def test_a_broken_message_does_not_stop_the_log(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)
    set_up_log(LogParams(), logging.INFO)
    with log_in_background():
        log.info("%d", "text")
        log.info("after")
    assert capsys.readouterr().err == "lamella: after\n"


def test_lines_in_the_background_keep_their_order(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    set_up_log(LogParams(log_file=str(path), log_prefix=False), logging.INFO)
    with log_in_background():
        for i in range(1000):
            log.info("%d", i)
    log.info("end")
    assert path.read_text().split() == [*map(str, range(1000)), "end"]
