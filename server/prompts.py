"""From what a request says to what the engine is given: token ids and sampling parameters.

Knows vocabularies and chat templates; not how requests come and go, not how the engine works.
Tested by tests/server/test_http_prompts.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from aiohttp import web

from ..base.errors import RequestError
from ..model.sampling import SamplingParams, samplers_from_chars
from ..model.vocab import Vocab
from ..runtime.instance import Instance
from .bridge import Choice
from .schema import GenerationBody, Part, TemplateBody

N_SEEDS: Final = 2**32 - 1  # seeds count modulo 2**32, of which the last one means "random"


def tokenize_parts(
    vocab: Vocab, parts: Sequence[Part], *, add_special: bool = True, parse_special: bool = True
) -> list[int]:
    """Token ids of texts and ids in order; special tokens are added only if a text comes first.

    The rule is llama-server's (tokenize_mixed in tools/server/server-common.cpp).
    """
    tokens: list[int] = []
    for i, part in enumerate(parts):
        if isinstance(part, int):
            tokens.append(part)
        else:
            special = add_special and i == 0
            tokens += vocab.tokenize(part, add_special=special, parse_special=parse_special)
    return tokens


def chat_prompt(model: Instance, body: TemplateBody) -> str:
    """The text of a chat; a last message of the assistant is left open, to be continued.

    Raises:
        RequestError: the template refuses the messages, or there is no message to continue.
    """
    messages = [message.as_template_sees_it() for message in body.messages]
    is_assistant = messages[-1]["role"] == "assistant"
    if body.continue_final_message and not is_assistant:
        raise RequestError(
            '"continue_final_message" is true: the last message must have the role "assistant", '
            f'found "{messages[-1]["role"]}"'
        )
    continued = ""
    generate = body.add_generation_prompt
    if is_assistant and body.continue_final_message is not False:
        continued = str(messages.pop()["content"])
        generate = True
    options: dict[str, object] = dict(body.chat_template_kwargs)
    if body.reasoning_effort is not None:
        options.setdefault("reasoning_effort", body.reasoning_effort)
    text = model.chat.render(messages, add_generation_prompt=generate, **options)
    return model.vocab.without_bos(text) + continued


def check_model(model: Instance, name: str) -> None:
    """Clients may call the model what they like, but not by the name of another model file.

    Raises:
        HTTPNotFound: `name` is that of a GGUF file, and not of the one that is served.
    """
    known = {model.alias, str(model.path), model.path.name, model.path.stem}
    if name.lower().endswith(".gguf") and name not in known:
        raise web.HTTPNotFound(text=f'there is no model "{name:.200}": "{model.alias}" is served')


def choices_of(
    model: Instance, body: GenerationBody, prompts: Sequence[Sequence[int]]
) -> list[Choice]:
    """What to generate: `n` texts for each prompt, with seeds that count up from the one given.

    Raises:
        RequestError: `n` or a sampling field has a value that is not allowed.
        HTTPNotFound: see `check_model`.
    """
    check_model(model, body.model)
    n, n_max = body.n_choices, model.engine.n_parallel
    if n > n_max:
        raise RequestError(f'"n" must be at most {n_max}, as many as run in parallel, found {n}')
    sampling = sampling_params(model, body)
    return [
        Choice(n * i + j, len(prompt), replace(sampling, seed=_next_seed(sampling.seed, j)))
        for i, prompt in enumerate(prompts)
        for j in range(n)
    ]


def sampling_params(model: Instance, body: GenerationBody) -> SamplingParams:
    """The model's defaults with what the request says instead; RequestError if that is wrong."""
    given: dict[str, Any] = dict(body.sampling)
    if isinstance(given.get("samplers"), str):
        given["samplers"] = samplers_from_chars(given["samplers"])
    if body.logit_bias:
        given["logit_bias"] = tuple(
            (token, bias)
            for part, bias in body.logit_bias
            for token in tokenize_parts(model.vocab, [part], add_special=False, parse_special=False)
        )
    return model.sampling_params(given)


def _next_seed(seed: int, i: int) -> int:
    is_random = seed % 2**32 == N_SEEDS
    return seed if i == 0 or is_random else (seed + i) % N_SEEDS
