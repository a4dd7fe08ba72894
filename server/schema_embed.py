"""The bodies of requests for vectors and scores: OpenAI's, llama-server's, TEI's, Jina's, ollama's.

Knows no model: server/embed_inputs.py checks token ids and lengths.
Tested by tests/server/test_http_embeddings.py and test_http_rerank.py.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, Any, Final, Literal, NamedTuple, Self

from pydantic import (
    BeforeValidator,
    FailFast,
    Field,
    JsonValue,
    PlainValidator,
    model_validator,
)

from .ollama.keep_alive import check_keep_alive
from .schema import INT32_MAX, Body, Prompt, parts_of

INPUT: Final = "a string, or a list of token ids and strings"
DOCUMENT: Final = 'a string, or an object with a string as its "text"'

KeepAlive = Annotated[JsonValue, BeforeValidator(check_keep_alive)]
# llama-server's norms: -1 none, 0 largest absolute value, 1 taxicab, 2 Euclidean, above: p-norm
Norm = Annotated[int, Field(ge=-1, le=INT32_MAX)]


def _input(value: object) -> Prompt:
    """One text: a string, token ids, a mixed list, or llama-server's object with text parts."""
    match value:
        case {"content": [*parts]} if parts and all(_is_text(part) for part in parts):
            return ("".join(part["text"] for part in parts),)
    found = parts_of(value)
    if found is None:
        raise ValueError(f"must be {INPUT}")
    return found


def _is_text(part: object) -> bool:
    match part:
        case {"type": "text", "text": str()}:
            return True
    return False


def _inputs(value: object) -> list[Any]:
    """The list of texts that a field stands for: one text is a list of one."""
    if value == []:
        raise ValueError("must not be empty")
    if isinstance(value, str | dict) or parts_of(value) is not None:
        return [value]
    if not isinstance(value, list):
        raise ValueError(f"must be {INPUT}, or a list of such inputs")
    return value


def _inputs_or_none(value: object) -> list[Any]:
    return [] if value in ("", []) else _inputs(value)


def _text(value: object) -> str:
    match value:
        case str(text) | {"text": str(text)}:
            return text
    raise ValueError(f"must be {DOCUMENT}")


def _texts(value: object) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise ValueError("must be a list of at least one text")
    return value


Inputs = Annotated[
    list[Annotated[Prompt, PlainValidator(_input)]], FailFast(), BeforeValidator(_inputs)
]
InputsOrNone = Annotated[
    list[Annotated[Prompt, PlainValidator(_input)]], FailFast(), BeforeValidator(_inputs_or_none)
]
Text = Annotated[str, PlainValidator(_text)]
Texts = Annotated[list[Text], FailFast(), BeforeValidator(_texts)]


class Named(NamedTuple):
    """The texts of a request, and the name of their field."""

    field: str
    inputs: list[Prompt]

    def place(self, i: int) -> str:
        """The name of a text in messages, such as "input[3]"."""
        return f'"{self.field}"' if len(self.inputs) == 1 else f'"{self.field}[{i}]"'


class TextsBody(Body):
    """Fields of every request with texts.

    Attributes:
        truncate: cut texts that are too long at their end, instead of an error.
        truncate_prompt_tokens: vLLM's: the most tokens of a text; -1: as many as the model takes.
    """

    model: str = ""
    truncate: bool = False
    truncate_prompt_tokens: int | None = Field(default=None, ge=-1, le=INT32_MAX)

    @property
    def n_tokens_max(self) -> int | None:
        """Tokens after which a text is cut; None: no text is cut, too long ones are refused."""
        n = self.truncate_prompt_tokens
        if n is not None and n >= 0:
            return n
        return INT32_MAX if self.truncate or n == -1 else None


class InputsBody(TextsBody):
    """Fields of every request for vectors."""

    dimensions: int | None = Field(default=None, ge=1)

    @property
    @abstractmethod
    def named(self) -> Named:
        """The texts."""

    @property
    @abstractmethod
    def norm(self) -> int | None:
        """llama-server's number of the norm; None: the server's."""


class EmbeddingBody(InputsBody):
    """POST /v1/embeddings, /embeddings and /embedding."""

    input: Inputs = Field(default=[])  # a given list is not empty
    content: Inputs = Field(default=[])
    encoding_format: Literal["float", "base64"] = "float"
    embd_normalize: Norm | None = None

    @model_validator(mode="after")
    def _check_input(self) -> Self:
        if not self.input and not self.content:
            raise ValueError('"input" is missing')
        return self

    @property
    def named(self) -> Named:
        return Named("input", self.input) if self.input else Named("content", self.content)

    @property
    def norm(self) -> int | None:
        return self.embd_normalize

    @property
    def is_base64(self) -> bool:
        return self.encoding_format == "base64"


class TeiEmbedBody(InputsBody):
    """POST /embed."""

    inputs: Inputs
    normalize: bool = True

    @property
    def named(self) -> Named:
        return Named("inputs", self.inputs)

    @property
    def norm(self) -> int | None:
        return 2 if self.normalize else -1


class OllamaEmbedBody(InputsBody):
    """POST /api/embed. `options` have no effect. A request without a text loads the model."""

    input: InputsOrNone = Field(default=[])
    truncate: bool = True
    keep_alive: KeepAlive = None
    options: JsonValue = None

    @property
    def named(self) -> Named:
        return Named("input", self.input)

    @property
    def norm(self) -> int | None:
        return 2


class OllamaPromptBody(InputsBody):
    """POST /api/embeddings, ollama's older request: one text, whose vector is not normalized.

    A request without a text loads the model.
    """

    prompt: str = ""
    truncate: bool = True
    keep_alive: KeepAlive = None
    options: JsonValue = None

    @property
    def named(self) -> Named:
        return Named("prompt", [(self.prompt,)] if self.prompt else [])

    @property
    def norm(self) -> int | None:
        return -1


class RerankBody(TextsBody):
    """POST /rerank and its aliases. `texts` is TEI's name, which also selects its reply."""

    query: Text
    documents: Texts = Field(default=[])  # a given list is not empty
    texts: Texts = Field(default=[])
    top_n: int = Field(default=0, ge=0)  # 0: all
    return_documents: bool = False
    return_text: bool = False
    raw_scores: bool | None = None  # TEI's scores are from 0 to 1, llama-server's are not

    @model_validator(mode="after")
    def _check_documents(self) -> Self:
        if not self.documents and not self.texts:
            raise ValueError('"documents" is missing')
        if self.documents and self.texts:
            raise ValueError('"documents" and "texts" must not be set both')
        return self

    @property
    def is_tei(self) -> bool:
        return bool(self.texts)

    @property
    def named(self) -> Named:
        field, texts = ("texts", self.texts) if self.is_tei else ("documents", self.documents)
        return Named(field, [(text,) for text in texts])
