"""The page of all flags is up to date."""

from __future__ import annotations

import make_flags_page


def test_the_page_is_up_to_date() -> None:
    command = "run: .venv/bin/python tests/cli/make_flags_page.py"
    assert make_flags_page.PAGE.read_text("utf-8") == make_flags_page.page(), command
