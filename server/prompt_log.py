"""Writes the prompts and the texts of requests to files, for --log-prompts-dir.

A thread writes a JSON file for each request when it ends. The newest N_FILES_MAX files stay. A full
disk or a slow one costs files, never a request. Knows no route.
Tested by tests/server/test_prompt_log.py.
"""

from __future__ import annotations

import json
import os
import queue
import re
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..base.errors import RequestError
from ..base.log import get_logger
from ..model.vocab import Vocab
from .bridge import Choice

log = get_logger("server")

N_FILES_MAX: Final = 1000
N_CHARS_MAX: Final = 1 << 20  # of a prompt, and of a text
N_WAITING_MAX: Final = 64  # ended requests that are not written yet
_NAME: Final = re.compile(r"\d{13}-\d{6}\.json")


@dataclass(frozen=True, slots=True)
class Ended:
    """A request that has ended. `n_each` choices continue each prompt."""

    id: str
    path: str
    vocab: Vocab
    prompts: Sequence[Sequence[int]]
    choices: Sequence[Choice]
    n_each: int


class PromptLog:
    """The files of a folder. `add` may be called in any thread."""

    def __init__(self, folder: str) -> None:
        """Make the folder if there is none.

        Raises:
            RequestError: it cannot be made or read.
        """
        self._folder = Path(folder)
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            names = sorted(name for name in os.listdir(folder) if _NAME.fullmatch(name))
        except OSError as e:
            raise RequestError(f"log_prompts_dir: {folder}: {e.strerror}") from e
        self._names = deque(names)
        self._n_written = 0
        self._is_failing = False  # one line in the log, until a file is written again
        self._waiting: queue.Queue[Ended] = queue.Queue(N_WAITING_MAX)
        threading.Thread(target=self._work, name="lamella-prompts", daemon=True).start()

    def add(self, ended: Ended) -> None:
        """Write a file soon. It is left out if too many are waiting."""
        try:
            self._waiting.put_nowait(ended)
        except queue.Full:
            self._failed("the disk is too slow")

    def flush(self) -> None:
        """Wait until all files are written."""
        self._waiting.join()

    def _work(self) -> None:
        while True:
            ended = self._waiting.get()
            try:
                self._write(ended)
                self._is_failing = False
            except Exception as e:
                self._failed(str(e))
            finally:
                self._waiting.task_done()

    def _failed(self, why: str) -> None:
        if not self._is_failing:
            self._is_failing = True
            log.warning("prompts are not written to %s: %s", self._folder, why)

    def _write(self, ended: Ended) -> None:
        while len(self._names) >= N_FILES_MAX:
            with suppress(FileNotFoundError):
                (self._folder / self._names.popleft()).unlink()
        self._n_written += 1
        name = f"{time.time_ns() // 10**6:013}-{self._n_written % 10**6:06}.json"
        path = self._folder / name
        file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        try:
            with os.fdopen(file, "w", encoding="utf-8") as out:
                json.dump(_report(ended), out, ensure_ascii=False)
        except BaseException:
            path.unlink()
            raise
        self._names.append(name)


def _report(ended: Ended) -> dict[str, object]:
    def text(prompt: Sequence[int]) -> str:
        return ended.vocab.detokenize(prompt, special=True)[:N_CHARS_MAX]

    texts = [
        {
            "prompt": choice.index // ended.n_each,
            "text": choice.text[:N_CHARS_MAX],
            "stop_type": None if choice.result is None else choice.result.stop_type.value,
        }
        for choice in ended.choices
    ]
    prompts = [text(prompt) for prompt in ended.prompts]
    return {"id": ended.id, "path": ended.path, "prompts": prompts, "texts": texts}
