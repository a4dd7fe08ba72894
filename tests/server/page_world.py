"""Shared by the tests of pages in a browser: the chat page, as a user works with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from http_world import RunningServer, running
from page_browser import ENTER, Browser
from scripted import open_scripted
from tools_world import MARKS, TEMPLATE

from lamella.server.config import ServerConfig

SIZES: Final = {"phone": (360, 740), "tablet": (800, 1000), "desktop": (1400, 900)}
# watches what the page sends
SPY: Final = """
window.sent = [];
const fetched = window.fetch;
window.fetch = (url, options) => {
  if (options?.body) sent.push(JSON.parse(options.body));
  return fetched(url, options);
};
"""

# what another tab does
REMOVE_ELSEWHERE: Final = """
import("/ui/store.js").then(async (store) => {
  for (const { id } of await store.list()) await store.remove(id);
  new BroadcastChannel("lamella").postMessage("changed");
  arguments[0]();
});
"""
REMOVE_QUESTION_ELSEWHERE: Final = """
Promise.all([import("/ui/store.js"), import("/ui/tree.js")]).then(async ([store, tree]) => {
  const [{ id }] = await store.list();
  const conversation = await store.load(id);
  const messages = Object.values(conversation.messages);
  const found = messages.find(({ content }) => content === "endless text");
  if (found) {
    tree.removeMessage(conversation, found);
    await store.save(conversation);
  }
  arguments[0](Boolean(found));
});
"""
ASK_ELSEWHERE: Final = """
Promise.all([import("/ui/store.js"), import("/ui/tree.js")]).then(async ([store, tree]) => {
  const [{ id }] = await store.list();
  const conversation = await store.load(id);
  conversation.title = "renamed";
  tree.touch?.(conversation, "title");
  const question = tree.addMessage(conversation, conversation.leaf, "user", { content: "there" });
  tree.addMessage(conversation, question.id, "assistant", { content: "an answer", finish: "stop" });
  await store.save(conversation);
  arguments[0]();
});
"""
READ_AGAIN: Final = """
new BroadcastChannel("lamella").postMessage("changed");
setTimeout(arguments[0], 200);
"""
# the title and all texts that are stored
ALL_TEXTS: Final = """
import("/ui/store.js").then(async (store) => {
  const [{ title, messages }] = await store.all();
  arguments[0]([title, ...Object.values(messages).map(({ content }) => content)].sort());
});
"""


@contextmanager
def served(
    folder: Path, play: Callable[[str], str], config: ServerConfig | None = None, **options: Any
) -> Iterator[RunningServer]:
    """A server whose model plays texts."""
    folder.mkdir(exist_ok=True)
    sizes = {"n_ctx": 8192, "n_ubatch": 256, "n_batch": 256}  # little memory to poison
    given: dict[str, Any] = {"chat_template": TEMPLATE, **sizes} | options
    with running(lambda: open_scripted(folder, play, marks=MARKS, **given), config) as server:
        yield server


class Chat:
    """The chat page of a server."""

    def __init__(self, browser: Browser, server: RunningServer) -> None:
        self.browser, self.server = browser, server

    def open(self, path: str = "/", *, fresh: bool = True) -> Chat:
        """Open the page; `fresh`: without what earlier tests have stored."""
        browser = self.browser
        if fresh:
            kept = {"origin": self.server.url, "storageTypes": "local_storage,indexeddb"}
            browser.driver.execute_cdp_cmd("Storage.clearDataForOrigin", kept)
        browser.driver.get(self.server.url + path)
        browser.wait("document.readyState === 'complete'")
        return self

    def ready(self) -> Chat:
        """Wait until it knows the model."""
        self.browser.wait("document.getElementById('model-name').textContent !== ''")
        return self

    def type(self, text: str) -> None:
        """Put a text into the question, which has the focus then."""
        script = """const box = document.getElementById("question");
            box.focus();
            box.value = arguments[0];
            box.dispatchEvent(new Event("input"));"""
        self.browser.driver.execute_script(script, text)

    def ask(self, text: str) -> str:
        """Ask a question and return the text of the answer."""
        n = self.n_messages()
        self.type(text)
        self.browser.press(ENTER)
        self.browser.wait(f"document.querySelectorAll('.message').length > {n}")
        return self.answer()

    def answer(self) -> str:
        """The text of the last answer, when it is complete."""
        self.browser.wait("document.querySelectorAll('.message.busy').length === 0")
        texts = self.browser.texts(".message.assistant .markdown:not(.reasoning *)")
        return texts[-1] if texts else ""

    def n_messages(self) -> int:
        return int(self.browser.js("document.querySelectorAll('.message').length"))

    def titles(self) -> list[str]:
        return self.browser.texts("#conversations .open")

    def press_button(self, label: str, within: str = "") -> None:
        """Press the last button with this label."""
        script = (
            "[...document.querySelectorAll(arguments[0])].filter((e) => !e.disabled).at(-1).click()"
        )
        selector = f'{within} button:is([aria-label="{label}"], [title="{label}"])'
        self.browser.js(f"({script}, 1)", selector)
        self.browser.settle()


# --- steps ---


def set_size(browser: Browser, name: str) -> None:
    width, height = SIZES[name]
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": name == "phone"}
    browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def put(browser: Browser, id: str, value: str) -> None:
    """Give a field a value."""
    script = """const [id, value] = arguments, field = document.getElementById(id);
        field.value = value;
        for (const name of ["input", "change"]) field.dispatchEvent(new Event(name));"""
    browser.driver.execute_script(script, id, value)


def choose(browser: Browser, title: str, label: str) -> None:
    """Choose an entry of a conversation's menu."""
    browser.js(
        "(document.querySelector(arguments[0]).click(), 1)", f'[aria-label="Actions for {title}"]'
    )
    browser.settle()
    entries = browser.driver.find_elements("css selector", "dialog.menu button")
    next(entry for entry in entries if entry.text == label).click()
    browser.settle()
