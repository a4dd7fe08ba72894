"""axe-core finds no serious fault of accessibility in the pages.

It comes from npm. LAMELLA_TEST_AXE may name its file axe.min.js; the tests skip without both.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from http_world import RunningServer
from matrix import first
from page_browser import ESCAPE, Browser, open_browser
from page_world import Chat, served
from tools_world import call

PACKAGE: Final = "axe-core@4.14.1"
N_SECONDS: Final = 60
RUN: Final = """
const done = arguments[0];
axe.run(document, { resultTypes: ["violations"] }).then(
  ({ violations }) => done(
    violations.map((v) => [v.impact, v.id, v.nodes.map((n) => n.html).slice(0, 3)])),
  (error) => done(String(error)));
"""
ANSWER: Final = """<think>Let me see.</think># Title

A [link](https://example.com), `code` and a list:

- [x] done
- [ ] not done

```python
def f(x):  # a comment
    return "text" + str(1)
```

| a | b |
|---|--:|
| 1 | 2 |
"""


def play(prompt: str) -> str:
    return call("look", '{"x": 1}') if "call it" in prompt else ANSWER


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The source of axe-core."""
    if path := os.environ.get("LAMELLA_TEST_AXE"):
        return Path(path).read_text("utf-8")
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed, and LAMELLA_TEST_AXE names no axe-core")
    folder = tmp_path_factory.mktemp("axe")
    command = [npm, "pack", PACKAGE, "--silent", "--pack-destination", str(folder)]
    try:
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=N_SECONDS)
    except (subprocess.SubprocessError, OSError) as error:
        pytest.skip(f"npm could not get {PACKAGE}: {error}")
    (archive,) = folder.glob("*.tgz")
    with tarfile.open(archive) as files:
        member = files.extractfile("package/axe.min.js")
        assert member is not None
        return member.read().decode()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with served(tmp_path_factory.mktemp("page") / "model", play) as server:
        yield server


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


def serious(browser: Browser, axe: str) -> list[Any]:
    """The faults that axe-core calls serious or critical."""
    if browser.js("typeof window.axe") == "undefined":
        browser.driver.execute_script(axe)
    found = browser.driver.execute_async_script(RUN)
    assert isinstance(found, list), found
    return [fault for fault in found if fault[0] in ("serious", "critical")]


@pytest.mark.parametrize("theme", first(1, ["light", "dark"]))
def test_the_chat_page(browser: Browser, server: RunningServer, axe: str, theme: str) -> None:
    browser.prefer(theme)
    chat = Chat(browser, server).open().ready()
    assert serious(browser, axe) == []  # an empty conversation
    chat.ask("hello")
    browser.click(".reasoning summary")
    chat.press_button("Ask again")
    chat.answer()
    assert serious(browser, axe) == []
    browser.click("#settings-button")
    browser.click("#settings details summary")
    assert serious(browser, axe) == []
    browser.press(ESCAPE)
    browser.click("#about-button")
    browser.wait("document.querySelectorAll('#about .device').length > 0")
    assert serious(browser, axe) == []
    browser.press(ESCAPE)


@pytest.mark.parametrize("theme", first(1, ["dark", "light"]))
def test_the_status_page(browser: Browser, server: RunningServer, axe: str, theme: str) -> None:
    browser.prefer(theme)
    browser.driver.get(f"{server.url}/status")
    browser.wait("document.querySelectorAll('#devices .device').length > 0")
    browser.click("details summary")
    assert serious(browser, axe) == []


def test_faults_are_found(browser: Browser, server: RunningServer, axe: str) -> None:
    browser.driver.get(f"{server.url}/status")
    browser.wait("document.querySelectorAll('#devices .device').length > 0")
    browser.js("(document.querySelector('main').append(document.createElement('button')), 1)")
    assert [fault[1] for fault in serious(browser, axe)] == ["button-name"]
