"""The shapes of what generating requests are answered: native, OpenAI completion, OpenAI chat.

Field names are llama-server's (tools/server/server-task.cpp, to_json of the results). A `Replies`
turns choices, and what newly happened to them, into JSON values; it knows neither sockets nor how
a stream is framed.
Tested by tests/server/test_http_completion.py, test_http_stream.py and test_http_openai.py.
"""

from __future__ import annotations

import math
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from importlib.metadata import version
from typing import Any, Final

from ..model.sampling import SamplingParams
from ..runtime.engine.job import Result, StopType
from ..runtime.instance import Instance
from ..runtime.text import Piece, TokenProb, TokenProbs
from .bridge import Choice, Event, Progress
from .schema import GenerationBody

SYSTEM_FINGERPRINT: Final = f"lamella-{version('lamella')}"

Json = dict[str, Any]


class Replies(ABC):
    """What one request is told, in one of the three shapes."""

    ends_with_done = True  # whether a stream of this shape ends with [DONE]

    def __init__(self, model: Instance, body: GenerationBody, choices: Sequence[Choice]) -> None:
        self.model = model
        self.body = body
        self.choices = choices

    @abstractmethod
    def chunks(self, choice: Choice, event: Event) -> Iterator[Json]:
        """What a stream says when `event`, which `choice` has taken in, happened."""

    @abstractmethod
    def last_chunks(self) -> Iterator[Json]:
        """What a stream says when all choices are finished."""

    @abstractmethod
    def whole(self) -> Json | list[Json]:
        """The answer without a stream, once all choices are finished."""

    def extras(self, choice: Choice, event: Event) -> Json:
        """What may stand in any chunk."""
        found: Json = {}
        if isinstance(event, Progress):
            found["prompt_progress"] = {
                "total": event.n_total,
                "cache": choice.n_cached,
                "processed": event.n_processed,
                "time_ms": round(1e3 * (choice.t_last - choice.t_start)),
            }
        if self.body.timings_per_token:
            found["timings"] = choice.timings().as_dict()
        return found

    def probs(self, probs: Sequence[TokenProbs]) -> list[Json]:
        """The probabilities of some tokens, in llama.cpp's shape."""
        post = self.body.post_sampling_probs
        n_top = self.body.n_top_probs or 0
        return [
            _prob(at.chosen, post)
            | {"top_probs" if post else "top_logprobs": [_prob(p, post) for p in at.top[:n_top]]}
            for at in probs
        ]


class NativeReplies(Replies):
    """POST /completion."""

    ends_with_done = False

    def __init__(
        self,
        model: Instance,
        body: GenerationBody,
        choices: Sequence[Choice],
        prompts: Sequence[str],
    ) -> None:
        """`prompts` are the texts of the prompts, which the last chunks repeat."""
        super().__init__(model, body, choices)
        self.prompts = prompts

    def chunks(self, choice: Choice, event: Event) -> Iterator[Json]:
        """See `Replies.chunks`."""
        if isinstance(event, Result):
            yield self._final(choice, event, streamed=True)
            return
        chunk: Json = {
            "index": choice.index,
            "content": "",
            "tokens": [],
            "stop": False,
            "id_slot": -1,
            "tokens_predicted": len(choice.tokens),
            "tokens_evaluated": choice.n_prompt,
        }
        if isinstance(event, Piece):
            chunk |= {"content": event.text, "tokens": list(event.tokens)}
            if event.probs:
                chunk["completion_probabilities"] = self.probs(event.probs)
        yield chunk | self.extras(choice, event)

    def last_chunks(self) -> Iterator[Json]:
        """See `Replies.last_chunks`."""
        yield from ()

    def whole(self) -> Json | list[Json]:
        """See `Replies.whole`; one object for one text, a list for several."""
        finals = [
            self._final(choice, choice.result, streamed=False)
            for choice in self.choices
            if choice.result is not None
        ]
        return finals[0] if len(finals) == 1 else finals

    def _final(self, choice: Choice, result: Result, *, streamed: bool) -> Json:
        body = self.body
        final: Json = {
            "index": choice.index,
            "content": "" if streamed else choice.text,
            "tokens": list(choice.tokens) if body.return_tokens and not streamed else [],
            "id_slot": -1,
            "stop": True,
            "model": self.model.alias,
            "tokens_predicted": result.n_predicted,
            "tokens_evaluated": result.n_prompt,
            "generation_settings": generation_settings(body, choice.sampling, result.seed),
            "prompt": self.prompts[choice.index // self.body.n_choices],
            "has_new_line": "\n" in choice.text,
            "truncated": result.truncated,
            "stop_type": result.stop_type.value,
            "stopping_word": result.stopping_word,
            # the last token was sampled, but never evaluated
            "tokens_cached": result.n_prompt + max(result.n_predicted - 1, 0),
            "timings": result.timings.as_dict(),
        }
        if choice.probs and not streamed:
            final["completion_probabilities"] = self.probs(choice.probs)
        return _selected(final, body.response_fields) if body.response_fields else final


class OpenAIReplies(Replies):
    """What the two OpenAI shapes have in common: the envelope, usage and timings."""

    object_whole: str
    object_chunk: str

    def __init__(self, model: Instance, body: GenerationBody, choices: Sequence[Choice]) -> None:
        super().__init__(model, body, choices)
        self.id = f"chatcmpl-{secrets.token_urlsafe(24)}"
        self.created = int(time.time())

    def envelope(self, choices: list[Json], *, chunk: bool) -> Json:
        """An object with the given `choices` in it."""
        return {
            "choices": choices,
            "created": self.created,
            "id": self.id,
            "model": self.model.alias,
            "system_fingerprint": SYSTEM_FINGERPRINT,
            "object": self.object_chunk if chunk else self.object_whole,
        }

    def last_chunks(self) -> Iterator[Json]:
        """See `Replies.last_chunks`: the usage, if it was asked for."""
        if self.body.stream_options.include_usage:
            yield self.envelope([], chunk=True) | {"usage": self.usage()} | self.end_timings()

    def end_timings(self) -> Json:
        """`timings`, of the first choice as in llama-server."""
        return {"timings": self.choices[0].timings().as_dict()}

    def whole(self) -> Json | list[Json]:
        """See `Replies.whole`."""
        reply = self.envelope([self.finished(choice) for choice in self.choices], chunk=False)
        return reply | {"usage": self.usage()} | self.end_timings()

    @abstractmethod
    def finished(self, choice: Choice) -> Json:
        """One of the `choices` of the whole answer."""

    def usage(self) -> Json:
        """Tokens of all choices; a prompt that several of them share is counted once."""
        results = [choice.result for choice in self.choices if choice.result is not None]
        firsts = results[:: self.body.n_choices]
        n_prompt = sum(result.n_prompt for result in firsts)
        n_predicted = sum(result.n_predicted for result in results)
        return {
            "completion_tokens": n_predicted,
            "prompt_tokens": n_prompt,
            "total_tokens": n_prompt + n_predicted,
            "prompt_tokens_details": {"cached_tokens": sum(result.n_cached for result in firsts)},
        }

    def logprobs(self, probs: Sequence[TokenProbs]) -> Json | None:
        """OpenAI's name with llama.cpp's content; None if none were asked for."""
        return {"content": self.probs(probs)} if probs else None


class CompletionReplies(OpenAIReplies):
    """POST /v1/completions."""

    object_whole = object_chunk = "text_completion"

    def chunks(self, choice: Choice, event: Event) -> Iterator[Json]:
        """See `Replies.chunks`."""
        if isinstance(event, Result):
            ended = self._choice(choice, "", (), finish_reason(event))
            yield self.envelope([ended], chunk=True) | {"timings": event.timings.as_dict()}
            return
        text, probs = (event.text, event.probs) if isinstance(event, Piece) else ("", ())
        going = self._choice(choice, text, probs, None)
        yield self.envelope([going], chunk=True) | self.extras(choice, event)

    def finished(self, choice: Choice) -> Json:
        """See `OpenAIReplies.finished`."""
        assert choice.result is not None, f"choice {choice.index} is not finished"
        return self._choice(choice, choice.text, choice.probs, finish_reason(choice.result))

    def _choice(
        self, choice: Choice, text: str, probs: Sequence[TokenProbs], reason: str | None
    ) -> Json:
        return {
            "text": text,
            "index": choice.index,
            "logprobs": self.logprobs(probs),
            "finish_reason": reason,
        }


class ChatReplies(OpenAIReplies):
    """POST /v1/chat/completions."""

    object_whole, object_chunk = "chat.completion", "chat.completion.chunk"

    def __init__(self, model: Instance, body: GenerationBody, choices: Sequence[Choice]) -> None:
        super().__init__(model, body, choices)
        self._begun: set[int] = set()  # choices whose first chunk, with the role, was sent

    def chunks(self, choice: Choice, event: Event) -> Iterator[Json]:
        """See `Replies.chunks`."""
        if choice.index not in self._begun:
            self._begun.add(choice.index)
            yield self._chunk(choice, {"role": "assistant", "content": None})
        match event:
            case Progress():
                yield self._chunk(choice, {}) | self.extras(choice, event)
            case Piece():
                chunk = self._chunk(choice, {"content": event.text}, probs=event.probs)
                yield chunk | self.extras(choice, event)
            case Result():
                chunk = self._chunk(choice, {}, finish_reason(event))
                yield chunk | {"timings": event.timings.as_dict()}

    def finished(self, choice: Choice) -> Json:
        """See `OpenAIReplies.finished`."""
        assert choice.result is not None, f"choice {choice.index} is not finished"
        return {
            "index": choice.index,
            "message": {"role": "assistant", "content": choice.text},
            "finish_reason": finish_reason(choice.result),
            "logprobs": self.logprobs(choice.probs),
        }

    def _chunk(
        self,
        choice: Choice,
        delta: Json,
        reason: str | None = None,
        probs: Sequence[TokenProbs] = (),
    ) -> Json:
        part: Json = {"index": choice.index, "delta": delta, "finish_reason": reason}
        if probs:
            part["logprobs"] = self.logprobs(probs)
        return self.envelope([part], chunk=True)


def finish_reason(result: Result) -> str:
    """OpenAI's word for why a generation ended."""
    return "length" if result.stop_type is StopType.LIMIT else "stop"


def generation_settings(
    body: GenerationBody, sampling: SamplingParams, seed: int | None = None
) -> Json:
    """The settings a request is answered with, `seed` being the one that was really used."""
    settings = asdict(sampling)
    # JSON has no infinity; a request says `false` too
    settings["logit_bias"] = [
        {"token": token, "bias": bias if math.isfinite(bias) else False}
        for token, bias in sampling.logit_bias
    ]
    if seed is not None:
        settings["seed"] = seed
    return settings | {
        "n_predict": body.n_predict,
        "max_tokens": body.n_predict,
        "t_max_predict_ms": body.t_max_predict_ms,
        "ignore_eos": body.ignore_eos,
        "stop": list(body.stop),
        "stream": body.stream,
        "n_probs": body.n_top_probs or 0,
        "post_sampling_probs": body.post_sampling_probs,
        "timings_per_token": body.timings_per_token,
    }


def _prob(prob: TokenProb, post_sampling: bool) -> Json:
    value = {"prob": math.exp(prob.logprob)} if post_sampling else {"logprob": prob.logprob}
    return {"id": prob.id, "token": prob.token, "bytes": list(prob.raw), **value}


def _selected(final: Json, fields: Sequence[str]) -> Json:
    """Only the fields asked for; "a/b" is b inside a, and keeps its name."""
    found: Json = {}
    for name in fields:
        value: Any = final
        for key in name.split("/"):
            value = value.get(key) if isinstance(value, dict) else None
        if value is not None:
            found[name] = value
    return found
