"""What GET / says of calls: the endpoints of a kind of server, and examples.

Knows no server. Tested by tests/server/test_page.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

Endpoint = tuple[str, str, str]  # method, path, description

COMMON: Final[Sequence[Endpoint]] = (
    ("GET", "/health", "ready or loading"),
    ("GET", "/v1/models", "the model and its sizes"),
    ("GET", "/props", "defaults of requests, and the model's properties"),
    ("GET", "/slots", "running requests"),
    ("GET", "/status.json", "requests, memory and the last steps; /status: a page of them"),
    ("GET", "/metrics", "metrics for Prometheus, with --metrics"),
    ("POST", "/tokenize", "text to token ids; detokenize: back"),
)
_CURL: Final = """curl {url}%s{key} \\
  -H "Content-Type: application/json" \\
  -d '%s'"""
_PYTHON: Final = """from openai import OpenAI

client = OpenAI(base_url="{url}/v1", api_key="{key}")
"""


class Calls(NamedTuple):
    """How to call a server. The texts have {url}, {key} and {model}."""

    endpoints: Sequence[Endpoint]
    curl: str
    python: str


GENERATING: Final = Calls(
    endpoints=(
        *COMMON,
        ("POST", "/v1/chat/completions", "OpenAI chat"),
        ("POST", "/v1/completions", "OpenAI completion"),
        ("POST", "/completion", "llama-server's completion"),
        ("POST", "/apply-template", "the prompt of a chat"),
    ),
    curl=_CURL
    % ("/v1/chat/completions", '{{"messages": [{{"role": "user", "content": "Hello!"}}]}}'),
    python=_PYTHON
    + """reply = client.chat.completions.create(
    model="{model}",
    messages=[{{"role": "user", "content": "Hello!"}}],
)
print(reply.choices[0].message.content)""",
)
EMBEDDING: Final = Calls(
    endpoints=(
        *COMMON,
        ("POST", "/v1/embeddings", "OpenAI embeddings"),
        ("POST", "/embedding", "llama-server's embeddings"),
        ("POST", "/embed", "TEI's embeddings"),
    ),
    curl=_CURL % ("/v1/embeddings", '{{"input": ["a text", "another one"]}}'),
    python=_PYTHON
    + """reply = client.embeddings.create(model="{model}", input=["a text", "another one"])
print(reply.data[0].embedding)""",
)
RANKING: Final = Calls(
    endpoints=(*COMMON, ("POST", "/v1/rerank", "documents by relevance: Jina's, Cohere's, TEI's")),
    curl=_CURL
    % ("/v1/rerank", '{{"query": "What is a panda?", "documents": ["a bear", "a bird"]}}'),
    python=_PYTHON
    + """body = {{"query": "What is a panda?", "documents": ["a bear", "a bird"]}}
print(client.post("/rerank", body=body, cast_to=object))""",
)
