"""Compiles Lark with llguidance, within limits of time and memory.

Tested by tests/model/test_guide_limits.py.
"""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, Final

from ...base.errors import GrammarError
from ...base.priority import lower_priority
from .limits import COMPILE_NICE, COMPILE_STACK, parser_limits
from .spec import GrammarKind

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

_N_CHARS_MAX: Final = 500  # of a message
_NO_TEXT: Final = "NoExtension"  # the message if nothing may follow, and the text is not complete
# where the state, a trace or an excerpt of the translated grammar begins in llguidance's messages
_DETAILS: Final = re.compile(r"\n(?:<| *\d+ \| )| \(at \"")
_REGEX_DETAILS: Final = re.compile(r" \(in regex\): (?:regex parse error:\n(?:.*\n)*error: )?")
_PLACE: Final = re.compile(r"(?:at )?(\d+)\((\d+)\): ")  # line and column


def compile_lark(tokenizer: LLTokenizer, lark: str, kind: GrammarKind) -> LLMatcher:
    """Compile a grammar that was translated from another `kind`. Needs no interpreter lock.

    Raises:
        GrammarError: the grammar is invalid or too complex, or no text matches it.
    """
    [native] = _with_large_stack(tokenizer, lark, kind)
    if native.is_error():
        raise GrammarError(f"{kind}: {_placed(cause(native.get_error()), kind)}")
    first = native.deep_copy()
    mask = first.compute_bitmask()
    error = first.get_error()
    if error and not error.startswith(_NO_TEXT):
        raise GrammarError(f"{kind}: {cause(error)}")
    if error or not (any(mask) or first.is_accepting()):
        raise GrammarError(f"{kind}: no text matches the grammar")
    return native


def _with_large_stack(tokenizer: LLTokenizer, lark: str, kind: GrammarKind) -> list[LLMatcher]:
    """Compile in a thread of its own: the compiler is recursive, an overflow ends the process."""
    from llguidance import LLMatcher  # noqa: PLC0415 - slow to import

    results: list[LLMatcher] = []

    def compile() -> None:
        lower_priority(nice=COMPILE_NICE)
        limits = parser_limits(kind)
        results.append(LLMatcher(tokenizer, lark, limits=limits, log_level=0))

    thread = threading.Thread(target=compile, name="lamella-grammar")
    usual = threading.stack_size(COMPILE_STACK)
    try:
        thread.start()
    finally:
        threading.stack_size(usual)
    thread.join()
    return results


def _placed(message: str, kind: GrammarKind) -> str:
    """A message with the place in the user's text, or without the one in a translated text."""
    found = _PLACE.match(message)
    if not found:
        return message
    place = f"line {found[1]}, column {found[2]}: " if kind is GrammarKind.LARK else ""
    return place + message[found.end() :]


def cause(message: str) -> str:
    """The sentences of llguidance's message, without the state, excerpts and traces."""
    text = _DETAILS.split(message, maxsplit=1)[0].strip()
    text = _REGEX_DETAILS.sub(": ", text).replace("\n", "; ")
    if "Too many items" in text:
        return (
            "too ambiguous: it takes too long to find the tokens that may follow; let a word and "
            "what may follow it differ in their characters"
        )
    if text.startswith("panic:"):
        return f"the grammar is too large or too complex ({text[7:107]})"
    return text[:_N_CHARS_MAX]
