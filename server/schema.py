"""The bodies of requests as pydantic models, with llama-server's names and defaults.

Types are strict (no "5" for 5) and `null` means absent. Knows no model: the engine and the samplers
check token ids and sampling values. schema_chat.py has the bodies of chats. server/parsing.py turns
bytes into bodies and refuses unsupported features.
Tested by tests/server/test_http_schema.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Final

from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    FailFast,
    Field,
    PlainValidator,
    model_validator,
)

from ..base.options import declarations
from ..model.guide.params import GrammarParams
from ..model.guide.triggers import Triggers
from ..model.sampling import N_BIASES_MAX, token_of_key
from ..runtime.params import ALIASES, RequestParams, without_aliases
from .constraints import constraint_of
from .lazy_grammars import check_preserved, check_triggers

Part = str | int
Prompt = tuple[Part, ...]  # texts and token ids, in order
LogitBias = tuple[tuple[Part, Any], ...]

# not for requests: they are for benchmarks, or take memory
OF_SERVERS: Final = frozenset({"spec_synth_rates", "spec_ngram_size", "spec_ngram_match"})
# but for the constraint, which has many fields, and fields of the body: biases may name tokens by
# texts, and texts that stop are limited
PARAMS: Final = (
    declarations(RequestParams).keys()
    - {"logit_bias", "stop"}
    - OF_SERVERS
    - declarations(GrammarParams).keys()
)

# limits, so that no request uses up the memory or the time of others
N_PROMPTS_MAX: Final = 512
N_PROBS_MAX: Final = 512  # candidates reported for each token
N_RESPONSE_FIELDS_MAX: Final = 256
N_EXTRA_MAX: Final = 1024  # other texts for infill
N_STOP_MAX: Final = 32  # the text is searched for each of them at every token
N_STOP_CHARS_MAX: Final = 512  # so much text may be held back

INT32_MAX: Final = 2**31 - 1
Int = Annotated[int, Field(ge=-INT32_MAX, le=INT32_MAX)]
NProbs = Annotated[int, Field(ge=0, le=N_PROBS_MAX)]


def parts_of(value: object) -> Prompt | None:
    """One prompt: a text, or a list of token ids and texts. None if it is neither."""
    match value:
        case str():
            return (value,)
        case {"prompt_string": str(text)}:
            return (text,)
        case list() if all(type(part) is int for part in value):
            return tuple(value)
        case list() if all(type(part) in (int, str) for part in value):
            # a list of texts only is a list of prompts
            return tuple(value) if any(type(part) is int for part in value) else None
    return None


def _prompts(value: object) -> tuple[Prompt, ...]:
    one = parts_of(value)
    if one is not None and value != []:
        return (one,)
    if isinstance(value, list) and len(value) > N_PROMPTS_MAX:
        raise ValueError(f"must be at most {N_PROMPTS_MAX} prompts, each of one type")
    many = [parts_of(element) for element in value] if isinstance(value, list) else []
    prompts = tuple(prompt for prompt in many if prompt is not None)
    if not prompts or len(prompts) < len(many):
        raise ValueError(
            "must be a string, a list of strings and token ids, or a list of such prompts"
        )
    return prompts


def _content(value: object) -> Prompt:
    parts = parts_of(value)
    if parts is None:
        if isinstance(value, list) and all(isinstance(part, str) for part in value):
            return tuple(value)
        raise ValueError("must be a string, or a list of strings and token ids")
    return parts


def stop_words(value: object) -> tuple[str, ...]:
    """The strings that end a text. Raises ValueError."""
    words = [value] if isinstance(value, str) else value
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ValueError("must be a string or a list of strings")
    if len(words) > N_STOP_MAX or any(len(word) > N_STOP_CHARS_MAX for word in words):
        raise ValueError(f"must be at most {N_STOP_MAX} strings of {N_STOP_CHARS_MAX} characters")
    return tuple(word for word in words if word)


def _logit_bias(value: object) -> LogitBias:
    """llama-server's [[token or text, bias or false], ...] or {"token or text": bias}."""
    if isinstance(value, dict | list) and len(value) > N_BIASES_MAX:
        raise ValueError(f"must have at most {N_BIASES_MAX} elements")
    if isinstance(value, dict):
        return tuple((token_of_key(key), bias) for key, bias in value.items())
    pairs: list[Any] = value if isinstance(value, list) else [value]
    if not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        raise ValueError('must be [[token, bias], ...] or {"token": bias, ...}')
    if not all(type(token) in (int, str) for token, _ in pairs):
        raise ValueError("must name each token by its id or its text")
    return tuple((token, bias) for token, bias in pairs)


class Body(BaseModel):
    """The base of all bodies: strict types, null means absent."""

    model_config = ConfigDict(
        strict=True,
        extra="ignore",
        allow_inf_nan=False,
        frozen=True,
        defer_build=True,  # the first body of a kind builds its validator, not the start
    )

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, value: object) -> object:
        if not isinstance(value, dict):
            return value
        return {key: item for key, item in value.items() if item is not None}

    @classmethod
    def names(cls) -> Iterator[str]:
        """All names and aliases of the fields."""
        for name, field in cls.model_fields.items():
            if isinstance(field.validation_alias, AliasChoices):
                yield from (str(choice) for choice in field.validation_alias.choices)
            else:
                yield name


class StreamOptions(Body):
    """OpenAI's `stream_options`."""

    include_usage: bool = False


class GenerationBody(Body):
    """Fields of every generating request.

    `params` has the values of `RequestParams`, which checks them. `schema_path` is where the
    request has the JSON schema of its text.
    """

    model: str = ""
    params: dict[str, Any] = {}
    schema_path: str = "json_schema"
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    n_choices: int = Field(default=1, ge=1, validation_alias=AliasChoices("n_cmpl", "n"))
    n_probs: NProbs = 0
    post_sampling_probs: bool = False
    stop: Annotated[tuple[str, ...], PlainValidator(stop_words)] = ()
    n_indent: int = Field(default=0, ge=0, le=INT32_MAX)
    grammar_lazy: bool = False
    grammar_triggers: Annotated[Triggers | None, PlainValidator(check_triggers)] = None
    preserved_tokens: Annotated[tuple[str, ...], PlainValidator(check_preserved)] = ()
    logit_bias: Annotated[LogitBias, PlainValidator(_logit_bias)] = ()
    return_tokens: bool = False
    return_progress: bool = False
    timings_per_token: bool = False
    verbose: bool = False  # replies of OpenAI's shape have the native one, too
    response_fields: Annotated[list[str], FailFast(), Field(max_length=N_RESPONSE_FIELDS_MAX)] = []
    sse_ping_interval: int | None = Field(default=None, ge=-1, le=INT32_MAX)  # the server's
    id_slot: int = Field(default=-1, ge=-1)  # the slot that it gets if that is free

    @model_validator(mode="before")
    @classmethod
    def _gather_params(cls, value: object) -> object:
        if not isinstance(value, dict):
            return value
        names = PARAMS | ALIASES.keys()
        given = {name: value[name] for name in names if value.get(name) is not None}
        options, path = constraint_of(value)
        return {**value, "params": without_aliases(given) | options, "schema_path": path}

    @property
    def n_top_probs(self) -> int | None:
        """Number of candidates to report per token; None: no probabilities."""
        return self.n_probs or None

    @property
    def keeps_probs(self) -> bool:
        """True if the probabilities of all tokens are kept until the end. A stream that is read as
        it is made keeps none."""
        return not self.stream

    @property
    def keeps_prob_texts(self) -> bool:
        """True if they are kept as JSON texts."""
        return False


class CompletionBody(GenerationBody):
    """POST /completion and /v1/completions. With a `suffix`, the text before it is generated."""

    prompts: Annotated[tuple[Prompt, ...], PlainValidator(_prompts)] = Field(
        validation_alias=AliasChoices("prompt")
    )
    suffix: str = ""
    n_probs: NProbs = Field(default=0, validation_alias=AliasChoices("n_probs", "logprobs"))


class ExtraText(Body):
    """Another text of the repository, for POST /infill."""

    text: str = ""
    filename: str = "tmp"


class InfillBody(GenerationBody):
    """POST /infill: the text between `input_prefix` with `prompt` and `input_suffix`."""

    input_prefix: str
    input_suffix: str
    input_extra: Annotated[list[ExtraText], FailFast(), Field(max_length=N_EXTRA_MAX)] = []
    prompt: Annotated[Prompt, PlainValidator(_content)] = ()
    n_probs: NProbs = Field(default=0, validation_alias=AliasChoices("n_probs", "logprobs"))


class TokenizeBody(Body):
    """POST /tokenize."""

    content: Annotated[Prompt, PlainValidator(_content)]
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


class DetokenizeBody(Body):
    """POST /detokenize."""

    tokens: Annotated[list[Int], FailFast()]
