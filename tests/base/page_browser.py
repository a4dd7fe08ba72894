"""A browser for the tests of pages: headless Chromium.

Tests skip if Chromium, its driver or selenium is not installed.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

WIDTH, HEIGHT = 1440, 1000

# WebDriver's codes of special keys
ESCAPE, LEFT, UP, RIGHT, DOWN = "\ue00c", "\ue012", "\ue013", "\ue014", "\ue015"
ENTER, TAB, SHIFT, CONTROL = "\ue007", "\ue004", "\ue008", "\ue009"


def find_chromium() -> tuple[str, str]:
    """The paths of the browser and its driver. Skips the test if they are not installed."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if browser is None or driver is None:
        pytest.skip("Chromium or its driver is not installed: apt install chromium-driver")
    return browser, driver


def _selenium(module: str) -> Any:
    return pytest.importorskip(f"selenium.webdriver.{module}", reason="selenium is not installed")


class Browser:
    """One tab."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, page: Path) -> None:
        self.driver.get(page.as_uri())
        self.settle()

    def js(self, script: str, *args: object) -> Any:
        return self.driver.execute_script(f"return {script}", *args)

    def settle(self) -> None:
        """Wait until changes are drawn."""
        self.driver.execute_async_script(
            "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(done))"
        )

    def wait(self, script: str) -> None:
        """Wait until a script returns true."""
        until = time.monotonic() + 120
        while not self.js(script):
            assert time.monotonic() < until, script
            time.sleep(0.02)

    def text(self, selector: str) -> str:
        self.wait(f"document.querySelector({json.dumps(selector)}) !== null")  # a page may be slow
        text: str = self.js("document.querySelector(arguments[0]).textContent", selector)
        return text

    def texts(self, selector: str) -> list[str]:
        script = "[...document.querySelectorAll(arguments[0])].map((e) => e.textContent)"
        found: list[str] = self.js(script, selector)
        return found

    def at(self, call: str) -> tuple[float, float]:
        """The position of an item on the page, for example of `cell('node', 3)`."""
        place = self.js(f"lamella.{call}")
        return place["x"], place["y"]

    def _actions(self) -> Any:
        builder = _selenium("common.actions.action_builder").ActionBuilder
        return builder(self.driver, duration=0)  # ms for each move of the pointer

    def point(self, x: float, y: float, click: bool = False) -> None:
        actions = self._actions()
        actions.pointer_action.move_to_location(round(x), round(y))
        if click:
            actions.pointer_action.click()
        actions.perform()
        self.settle()

    def wheel(self, x: float, y: float, delta: int, shift: bool = False) -> None:
        place = {"x": x, "y": y, "deltaX": 0, "deltaY": delta, "modifiers": 8 if shift else 0}
        self.driver.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseWheel", **place})
        self.settle()

    def press(self, *keys: str) -> None:
        actions = self._actions()
        for key in keys:
            actions.key_action.send_keys(key)
        actions.perform()
        self.settle()

    def chord(self, modifier: str, key: str) -> None:
        """Press a key while a modifier is down."""
        actions = self._actions()
        actions.key_action.key_down(modifier).send_keys(key).key_up(modifier)
        actions.perform()
        self.settle()

    def click(self, selector: str) -> None:
        self.driver.find_element("css selector", selector).click()
        self.settle()

    def prefer(self, scheme: str) -> None:
        """Set the preferred color scheme: light or dark."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        self.settle()

    def complaints(self) -> list[str]:
        """Messages in the console, including errors and refused requests."""
        return [entry["message"] for entry in self.driver.get_log("browser")]


@contextmanager
def open_browser() -> Iterator[Browser]:
    binary, driver_path = find_chromium()
    options = _selenium("chrome.options").Options()
    options.binary_location = binary
    size = f"--window-size={WIDTH},{HEIGHT}"
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", size):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = _selenium("chrome.service").Service(driver_path)
    driver = _selenium("chrome.webdriver").WebDriver(options=options, service=service)
    try:
        yield Browser(driver)
    finally:
        driver.quit()
