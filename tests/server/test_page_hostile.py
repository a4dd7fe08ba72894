"""Hostile Markdown in a browser: only the known elements and attributes, no script, no request, and
linear time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

import pytest
from hostile_markdown import HOSTILE
from http_world import RunningServer
from matrix import first
from page_browser import Browser, open_browser
from page_world import Chat, served

ALLOWED: Final = {
    **dict.fromkeys(("p", "h3", "h4", "h5", "h6", "blockquote", "em", "strong", "del"), ()),
    **dict.fromkeys(("code", "li", "ul", "table", "thead", "tbody", "tr", "td", "br", "hr"), ()),
    "ol": ("start",),
    "th": ("scope",),
    "a": ("href", "title", "target", "rel"),
    "pre": ("tabindex",),
    "div": ("role", "aria-label", "tabindex"),
    "span": ("role", "aria-label"),
    "button": ("type", "title", "aria-label"),
    "svg": ("viewBox", "aria-hidden"),
    "path": ("d",),
}
COMMON: Final = ("class", "dir")
CLASSES: Final = (
    *("code", "bar", "tool", "icon", "plain", "table", "task", "box", "loose", "math", "control"),
    *("left", "center", "right"),
)
N_ELEMENTS: Final = 25_000
N_SECONDS: Final = 3.0  # for one text: linear ones take a tenth of it, quadratic ones minutes

# draws a text as a whole, then piece by piece as a stream; returns what it made
DRAW: Final = """
const [text, nPieces, done] = arguments;
const unique = (values) => [...new Set(values)];
const depth = (e, place) => (e === place ? 0 : 1 + depth(e.parentElement, place));
import("/ui/markdown.js").then(({ Markdown }) => {
  const place = document.createElement("div");
  document.body.append(place);
  const begin = performance.now();
  const view = new Markdown(place);
  for (let i = 1; i < nPieces; i++) {
    view.update(text.slice(0, Math.floor((text.length * i) / nPieces)));
  }
  view.update(text, true);
  const ms = performance.now() - begin;
  const all = [...place.querySelectorAll("*")];
  const links = all.filter((e) => e.localName === "a");
  const found = {
    ms,
    n: all.length,
    pairs: unique(all.flatMap(
      (e) => [e.localName, ...[...e.attributes].map((a) => `${e.localName} ${a.name}`)])),
    classes: unique(all.flatMap((e) => [...e.classList])),
    links: unique(links.map((e) => new URL(e.href).protocol)),
    relations: unique(links.map((e) => e.rel)),
    deepest: all.reduce((most, e) => Math.max(most, depth(e, place)), 0),
    isBidi: /[\\u202a-\\u202e\\u2066-\\u2069]/.test(place.textContent),
    shown: place.textContent.length,
  };
  place.remove();
  done(found);
});
"""


def play(prompt: str) -> str:
    return "Hm.\n\n" + "\n\n".join(HOSTILE[name] for name in SHORT)


SHORT: Final = [name for name, text in HOSTILE.items() if len(text) < 200 and text.isascii()]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with served(tmp_path_factory.mktemp("page") / "model", play) as server:
        yield server


@pytest.fixture(scope="module")
def browser(server: RunningServer) -> Iterator[Browser]:
    with open_browser() as opened:
        opened.driver.get(f"{server.url}/status")
        yield opened


def check_nothing_ran(browser: Browser) -> None:
    assert browser.complaints() == []
    assert browser.js("window.hacked") is None
    origin = browser.js("location.origin")
    loaded = browser.js("performance.getEntriesByType('resource').map((e) => e.name)")
    assert [name for name in loaded if not name.startswith((origin, "data:"))] == []


@pytest.mark.parametrize("n_pieces", first(1, [4, 1]))
def test_only_known_elements_in_linear_time(browser: Browser, n_pieces: int) -> None:
    names = {tag: {f"{tag} {name}" for name in (*COMMON, *names)} for tag, names in ALLOWED.items()}
    allowed = names.keys() | set().union(*names.values())
    slow = {}
    for name, text in HOSTILE.items():
        begin = time.monotonic()
        found = browser.driver.execute_async_script(DRAW, text, n_pieces)
        assert set(found["pairs"]) <= allowed, name
        classes = {each for each in found["classes"] if not each.startswith("hl-")}
        assert classes <= set(CLASSES), name
        assert set(found["links"]) <= {"http:", "https:", "mailto:"}, name
        assert set(found["relations"]) <= {"noopener noreferrer nofollow"}, name
        assert not found["isBidi"], name
        assert found["n"] <= N_ELEMENTS, name
        assert found["deepest"] <= 60, name
        assert found["shown"] > 0, name
        if time.monotonic() - begin > N_SECONDS * n_pieces:
            slow[name] = found["ms"]
    assert slow == {}
    check_nothing_ran(browser)


# draws a text as a whole, and character by character: returns both
BOTH: Final = """
const [text, done] = arguments;
import("/ui/markdown.js").then(({ Markdown }) => {
  const [whole, stream] = ["div", "div"].map((tag) => document.createElement(tag));
  new Markdown(whole).update(text, true);
  const view = new Markdown(stream);
  for (let n = 1; n < text.length; n++) view.update(text.slice(0, n));
  view.update(text, true);
  done([whole.innerHTML, stream.innerHTML]);
});
"""


@pytest.mark.parametrize(
    "text",
    [
        "one\n***two*** three",
        "the tag\n#two of it",
        "- one\n#two\n- three",
        "a table\n| a | b |\n|---|---|\n| 1 | 2 |\n\nend",
        "1. one\n\n```python\nx = 1\n```\n2. two\n> three\n---\nfour",
        "",
        "\n\n",
    ],
)
def test_a_stream_ends_as_the_whole_text(browser: Browser, text: str) -> None:
    whole, stream = browser.driver.execute_async_script(BOTH, text)
    assert stream == whole


def test_the_check_would_find_an_element(browser: Browser) -> None:
    """The page has other elements, so the list of allowed ones says something."""
    found = browser.js("[...document.querySelectorAll('*')].map((e) => e.localName)")
    assert set(found) - ALLOWED.keys()


def test_an_answer_with_all_of_them(browser: Browser, server: RunningServer) -> None:
    chat = Chat(browser, server).open().ready()
    text = chat.ask("be evil")
    assert "window.hacked" in text
    chat.open(fresh=False).ready()  # and when it comes from the storage
    browser.wait("document.querySelectorAll('#conversations .open').length === 1")
    browser.click("#conversations .open")
    browser.wait("document.querySelectorAll('.message').length === 2")
    inside = "[...document.querySelectorAll('.markdown *')]"
    assert set(browser.js(f"{inside}.map((e) => e.localName)")) <= ALLOWED.keys()
    check_nothing_ran(browser)


def test_a_hostile_title_and_a_hostile_model(browser: Browser, server: RunningServer) -> None:
    title = "<img src=x onerror=window.hacked=1>"
    script = """const [title, done] = arguments;
        const calls = [{ id: "1", name: title, arguments: title }];
        const answer = { content: "", model: title, error: title, calls };
        const files = [{ name: title, text: title }];
        Promise.all([import("/ui/store.js"), import("/ui/tree.js")]).then(async ([store, tree]) => {
          const made = Object.assign(tree.newConversation(), { title });
          tree.addMessage(made, null, "user", { content: title, files });
          tree.addMessage(made, made.leaf, "assistant", answer);
          await store.save(made);
          done();
        });"""
    chat = Chat(browser, server).open().ready()
    browser.driver.execute_async_script(script, title)
    chat.open(fresh=False).ready()
    browser.wait("document.querySelectorAll('#conversations .open').length === 1")
    browser.click("#conversations .open")
    browser.wait("document.querySelectorAll('.message').length === 2")
    assert chat.titles() == [title]
    assert browser.text(".message .error") == title
    assert browser.js("document.querySelectorAll('img').length") == 0
    check_nothing_ran(browser)
