"""The pages at GET /status and /explain in a browser."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator

import pytest
from http_world import RunningServer
from page_browser import Browser, open_browser
from page_world import served

LONG = "word " * 3000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with served(tmp_path_factory.mktemp("page") / "model", lambda _: LONG) as server:
        yield server


@pytest.fixture(scope="module")
def tab() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


@pytest.fixture
def browser(tab: Browser) -> Iterator[Browser]:
    yield tab
    assert tab.complaints() == []


def test_a_running_request_and_its_steps(browser: Browser, server: RunningServer) -> None:
    browser.driver.get(f"{server.url}/status")
    browser.wait("document.getElementById('state').textContent === 'ready'")
    body = {"messages": [{"role": "user", "content": "Go."}], "max_tokens": 4000}
    body["speculative.type"] = "none"  # each token has a step
    thread = threading.Thread(target=server.ok, args=("/v1/chat/completions",), kwargs=body)
    thread.start()
    try:
        browser.wait("document.querySelectorAll('.job').length === 1")
        assert re.match(r"prompt \d+ of \d+", browser.text(".job span"))
        browser.wait("+document.getElementById('timeline').dataset.steps > 0")
        colors = browser.js(
            "(() => { const c = document.getElementById('timeline');"
            "const image = c.getContext('2d').getImageData(0, 0, c.width, c.height);"
            "return new Set(image.data).size })()"
        )
        assert colors >= 4
    finally:
        thread.join()
    browser.wait("document.querySelectorAll('.job').length === 0")
    # the page may have asked between the end of the text and that of the request
    browser.wait(
        "[...document.querySelectorAll('#totals dt')].some(t => t.textContent === 'requests'"
        " && t.nextElementSibling.textContent === '1')"
    )
    browser.click("details summary")
    assert len(browser.texts("#steps tr")) == 12
    facts = dict(zip(browser.texts("#totals dt"), browser.texts("#totals dd"), strict=True))
    assert int(facts["steps"].replace(",", "")) >= 3000
    assert browser.texts(".device b") == ["CPU"]


def test_a_server_that_stops_answering(browser: Browser, server: RunningServer) -> None:
    browser.driver.get(f"{server.url}/status")
    browser.wait("document.getElementById('state').textContent === 'ready'")
    browser.js("(window.fetch = () => Promise.reject(new TypeError('gone')), 1)")
    browser.wait("!document.getElementById('notice').hidden")
    assert browser.text("#notice") == "The server cannot be reached."


def test_the_placement_is_drawn(browser: Browser, server: RunningServer) -> None:
    browser.driver.get(f"{server.url}/explain")
    browser.wait("document.getElementById('lanes').dataset.nodes > 0")
    explanation = json.loads(server.get("/explain.json").raw)["explanation"]
    assert (
        int(browser.js("document.getElementById('lanes').dataset.nodes")) == explanation["n_nodes"]
    )
    assert browser.text("h1") == "scripted"
