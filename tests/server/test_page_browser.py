"""The chat page in a browser: what a user does with it, on a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from http_world import RunningServer
from page_browser import CONTROL, ENTER, ESCAPE, SHIFT, TAB, Browser, open_browser
from page_script import SCRIPTS, play, prompts
from page_world import (
    ALL_TEXTS,
    ASK_ELSEWHERE,
    READ_AGAIN,
    REMOVE_ELSEWHERE,
    REMOVE_QUESTION_ELSEWHERE,
    SIZES,
    SPY,
    Chat,
    choose,
    put,
    served,
    set_size,
)
from tools_world import WEATHER

from lamella.server.config import ServerConfig


@pytest.fixture(scope="module")
def tab() -> Iterator[Browser]:
    with open_browser() as opened:
        opened.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": SPY})
        yield opened


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with served(tmp_path_factory.mktemp("page") / "model", play) as server:
        yield server


@pytest.fixture
def browser(tab: Browser) -> Iterator[Browser]:
    prompts.clear()
    set_size(tab, "desktop")
    yield tab
    assert tab.complaints() == []
    assert tab.js("window.hacked") is None
    origin = tab.js("location.origin")
    loaded = tab.js("performance.getEntriesByType('resource').map((e) => e.name)")
    assert [name for name in loaded if not name.startswith((origin, "data:"))] == []


@pytest.fixture
def chat(browser: Browser, server: RunningServer) -> Chat:
    return Chat(browser, server).open().ready()


# --- asking ---


def test_an_answer_and_its_numbers(chat: Chat) -> None:
    browser = chat.browser
    chat.ask("markdown please")
    shown = browser.texts(".markdown :is(h3, em, strong, p code, th, blockquote, li)")
    assert shown == [
        *("Title", "emphasis", "strong", "code", "oneinner", "inner", "two"),
        *("a", "b", "quoted", "☑done"),
    ]
    assert browser.texts(".code .hl-keyword") == ["def", "return"]
    assert browser.texts(".code .hl-comment") == ["# a comment"]
    link = "document.querySelector('.markdown a')"
    assert browser.js(f"{link}.href") == "https://example.com/a"
    assert browser.js(f"{link}.rel") == "noopener noreferrer nofollow"
    stats = browser.text(".message.assistant .stats")
    for part in ("tokens", "tokens/s", "prompt", "first token after"):
        assert part in stats
    assert chat.titles() == ["markdown please"]
    assert browser.text("#title") == "markdown please"
    browser.wait("document.getElementById('announcer').textContent.includes('tokens')")


def test_a_conversation_has_its_history(chat: Chat) -> None:
    assert chat.ask("Hello there") == "You said: Hello there"
    assert chat.ask("And again") == "You said: And again"
    assert "Hello there" in prompts[-1]
    assert "You said: Hello there" in prompts[-1]


def test_stop_and_continue(chat: Chat) -> None:
    browser = chat.browser
    chat.type("endless text")
    browser.press(ENTER)
    browser.wait(
        "document.querySelector('.message.busy .body > .markdown')?.textContent.length > 50"
    )
    assert browser.js("document.getElementById('send').title") == "Stop"
    browser.press(ESCAPE)
    text = chat.answer()
    assert 50 < len(text) < 100_000
    assert browser.text(".message.assistant .state") == "Stopped."
    browser.wait("document.getElementById('send').title === 'Send'")
    until_idle(chat.server)
    n_before = len(prompts)
    browser.click(".message.assistant footer button.small")
    browser.wait(
        "document.querySelector('.message.assistant .body > .markdown').textContent.length"
        f" > {len(text) + 50}"
    )
    browser.press(ESCAPE)
    assert chat.answer().startswith(text)
    assert len(prompts) == n_before + 1
    assert text[:40] in prompts[-1]


def until_idle(server: RunningServer) -> None:
    while server.model.engine.n_running:
        pass


def test_versions_of_answers_and_questions(chat: Chat) -> None:
    browser = chat.browser
    chat.ask("first question")
    chat.ask("second question")
    chat.press_button("Ask again", ".message.assistant")
    chat.answer()
    assert browser.texts(".branches span") == ["2 / 2"]
    chat.press_button("Previous version")
    assert browser.texts(".branches span") == ["1 / 2"]
    chat.press_button("Edit and ask again", ".message.user:first-child")
    browser.chord(CONTROL, "a")
    browser.press(*"other question")
    browser.chord(CONTROL, ENTER)
    browser.wait("document.querySelectorAll('.message').length === 2")
    assert chat.answer() == "You said: other question"
    assert browser.texts(".branches span") == ["2 / 2"]
    chat.press_button("Previous version")
    assert chat.n_messages() == 4
    assert browser.texts(".message.user .text") == ["first question", "second question"]
    assert browser.texts(".branches span") == ["1 / 2", "2 / 2"]  # the newest of each


def test_reasoning_is_folded(chat: Chat) -> None:
    browser = chat.browser
    assert chat.ask("think about it") == "The answer is 42."
    assert browser.js("document.querySelector('.reasoning').open") is False
    assert browser.text(".reasoning summary").startswith("Reasoning")
    browser.click(".reasoning summary")
    assert browser.text(".reasoning .markdown") == "Let me think."


def test_reasoning_ends_at_once(chat: Chat) -> None:
    browser = chat.browser
    chat.type("ponder it")
    browser.press(ENTER)
    browser.wait("document.querySelector('.message.busy .state button') !== null")
    browser.click(".message.busy .state button")
    assert chat.answer() == "Enough."


def test_tools_are_shown_and_answered(chat: Chat) -> None:
    browser = chat.browser
    change_settings(browser, tools=json.dumps([WEATHER]))
    assert chat.ask("weather in Oslo") == "I look."
    assert browser.text(".call b") == "get_weather"
    assert json.loads(browser.text(".call code")) == {"city": "Oslo"}
    browser.click(".call textarea")
    browser.press(*"rainy")
    browser.click(".calls > button")
    browser.wait("document.querySelectorAll('.message.assistant').length === 2")
    assert chat.answer() == "It is sunny."
    assert "rainy" in prompts[-1]
    assert browser.texts(".call textarea") == []


def change_settings(browser: Browser, **values: str) -> None:
    browser.click("#settings-button")
    for name, value in values.items():
        put(browser, f"set-{name}", value)
    browser.click("#settings button.main")


def test_settings_are_sent(chat: Chat) -> None:
    browser = chat.browser
    change_settings(
        browser, system="Be brief.", temperature="0.3", max_tokens="50", extra='{"min_p": 0.2}'
    )
    chat.ask("short one")
    sent = browser.js("sent[0]")
    assert {name: sent[name] for name in ("temperature", "max_tokens", "min_p")} == {
        "temperature": 0.3, "max_tokens": 50, "min_p": 0.2,
    }  # fmt: skip
    assert sent["messages"][0] == {"role": "system", "content": "Be brief."}
    assert "seed" not in sent
    assert "Be brief." in prompts[-1]


def test_a_schema_and_an_invalid_one(chat: Chat) -> None:
    browser = chat.browser
    change_settings(browser, schema="{")
    assert "JSON schema" in browser.text("#settings .error")
    browser.press(ESCAPE)
    change_settings(browser, schema='{"type": "object", "properties": {"n": {"type": "integer"}}}')
    chat.ask("json please")
    assert json.loads(browser.text(".markdown .code code")) == {"n": 1}


def test_errors_of_the_server_are_shown(chat: Chat) -> None:
    browser = chat.browser
    change_settings(browser, extra='{"temperature": "hot"}')
    chat.ask("short")
    assert "temperature" in browser.text(".message .error")
    change_settings(browser, extra="")
    chat.press_button("Ask again")
    assert chat.answer() == "Once upon a time"
    assert browser.texts(".message .error") == []
    ignore_refused(browser)


def ignore_refused(browser: Browser) -> None:
    """Forget the console's lines about replies with an error status."""
    others = [line for line in browser.complaints() if "status of 4" not in line]
    assert others == []


def test_files_are_part_of_a_question(chat: Chat, tmp_path: Path) -> None:
    browser = chat.browser
    (tmp_path / "notes.txt").write_text("the secret is ```blue```\n")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\0\0")
    box = browser.driver.find_element("id", "file")
    box.send_keys(f"{tmp_path / 'notes.txt'}\n{tmp_path / 'picture.png'}")
    browser.wait("document.querySelectorAll('.chip').length === 1")
    assert "picture.png is not a text file" in browser.text("#notice")
    chat.ask("short summary")
    assert browser.text(".file summary").strip() == "notes.txt"
    assert 'File "notes.txt":\n````\nthe secret is ```blue```\n````' in prompts[-1]
    assert browser.texts(".chip") == []


# --- conversations ---


def test_conversations_are_kept_renamed_and_deleted(chat: Chat) -> None:
    browser = chat.browser
    chat.ask("one")
    browser.click("#new")
    chat.ask("two")
    assert chat.titles() == ["two", "one"]
    chat.open(fresh=False).ready()
    browser.wait("document.querySelectorAll('#conversations .open').length === 2")
    browser.click('#conversations .open[title="one"]')
    browser.wait("document.querySelectorAll('.message').length === 2")
    assert browser.texts(".message.user .text") == ["one"]
    choose(browser, "one", "Rename")
    browser.chord(CONTROL, "a")
    browser.press(*"uno", ENTER)
    browser.wait("document.getElementById('title').textContent === 'uno'")
    browser.wait("document.querySelectorAll('#conversations .open').length === 2")
    assert sorted(chat.titles()) == ["two", "uno"]
    put(browser, "search", "tw")
    assert chat.titles() == ["two"]
    choose(browser, "two", "Delete")
    browser.click("dialog.ask button.danger")
    browser.wait("document.querySelectorAll('#conversations .open').length === 0")
    chat.open(fresh=False).ready()
    browser.wait("document.querySelectorAll('#conversations .open').length === 1")
    assert chat.titles() == ["uno"]


def test_a_conversation_that_is_deleted_while_it_is_answered_stays_deleted(chat: Chat) -> None:
    browser = chat.browser
    chat.type("endless text")
    browser.press(ENTER)
    browser.wait(
        "document.querySelector('.message.busy .body > .markdown')?.textContent.length > 50"
    )
    choose(browser, "endless text", "Delete")
    browser.click("dialog.ask button.danger")
    browser.wait("document.querySelectorAll('.message').length === 0")
    browser.wait("document.querySelectorAll('#conversations .open').length === 0")
    chat.open(fresh=False).ready()
    assert chat.titles() == []


def test_a_conversation_that_another_tab_deletes_stays_deleted(chat: Chat) -> None:
    browser = chat.browser
    chat.type("endless text")
    browser.press(ENTER)
    browser.wait(
        "document.querySelector('.message.busy .body > .markdown')?.textContent.length > 50"
    )
    browser.driver.execute_async_script(REMOVE_ELSEWHERE)
    browser.wait("document.querySelectorAll('#conversations .open').length === 0")
    browser.press(ESCAPE)
    chat.answer()
    browser.wait("document.getElementById('announcer').textContent.includes('complete')")
    chat.open(fresh=False).ready()
    assert chat.titles() == []


def test_a_question_that_another_tab_deletes_stays_deleted(chat: Chat) -> None:
    browser = chat.browser
    chat.ask("short text")
    chat.type("endless text")
    browser.press(ENTER)
    browser.wait(
        "document.querySelector('.message.busy .body > .markdown')?.textContent.length > 50"
    )
    assert browser.driver.execute_async_script(REMOVE_QUESTION_ELSEWHERE)
    browser.wait("document.querySelectorAll('.message').length === 2")  # and the answer stops
    browser.wait("document.querySelector('#send').title === 'Send'")
    chat.open(fresh=False).ready()
    texts = ["short text", "short text", SCRIPTS["short"]]
    assert browser.driver.execute_async_script(ALL_TEXTS) == sorted(texts)


def test_two_tabs_may_go_on_with_one_conversation(chat: Chat) -> None:
    browser = chat.browser
    chat.ask("short text")
    browser.driver.execute_async_script(ASK_ELSEWHERE)
    chat.ask("here")
    texts = [SCRIPTS["short"], "You said: here", "an answer", "here", "renamed", "short text"]
    assert browser.driver.execute_async_script(ALL_TEXTS) == sorted([*texts, "there"])
    assert browser.texts(".branches span") == ["2 / 2"]
    chat.press_button("Delete from here on")
    browser.click("dialog.ask button.danger")
    browser.wait("document.querySelectorAll('.message').length === 4")
    texts = [SCRIPTS["short"], "an answer", "renamed", "short text", "there"]
    assert browser.driver.execute_async_script(ALL_TEXTS) == sorted(texts)
    assert chat.titles() == ["renamed"]


def test_a_title_is_changed_while_the_list_is_read_again(chat: Chat) -> None:
    """As an answer does every two seconds, and another tab."""
    browser = chat.browser
    chat.ask("one")
    choose(browser, "one", "Rename")
    browser.chord(CONTROL, "a")
    browser.press(*"un")
    browser.driver.execute_async_script(READ_AGAIN)
    browser.press("o", ENTER)
    browser.wait("document.getElementById('title').textContent === 'uno'")
    browser.wait("document.querySelectorAll('#conversations .open').length === 1")
    assert chat.titles() == ["uno"]


def test_export_and_import(chat: Chat, tmp_path: Path) -> None:
    browser = chat.browser
    chat.ask("keep this")
    chat.press_button("Ask again")
    chat.answer()
    script = """const done = arguments[0];
        Promise.all([import("/ui/store.js"), import("/ui/tree.js")])
          .then(async ([store, tree]) => done(tree.exported(await store.all())));"""
    exported = browser.driver.execute_async_script(script)
    assert json.loads(exported)["format"] == "lamella-conversations"
    good, bad, foreign = (tmp_path / name for name in ("good.json", "bad.json", "foreign.json"))
    good.write_text(exported)
    bad.write_text("{")
    foreign.write_text(
        json.dumps(
            json.loads(exported) | {"conversations": [{"messages": {"a": {"role": "root"}}}]}
        )
    )
    chat.open().ready()
    assert chat.titles() == []
    for file, error in ((bad, "not JSON"), (foreign, 'a message has the role "root"')):
        browser.driver.find_element("id", "import").send_keys(str(file))
        browser.wait(f"document.getElementById('notice').textContent.includes({json.dumps(error)})")
    browser.driver.find_element("id", "import").send_keys(str(good))
    browser.wait("document.querySelectorAll('.message').length === 2")
    assert chat.titles() == ["keep this"]
    assert browser.texts(".branches span") == ["2 / 2"]


IMPORTS: Final[dict[str, Any]] = {
    "a circle": {
        "messages": {
            "a": {"id": "a", "parent": "b", "role": "user"},
            "b": {"id": "b", "parent": "a", "role": "user"},
        }
    },
    "no messages": {"messages": None},
    "a list": [1],
    "too long": {"messages": {"a": {"id": "a", "role": "user", "content": "x" * 8_000_001}}},
    "too many": {"messages": {str(i): {"id": str(i), "role": "user"} for i in range(5001)}},
}  # fmt: skip


def test_hostile_imports(chat: Chat) -> None:
    script = """const [done, text] = [arguments[1], arguments[0]];
        import("/ui/tree.js").then(({ imported }) => {
          try {
            imported(text);
            done("imported");
          } catch (error) {
            done(`${error.name}: ${error.message}`);
          }
        });"""
    for name, conversation in IMPORTS.items():
        data = {"format": "lamella-conversations", "version": 1, "conversations": [conversation]}
        found = chat.browser.driver.execute_async_script(script, json.dumps(data))
        assert found.startswith("Error: Conversation 1: "), (name, found)
    odd = {"id": "toString", "parent": {}, "role": "user", "content": [1], "files": [None]}
    strange = {
        "title": 5,
        "settings": {"__proto__": 1, "tools": {"a": 1}, "system": "ok"},
        "leaf": "constructor",
        "messages": {"__proto__": odd | {"calls": 7}},
    }
    data = {"format": "lamella-conversations", "version": 1, "conversations": [strange]}
    assert chat.browser.driver.execute_async_script(script, json.dumps(data)) == "imported"


def test_imported_settings_have_the_types_of_the_page(chat: Chat) -> None:
    good = {"system": "Be brief.", "seed": 1, "temperature": 0.5, "thinking": "off"}
    bad = {"schema": 5, "tools": True, "extra": ["a"], "top_k": "40", "other": "x"}
    data = {
        "format": "lamella-conversations",
        "version": 1,
        "conversations": [{"settings": good | bad, "messages": {}}],
    }
    script = """const [text, done] = arguments;
        import("/ui/tree.js").then(({ imported }) => done(imported(text)[0].settings));"""
    assert chat.browser.driver.execute_async_script(script, json.dumps(data)) == good


def test_titles_have_whole_characters(chat: Chat) -> None:
    script = """const [text, done] = arguments;
        import("/ui/tree.js").then(({ titleOf }) => done(titleOf(text).isWellFormed()));"""
    for text in ("a" * 58 + "\U0001f600" * 9, "\U0001f600" * 99, "a" + "\U0001f600" * 99):
        assert chat.browser.driver.execute_async_script(script, text) is True


HOLD_FRAMES: Final = """
window.held = []; // what the page draws with the next frame
const next = window.requestAnimationFrame;
window.requestAnimationFrame = (call) =>
  new Error().stack.includes("main.js") ? held.push(call) : next(call);
"""


def test_an_answer_is_drawn_also_if_another_one_waits_for_its_frame(chat: Chat) -> None:
    browser = chat.browser
    browser.driver.execute_script(HOLD_FRAMES)
    chat.type("endless text")
    browser.press(ENTER)
    browser.wait("held.length > 0")
    browser.click("#new")
    chat.type("short text")
    browser.press(ENTER)
    browser.wait("document.getElementById('announcer').textContent.includes('complete')")
    browser.js("(held.forEach((call) => call()), 1)")
    assert chat.n_messages() == 2
    assert browser.js("document.querySelectorAll('.message.busy').length") == 0
    assert browser.texts(".message.assistant .markdown:not(.reasoning *)") == [SCRIPTS["short"]]


# --- keys, models, sizes ---


def test_a_key_is_asked_for(browser: Browser, tmp_path: Path) -> None:
    config = ServerConfig(port=0, api_keys=("sk-secret",))
    with served(tmp_path / "model", play, config) as server:
        chat = Chat(browser, server).open()
        for key, text in (("wrong", "asks for an API key"), ("sk-secret", "does not accept")):
            browser.wait(f"document.querySelector('#key-dialog p')?.textContent.includes('{text}')")
            browser.press(*key, ENTER)
        chat.ready()
        assert chat.ask("short one") == "Once upon a time"
        assert "sk-secret" not in browser.js("JSON.stringify(localStorage)")
        for path in ("/status", "/explain"):  # in the same tab
            browser.driver.get(server.url + path)
            browser.wait("document.title !== ''")
        browser.wait("document.getElementById('model')?.textContent === 'scripted'")
    ignore_refused(browser)


MODELS: Final = """
const one = window.fetch;
window.fetch = (url, options) => (String(url).endsWith("/v1/models")
  ? Promise.resolve(Response.json({ data: [{ id: "scripted" }, { id: "other" }] }))
  : one(url, options));
"""


def test_several_models(chat: Chat) -> None:
    browser = chat.browser
    added = browser.driver.execute_cdp_cmd(
        "Page.addScriptToEvaluateOnNewDocument", {"source": MODELS}
    )
    try:
        chat.open()
        browser.wait("document.querySelectorAll('#models option').length === 2")
        assert browser.js("document.getElementById('model').hidden") is True
        put(browser, "models", "other")
        chat.type("short one")
        browser.press(ENTER)
        browser.wait("sent.length > 0")
        assert browser.js("sent[0].model") == "other"
        browser.wait("document.querySelectorAll('.message.busy').length === 0")
        chat.open(fresh=False)
        browser.wait("document.getElementById('models').value === 'other'")
    finally:
        browser.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)
    ignore_refused(browser)


@pytest.mark.parametrize("size", [*SIZES])
def test_nothing_is_wider_than_the_window(chat: Chat, size: str) -> None:
    browser = chat.browser
    chat.ask("markdown " + "w" * 300)
    set_size(browser, size)
    browser.settle()
    assert browser.js("document.documentElement.scrollWidth <= innerWidth")
    assert browser.js("innerWidth") == SIZES[size][0]
    is_phone = size != "desktop"
    visibility = "getComputedStyle(document.getElementById('sidebar')).visibility"
    browser.wait(f"{visibility} === '{'hidden' if is_phone else 'visible'}'")
    if is_phone:
        browser.click("#menu")
        browser.wait(f"{visibility} === 'visible'")
        browser.press(ESCAPE)
        browser.wait(f"{visibility} === 'hidden'")


def test_the_theme_is_kept(chat: Chat) -> None:
    browser = chat.browser
    background = "getComputedStyle(document.body).backgroundColor"
    browser.prefer("light")
    light = browser.js(background)
    browser.prefer("dark")
    dark = browser.js(background)
    assert light != dark
    browser.click("#theme")  # light
    assert browser.js(background) == light
    chat.open(fresh=False).ready()
    assert browser.js(background) == light
    browser.prefer("light")


def test_keys_of_the_keyboard(chat: Chat) -> None:
    """A question without the mouse: the focus is visible and in order."""
    browser = chat.browser
    browser.js("(document.activeElement.blur(), 1)")
    browser.press("/")
    assert browser.js("document.activeElement.id") == "question"
    browser.press("a")
    browser.chord(SHIFT, ENTER)
    browser.press("b")
    assert browser.js("document.getElementById('question').value") == "a\nb"
    browser.press(ENTER)
    browser.wait("document.querySelectorAll('.message').length > 0")
    chat.answer()
    seen = []
    browser.js("(document.activeElement.blur(), 1)")
    for _ in range(40):
        browser.press(TAB)
        seen.append(
            browser.js(
                "document.activeElement.getAttribute('aria-label') ?? document.activeElement.id"
            )
        )
    for name in (
        "new",
        "Search titles",
        "Settings",
        "Edit and ask again",
        "Ask again",
        "Your question",
    ):
        assert name in seen
