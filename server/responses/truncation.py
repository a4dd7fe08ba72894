"""Shortens a conversation that does not fit the context: OpenAI's `truncation: auto`.

The lengths of messages tell which number of them may fit, so few conversations are tried, and none
that is much too long. Knows no items. Tested by tests/server/test_responses_body.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Final, TypeVar

from ...base.errors import ContextSizeError
from ...runtime.chat import ChatRequest
from ...runtime.messages import Message

Prepared = TypeVar("Prepared")

N_CHARS_PER_TOKEN: Final = 4  # of the first try
N_CHARS_PER_MESSAGE: Final = 16  # marks of templates
N_GROWTH: Final = 4  # from one try to the next
N_TRIES_MAX: Final = 16


def without_oldest(messages: Sequence[Message], n: int) -> list[Message]:
    """The messages without the `n` oldest ones. System messages stay, and so does the last one.

    Results of tools leave with their calls.
    """
    system = [message for message in messages if message["role"] == "system"]
    others = [message for message in messages if message["role"] != "system"]
    n = min(n, len(others) - 1)
    while 0 < n < len(others) - 1 and others[n]["role"] == "tool":
        n += 1
    return system + others[n:]


def prepared_shortened(
    chat: ChatRequest, n_max: int, prepare: Callable[[ChatRequest], tuple[Prepared, int]]
) -> Prepared:
    """Prepare the request without as many of its oldest messages as it takes to have `n_max` tokens
    at most. The last message is left, whatever it has.

    `prepare` returns what it has prepared, and the number of its tokens. It is called a few times.
    Raises as `prepare`, which may raise ContextSizeError for a conversation that is far too long.
    """
    n_chars = _lengths(chat.messages)  # falls
    best: Prepared | None = None
    fails, fits = -1, len(n_chars) - 1  # numbers of messages to leave out
    goal = float(N_CHARS_PER_TOKEN * n_max)
    for i in range(N_TRIES_MAX):
        if fits - fails <= 1:
            break
        first = next((n for n, length in enumerate(n_chars) if length <= goal), fits)
        n = min(max(first, fails + 1), fits - 1)
        prepared, n_tokens = _tried(_without(chat, n), prepare)
        if prepared is not None and n_tokens <= n_max:
            fits, best = n, prepared
        else:
            fails = n
        # as many characters a token as now; every other time the middle, which is never far off
        goal = n_chars[n] * min(n_max / max(n_tokens, 1), N_GROWTH)
        if i % 2 and fails >= 0:
            goal = (n_chars[fails] + n_chars[fits]) / 2
    return prepare(_without(chat, fits))[0] if best is None else best


def _without(chat: ChatRequest, n: int) -> ChatRequest:
    return replace(chat, messages=without_oldest(chat.messages, n)) if n > 0 else chat


def _tried(
    chat: ChatRequest, prepare: Callable[[ChatRequest], tuple[Prepared, int]]
) -> tuple[Prepared | None, int]:
    try:
        return prepare(chat)
    except ContextSizeError as error:
        return None, error.n_prompt_tokens


def _lengths(messages: Sequence[Message]) -> list[int]:
    """About how many characters are left without the n oldest messages, for each n."""
    lengths = [
        (message["role"] == "system", N_CHARS_PER_MESSAGE + len(json.dumps(message)))
        for message in messages
    ]
    n_system = sum(length for is_system, length in lengths if is_system)
    others = [length for is_system, length in lengths if not is_system]
    return [n_system + length for length in accumulate(reversed(others))][::-1]
