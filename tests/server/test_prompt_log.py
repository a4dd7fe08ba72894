"""Files with the prompts and texts of requests."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from http_world import running

from lamella.base.errors import RequestError
from lamella.server import prompt_log
from lamella.server.config import ServerConfig
from lamella.server.prompt_log import PromptLog

GREEDY = {"temperature": 0, "n_predict": 6, "ignore_eos": True}


@pytest.fixture
def logs(monkeypatch: pytest.MonkeyPatch) -> list[PromptLog]:
    """The logs that servers make."""
    made: list[PromptLog] = []
    begin = PromptLog.__init__

    def recorded(self: PromptLog, folder: str) -> None:
        begin(self, folder)
        made.append(self)

    monkeypatch.setattr(PromptLog, "__init__", recorded)
    return made


def config_of(folder: Path) -> ServerConfig:
    return ServerConfig(port=0, log_prompts_dir=str(folder))


def reports(log: PromptLog, folder: Path) -> list[Any]:
    log.flush()
    return [json.loads(path.read_text()) for path in sorted(folder.iterdir())]


def test_each_request_has_a_file(tmp_path: Path, logs: list[PromptLog]) -> None:
    folder = tmp_path / "new" / "prompts"
    with running(config=config_of(folder)) as server:
        one = server.ok("/completion", prompt=["abc", "de"], n_cmpl=2, **GREEDY)
        server.post(
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "a"}], "stream": True, **GREEDY},
        )
        assert server.post("/completion", {"prompt": "abc", "n_predict": "x"}).status == 400
        first, chat = reports(logs[0], folder)
    assert (first["path"], first["prompts"]) == ("/completion", ["<s>abc", "<s>de"])
    assert [each["text"] for each in first["texts"]] == [each["content"] for each in one]
    assert [each["prompt"] for each in first["texts"]] == [0, 0, 1, 1]
    assert first["texts"][0]["stop_type"] == "limit" and first["id"].startswith("req_")
    assert chat["path"] == "/v1/chat/completions" and chat["texts"][0]["text"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_the_newest_files_stay(
    tmp_path: Path, logs: list[PromptLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt_log, "N_FILES_MAX", 3)
    monkeypatch.setattr(prompt_log, "N_CHARS_MAX", 5)
    (tmp_path / "mine.json").write_text("1")
    (tmp_path / "0000000000001-000001.json").write_text("2")
    with running(config=config_of(tmp_path)) as server:
        for prompt in ("a", "b", "c", "d"):
            server.ok("/completion", prompt=prompt * 9, **GREEDY)
        *found, mine = reports(logs[0], tmp_path)
    assert [report["prompts"] for report in found] == [["<s>bb"], ["<s>cc"], ["<s>dd"]]
    assert mine == 1, "other files are left alone"
    assert all(len(report["texts"][0]["text"]) <= 5 for report in found)


def test_a_failing_disk_costs_no_request(
    tmp_path: Path, logs: list[PromptLog], caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "prompts"
    with running(config=config_of(folder)) as server:
        folder.rmdir()
        for _ in range(2):
            server.ok("/completion", prompt="a", **GREEDY)
        logs[0].flush()
        folder.mkdir()
        server.ok("/completion", prompt="b", **GREEDY)
        (report,) = reports(logs[0], folder)
    assert report["prompts"] == ["<s>b"]
    lines = [line for line in caplog.messages if "prompts are not written" in line]
    assert len(lines) == 1


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RequestError, match=r"log_prompts_dir: .*file: File exists"):
        PromptLog(str(tmp_path / "file"))
