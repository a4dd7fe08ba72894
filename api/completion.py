"""What a generation returns: its text, and how it ended.

Knows no engine's thread. Tested by tests/api/test_complete.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .base.errors import RequestError
from .model.guide import Loosened
from .runtime.engine.job import Result, Timings
from .schemas import value_of


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
        complete: True if the whole text matches its grammar, False if it ended before, for example
            by `max_tokens`; None without a grammar.
        loosened: what `schema_strict=False` allows the text to break: keywords of the schema, each
            with its path and the reason.
        json_schema: the argument `json_schema`: a schema or a type; None without one.
    """

    text: str
    tokens: tuple[int, ...]
    finish_reason: str
    stop: str | None
    seed: int
    usage: Usage
    timings: Timings
    complete: bool | None = None
    loosened: tuple[Loosened, ...] = ()
    json_schema: Any = field(default=None, repr=False, compare=False)

    @property
    def parsed(self) -> Any:
        """The value of a text with a `json_schema`: an object of the type that was given as the
        schema, or dicts, lists and plain values.

        Raises:
            RequestError: the text is not complete, or has no schema.
            pydantic.ValidationError: a validator of the type refuses the value.
        """
        if self.json_schema is None:
            raise RequestError("parsed: the text has no json_schema")
        if not self.complete:
            limit = f"the stop text {self.stop!r}" if self.stop else "a limit, such as max_tokens"
            raise RequestError(f"parsed: the text is not complete: it ended by {limit}")
        return value_of(self.text, self.json_schema)

    @property
    def message(self) -> dict[str, str]:
        """The text as a message of the assistant, to append to the messages of a chat."""
        return {"role": "assistant", "content": self.text}

    def __str__(self) -> str:
        return self.text


def completion(
    text: str, tokens: Sequence[int], result: Result, json_schema: object = None
) -> Completion:
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
        complete=result.complete,
        loosened=tuple(result.loosened),
        json_schema=json_schema,
    )
