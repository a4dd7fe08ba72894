"""Limits of grammars."""

from __future__ import annotations

from lamella.model.guide.limits import PARSER_LIMITS


def test_errors_do_not_repeat_the_grammar() -> None:
    assert not PARSER_LIMITS.verbose_errors
