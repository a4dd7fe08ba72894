"""What a generation returns: its text, and how it ended.

Knows no engine's thread. Tested by tests/api/test_complete.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .runtime.engine.job import Result, Timings


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Numbers of tokens, with OpenAI's names.

    Attributes:
        prompt_tokens: tokens of the prompt.
        completion_tokens: generated tokens, with the end token.
        cached_tokens: tokens of the prompt that were evaluated before, for another generation.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int

    @property
    def total_tokens(self) -> int:
        """Tokens of the prompt and of the text."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A generated text, returned by `Model.chat` and `Model.complete`. `str` gives the text.

    Attributes:
        text: the generated text, without the prompt.
        tokens: its token ids.
        finish_reason: "stop" after an end token or a stop text, "length" at a limit.
        stop: the stop text that ended the generation; None if none did.
        seed: the seed in use: it gives the same text again.
        usage: numbers of tokens.
        timings: how long the prompt and the text took.
    """

    text: str
    tokens: tuple[int, ...]
    finish_reason: str
    stop: str | None
    seed: int
    usage: Usage
    timings: Timings

    @property
    def message(self) -> dict[str, str]:
        """The text as a message of the assistant, to append to the messages of a chat."""
        return {"role": "assistant", "content": self.text}

    def __str__(self) -> str:
        return self.text


def completion(text: str, tokens: Sequence[int], result: Result) -> Completion:
    """The completion of a generation that has ended."""
    return Completion(
        text=text,
        tokens=tuple(tokens),
        finish_reason=result.finish_reason,
        stop=result.stopping_word or None,
        seed=result.seed,
        usage=Usage(
            prompt_tokens=result.n_prompt,
            completion_tokens=result.n_predicted,
            cached_tokens=result.n_cached,
        ),
        timings=result.timings,
    )
