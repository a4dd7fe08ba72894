"""The shapes of replies to generating requests: native and OpenAI completion.

Field names are llama-server's (tools/server/server-task.cpp, to_json of the results). A `Replies`
turns choices and their events into JSON values, and those into the bytes of streams: most come
from templates. Knows no socket. Chats are in replies_chat.py.
Tested by tests/server/test_http_completion.py, test_http_stream.py and test_http_openai.py.
"""

from __future__ import annotations

import math
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from importlib.metadata import version
from typing import Any, Final, TypeGuard

from ..model.chat.message import Delta
from ..model.sampling import Logprobs, SamplingParams
from ..runtime.engine.job import Result
from ..runtime.instance import Instance
from ..runtime.params import GenerationParams, RequestParams
from ..runtime.speculative_params import SpecType, SpeculativeParams
from ..runtime.text import Piece
from .bridge import Choice, Event, Progress
from .json_pieces import JsonPart, json_list, json_texts, pieces
from .lazy_grammars import shown_triggers
from .prob_texts import ProbTexts
from .schema import GenerationBody
from .sent_tokens import comment_of
from .sse import GAP, PING, Template, event_bytes, json_text, numbers_text
from .tasks import GenerationTask

SYSTEM_FINGERPRINT: Final = f"lamella-{version('lamella')}"

Json = dict[str, Any]

# settings of llama-server with one value here, for clients that read them
FIXED_SETTINGS: Final[Json] = {
    "backend_sampling": False,
    "chat_format": "Content-only",
    "generation_prompt": "",
    "reasoning_in_content": False,
}


class Replies(ABC):
    """The reply to one request, in the shape of one API."""

    ends_with_done = True  # a stream ends with [DONE]
    content_type = "text/event-stream"  # of a stream
    encode = staticmethod(event_bytes)  # of a chunk of a stream
    probs_have_ids = True  # probabilities have llama.cpp's ids
    tells_tokens = False  # a stream has comments with its tokens, see sent_tokens.py

    def __init__(self, model: Instance, task: GenerationTask, choices: Sequence[Choice]) -> None:
        self.model = model
        self.task = task
        self.body = task.body
        self.choices = choices
        self.id = self.new_id()
        self.probs = ProbTexts(
            model.vocab,
            self.body.n_top_probs or 0,
            post_sampling=self.body.post_sampling_probs,
            has_ids=self.probs_have_ids,
        )

    def new_id(self) -> str:
        """A random id of a reply."""
        return f"chatcmpl-{secrets.token_urlsafe(24)}"

    def first_chunks(self) -> Iterator[Json]:
        """The first chunks of a stream, before the first event."""
        yield from ()

    def ping(self) -> Json | None:
        """A chunk while there is no other; None: a comment."""
        return None

    def ping_bytes(self) -> bytes:
        """The bytes of `ping`."""
        ping = self.ping()
        return PING if ping is None else self.bytes_of([ping])

    def frames(self, choice: Choice, event: Event, deltas: Sequence[Delta]) -> bytes:
        """The bytes of `chunks`. APIs have templates of those that are frequent."""
        return self.bytes_of(self.chunks(choice, event, deltas))

    @property
    def told_frames(self) -> Callable[[Choice, Event, Sequence[Delta]], bytes]:
        """`frames`, with a comment that tells the tokens of the event if the request wants it."""
        return self._frames_and_tokens if self.tells_tokens else self.frames

    def _frames_and_tokens(self, choice: Choice, event: Event, deltas: Sequence[Delta]) -> bytes:
        found = self.frames(choice, event, deltas)
        return found + comment_of(event.tokens) if _has_tokens(event) else found

    def bytes_of(self, chunks: Iterable[Json]) -> bytes:
        """The bytes of chunks of a stream."""
        return b"".join(map(self.encode, chunks))

    @abstractmethod
    def chunks(self, choice: Choice, event: Event, deltas: Sequence[Delta]) -> Iterator[Json]:
        """The chunks of a stream for `event`, which `choice` already contains.

        `deltas` are what it adds to the answer of a chat.
        """

    def collect(self, choice: Choice, event: Event, deltas: Sequence[Delta]) -> None:
        """Take an event of a reply that is not streamed. The choices have what most APIs need."""
        if type(event) is Piece:
            choice.probs += event.probs

    @abstractmethod
    def last_chunks(self) -> Iterator[Json]:
        """The last chunks of a stream, after all choices are finished."""

    def failure(self, error: Json, request_id: str) -> Iterator[Json]:
        """The last chunks of a stream that fails. `error` is the body of an error response, and
        `request_id` the request's."""
        yield error | {"request_id": request_id}

    def pieces(self) -> Iterator[bytes]:
        """The reply without a stream, in pieces, after all choices are finished."""
        return pieces(json_texts(self.whole()))

    @abstractmethod
    def whole(self) -> Json | JsonPart:
        """The value of `pieces`. Its long lists are `JsonPart`s."""

    def is_plain(self, event: Event) -> TypeGuard[Piece]:
        """True for a piece of text without probabilities and timings: most events."""
        return type(event) is Piece and not event.probs and not self.body.timings_per_token

    def extras(self, choice: Choice, event: Event) -> Json:
        """Optional fields of any chunk."""
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

    def constraint(self, result: Result) -> Json:
        """The field `constraint` of a text that has ended; none if it had no grammar."""
        if result.complete is None:
            return {}
        loosened = [
            each._asdict() | {"path": self.task.own_paths(each.path)} for each in result.loosened
        ]
        return {"constraint": {"complete": result.complete, "loosened": loosened}}


class NativeReplies(Replies):
    """POST /completion."""

    ends_with_done = False

    def __init__(self, model: Instance, task: GenerationTask, choices: Sequence[Choice]) -> None:
        super().__init__(model, task, choices)
        # the last chunks repeat them
        self.prompts = [model.vocab.detokenize(prompt, special=True) for prompt in task.prompts]
        self._same_settings = generation_settings(self.body, task.params)  # but for the seed
        self._templates: dict[int, Template] = {}  # of a piece of each choice

    def chunks(self, choice: Choice, event: Event, deltas: Sequence[Delta]) -> Iterator[Json]:
        """See `Replies.chunks`."""
        if isinstance(event, Result):
            yield self.final(choice, event, streamed=True)
            return
        text, tokens = "", []
        if isinstance(event, Piece):
            text, tokens = event.text, list(event.tokens)
        chunk = self._piece(choice, text, tokens, len(choice.tokens))
        if isinstance(event, Piece) and event.probs:
            chunk["completion_probabilities"] = self.probs.listed(event.probs)
        yield chunk | self.extras(choice, event)

    def frames(self, choice: Choice, event: Event, deltas: Sequence[Delta]) -> bytes:
        """See `Replies.frames`."""
        if not self.is_plain(event):
            return super().frames(choice, event, deltas)
        template = self._templates.get(choice.index)
        if template is None:
            template = Template(self._piece(choice, GAP, GAP, GAP))
            self._templates[choice.index] = template
        return template.fill(json_text(event.text), numbers_text(event.tokens), len(choice.tokens))

    def _piece(self, choice: Choice, text: Any, tokens: Any, n_predicted: Any) -> Json:
        return {
            "index": choice.index,
            "content": text,
            "tokens": tokens,
            "stop": False,
            "id_slot": choice.slot,
            "tokens_predicted": n_predicted,
            "tokens_evaluated": choice.n_prompt,
        }

    def last_chunks(self) -> Iterator[Json]:
        """See `Replies.last_chunks`."""
        yield from ()

    def whole(self) -> Json | JsonPart:
        """See `Replies.whole`; one object for one text, a list for several."""
        finals = (
            self.final(choice, choice.result, streamed=False)
            for choice in self.choices
            if choice.result is not None
        )
        return next(finals) if len(self.choices) == 1 else json_list(map(json_texts, finals))

    def final(self, choice: Choice, result: Result, *, streamed: bool) -> Json:
        """The reply of a text that has ended. The last chunk of a stream does not repeat it."""
        body = self.body
        final: Json = {
            "index": choice.index,
            "content": "" if streamed else choice.text,
            "tokens": list(choice.tokens) if body.return_tokens and not streamed else [],
            "id_slot": choice.slot,
            "stop": True,
            "model": self.model.alias,
            "tokens_predicted": result.n_predicted,
            "tokens_evaluated": result.n_prompt,
            "generation_settings": self._settings(choice, result.seed),
            "prompt": self.prompts[choice.index // self.body.n_choices],
            "has_new_line": "\n" in choice.text,
            "truncated": result.truncated,
            "stop_type": result.stop_type.value,
            "stopping_word": result.stopping_word,
            # the last token was sampled but not evaluated
            "tokens_cached": result.n_prompt + max(result.n_predicted - 1, 0),
            "timings": result.timings.as_dict(),
            **self.constraint(result),
        }
        if choice.probs and not streamed:
            final["completion_probabilities"] = self.probs.listed(choice.probs)
        return _selected(final, body.response_fields) if body.response_fields else final

    def _settings(self, choice: Choice, seed: int) -> Json:
        """The settings in a final: all of them once, as those of the choices differ in the seed."""
        return (self._same_settings if choice.index == 0 else {}) | {"seed": seed}


class OpenAIReplies(Replies):
    """The common part of the two OpenAI shapes: the envelope, usage and timings."""

    object_whole: str
    object_chunk: str

    def __init__(self, model: Instance, task: GenerationTask, choices: Sequence[Choice]) -> None:
        super().__init__(model, task, choices)
        self.created = int(time.time())
        self._native = NativeReplies(model, task, choices) if self.body.verbose else None

    def envelope(self, choices: list[Json] | JsonPart, *, chunk: bool) -> Json:
        """An object with these `choices`."""
        return {
            "choices": choices,
            "created": self.created,
            "id": self.id,
            "model": self.model.alias,
            "system_fingerprint": SYSTEM_FINGERPRINT,
            "object": self.object_chunk if chunk else self.object_whole,
        }

    def last_chunks(self) -> Iterator[Json]:
        """See `Replies.last_chunks`: the usage, if requested."""
        if self.body.stream_options.include_usage:
            yield self.envelope([], chunk=True) | {"usage": self.usage()} | self.end_timings()

    def end_timings(self) -> Json:
        """The `timings` of the first choice, as in llama-server."""
        return {"timings": self.choices[0].timings().as_dict()}

    def whole(self) -> Json:
        """See `Replies.whole`."""
        choices = json_list(json_texts(self.finished(choice)) for choice in self.choices)
        reply = self.envelope(choices, chunk=False)
        verbose = self.verbose(self.choices[0], streamed=False)
        return reply | {"usage": self.usage()} | verbose | self.end_timings()

    def verbose(self, choice: Choice, *, streamed: bool) -> Json:
        """The field `__verbose`, the native reply of a choice that has ended; none if not
        requested."""
        if self._native is None or choice.result is None:
            return {}
        return {"__verbose": self._native.final(choice, choice.result, streamed=streamed)}

    @abstractmethod
    def finished(self, choice: Choice) -> Json:
        """One of the `choices` of the whole reply."""

    def usage(self) -> Json:
        """Token counts of all choices. A prompt that several choices share counts once."""
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

    def logprobs(self, probs: Sequence[Logprobs]) -> Json | None:
        """OpenAI's name with llama.cpp's content; None if not requested."""
        return {"content": self.probs.listed(probs)} if probs else None


def _has_tokens(event: Event) -> TypeGuard[Piece]:
    return type(event) is Piece and bool(event.tokens)


class CompletionReplies(OpenAIReplies):
    """POST /v1/completions."""

    object_whole = object_chunk = "text_completion"

    def __init__(self, model: Instance, task: GenerationTask, choices: Sequence[Choice]) -> None:
        super().__init__(model, task, choices)
        self._templates: dict[int, Template] = {}  # of a piece of each choice

    def chunks(self, choice: Choice, event: Event, deltas: Sequence[Delta]) -> Iterator[Json]:
        """See `Replies.chunks`."""
        if isinstance(event, Result):
            ended = self._choice(choice, "", (), event.finish_reason) | self.constraint(event)
            last = self.verbose(choice, streamed=True) | {"timings": event.timings.as_dict()}
            if self._reports_usage_now():
                last["usage"] = self.usage()
            yield self.envelope([ended], chunk=True) | last
            return
        text, probs = (event.text, event.probs) if isinstance(event, Piece) else ("", ())
        going = self._choice(choice, text, probs, None)
        yield self.envelope([going], chunk=True) | self.extras(choice, event)

    def _reports_usage_now(self) -> bool:
        """True for the last chunk of all texts, if no chunk for the usage follows."""
        if self.body.stream_options.include_usage:
            return False
        return all(choice.result is not None for choice in self.choices)

    def frames(self, choice: Choice, event: Event, deltas: Sequence[Delta]) -> bytes:
        """See `Replies.frames`."""
        if not self.is_plain(event):
            return super().frames(choice, event, deltas)
        template = self._templates.get(choice.index)
        if template is None:
            going = self._choice(choice, GAP, (), None)
            template = Template(self.envelope([going], chunk=True))
            self._templates[choice.index] = template
        return template.fill(json_text(event.text))

    def finished(self, choice: Choice) -> Json:
        """See `OpenAIReplies.finished`."""
        assert choice.result is not None, f"choice {choice.index} is not finished"
        ended = self._choice(choice, choice.text, choice.probs, choice.result.finish_reason)
        return ended | self.constraint(choice.result)

    def _choice(
        self, choice: Choice, text: str, probs: Sequence[Logprobs], reason: str | None
    ) -> Json:
        return {
            "text": text,
            "index": choice.index,
            "logprobs": self.logprobs(probs),
            "finish_reason": reason,
        }


def generation_settings(body: GenerationBody, params: RequestParams) -> Json:
    """The settings of a request, as the reply reports them."""
    settings = _fields_of(params.sampling) | _fields_of(params.generation)
    settings["logit_bias"] = JsonPart([_biases_text(params.sampling.logit_bias)])
    grammar = params.grammar
    settings |= {"grammar": grammar.grammar, "regex": grammar.regex}
    settings["json_schema"] = grammar.json_schema
    settings["lora"] = [{"id": id, "scale": s} for id, s in params.generation.lora or ()]
    return (
        settings
        | FIXED_SETTINGS
        | speculative_settings(params.speculative)
        | {
            "max_tokens": params.generation.n_predict,
            "grammar_lazy": body.grammar_lazy,
            "grammar_triggers": shown_triggers(body.grammar_triggers),
            "preserved_tokens": list(body.preserved_tokens),
            "stream": body.stream,
            "n_probs": body.n_top_probs or 0,
            "post_sampling_probs": body.post_sampling_probs,
            "timings_per_token": body.timings_per_token,
        }
    )


def speculative_settings(params: SpeculativeParams) -> Json:
    """The options of guesses, by the names of requests."""
    return {
        "speculative.types": ",".join(params.spec_type if params.is_on else (SpecType.NONE,)),
        "speculative.n_max": params.spec_n_max,
        "speculative.n_min": params.spec_n_min,
        "speculative.p_min": params.spec_p_min,
    }


def _fields_of(options: SamplingParams | GenerationParams) -> Json:
    """The fields by name. `asdict` would copy their values, and takes twenty times as long."""
    return {field.name: getattr(options, field.name) for field in fields(options)}


def _biases_text(biases: Iterable[tuple[int, float]]) -> bytes:
    """Biases as in llama-server. JSON has no infinity: `false`, as in requests."""
    numbers = ((token, repr(b) if math.isfinite(b) else "false") for token, b in biases)
    texts = (f'{{"token":{token},"bias":{number}}}' for token, number in numbers)
    return f"[{','.join(texts)}]".encode()


def _selected(final: Json, fields: Sequence[str]) -> Json:
    """Only the requested fields. "a/b" is b inside a; the name stays "a/b"."""
    found: Json = {}
    for name in fields:
        value: Any = final
        for key in name.split("/"):
            value = value.get(key) if isinstance(value, dict) else None
        if value is not None:
            found[name] = value
    return found
