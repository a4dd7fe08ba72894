from __future__ import annotations

import threading

import pytest

from lamella.base.background import begin


def test_the_future_has_the_result() -> None:
    name = begin(lambda: threading.current_thread().name, "some-name")
    assert name.result(10) == "some-name"


def test_the_future_has_the_error() -> None:
    def fail() -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        begin(fail, "fails").result(10)


def test_nothing_waits_for_the_thread() -> None:
    end = threading.Event()
    waiting = begin(end.wait, "waits")
    [thread] = [thread for thread in threading.enumerate() if thread.name == "waits"]
    assert thread.daemon
    end.set()
    assert waiting.result(10)
