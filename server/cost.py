"""The memory that a request may take at most, known before it runs.

Counted are the body, tokens and texts of prompts and choices, probabilities, biases, stop strings,
DRY's breakers, and the windows of penalties and DRY; of embeddings and ranking, tokens and vectors.
Keys and values, and logits and memory for draws of running texts, are the engine's. Grammars have
bounds of their own (model/guide/limits.py): of their sources, of those of the cache together, and
of what one keeps for a running text.
Tested by tests/server/test_request_cost.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ..model.sampling import SamplingParams
from ..runtime.engine.policy import n_predict_of
from .tasks import GenerationTask

# estimated from the sizes of Python's objects and of arrays, rounded up
N_TOKEN_BYTES: Final = 128  # a token with its text
N_POSITION_BYTES: Final = 256  # the arrays of a position's probabilities, without elements
N_PROB_BYTES: Final = 8  # an id and a logarithm
N_PROB_TEXT_BYTES: Final = 160  # both with the token, as JSON
N_COPY_BYTES: Final = 8  # a token of the prompt in each choice
N_PENALTY_BYTES: Final = 192  # a token in the window of penalties, with its count
N_DRY_BYTES: Final = 40  # a token in the window of DRY
# once for all choices, as they share them
N_BREAKER_TOKEN_BYTES: Final = 8  # a token of the vocabulary, with the tails of breakers in it
N_BREAKER_BYTES: Final = 32768  # a breaker with its tails, 40 bytes in 40 ways to begin
N_STOP_BYTES: Final = 128  # a stop string, without its characters
N_STOP_CHAR_BYTES: Final = 4
N_HELD_CHAR_BYTES: Final = 256  # a character that is held back, as a token
N_BIAS_BYTES: Final = 160  # a bias and its text in the reply
N_CHOICE_BIAS_BYTES: Final = 32  # a bias in a sampler
N_CHOICE_BYTES: Final = 8192
N_TEXT_BYTES: Final = 512  # a text for a vector, without its tokens
N_TEXT_TOKEN_BYTES: Final = 48  # in a list and in an array
N_FLOAT_BYTES: Final = 4
N_BODY_CHAR_BYTES: Final = 4
N_VALUE_BYTES: Final = 96  # an object with a field, in a list


def request_cost(task: GenerationTask, n_ctx: int, n_vocab: int) -> int:
    """The most bytes that a task takes. A choice ends at `n_predict`, or if the context is full and
    does not shift."""
    generation = task.params.generation
    stop = generation.stop
    n_predict = n_predict_of(generation, n_ctx)
    n_bias = len(task.params.sampling.logit_bias)
    position = N_TOKEN_BYTES + _position_probs(task)
    total = N_BIAS_BYTES * n_bias + _breakers(task.params.sampling, n_vocab)
    total += sum(N_STOP_BYTES + N_STOP_CHAR_BYTES * len(word) for word in stop)
    fixed = N_CHOICE_BYTES + N_CHOICE_BIAS_BYTES * n_bias + _windows(task.params.sampling, n_ctx)
    fixed += N_STOP_BYTES * len(stop) + N_HELD_CHAR_BYTES * max(map(len, stop), default=0)
    for prompt in task.prompts:
        n = n_predict
        if not generation.context_shift:
            n_room = max(n_ctx - len(prompt), 0)
            n = n_room if n < 0 else min(n, n_room)
        choice = fixed + N_COPY_BYTES * len(prompt) + position * n
        total += N_TOKEN_BYTES * len(prompt) + task.body.n_choices * choice
    return total


def body_cost(raw: bytes) -> int:
    """The most bytes that the values of a JSON body take: its texts, and its other values, of which
    there are not more than marks between them."""
    n_values = raw.count(b",") + raw.count(b"[") + raw.count(b"{")
    return N_BODY_CHAR_BYTES * len(raw) + N_VALUE_BYTES * n_values


def embedding_cost(lengths: Sequence[int], n_out: int, *, is_pooled: bool) -> int:
    """The most bytes that texts of these lengths in tokens take, with their vectors."""
    n_vectors = len(lengths) if is_pooled else sum(lengths)
    texts = N_TEXT_BYTES * len(lengths) + N_TEXT_TOKEN_BYTES * sum(lengths)
    return texts + N_FLOAT_BYTES * n_out * n_vectors


def _position_probs(task: GenerationTask) -> int:
    """The bytes of the probabilities that are kept for each token."""
    n_top, body = task.body.n_top_probs, task.body
    if n_top is None or not body.keeps_probs:
        return 0
    return N_POSITION_BYTES + (1 + n_top) * (
        N_PROB_TEXT_BYTES if body.keeps_prob_texts else N_PROB_BYTES
    )


def _windows(sampling: SamplingParams, n_ctx: int) -> int:
    """The bytes of the last tokens that a sampler remembers."""
    total = 0
    if sampling.penalizes:
        total += N_PENALTY_BYTES * min(sampling.repeat_last_n, n_ctx)
    if sampling.dry_multiplier:
        total += N_DRY_BYTES * min(sampling.dry_penalty_last_n, n_ctx)
    return total


def _breakers(sampling: SamplingParams, n_vocab: int) -> int:
    """The bytes of DRY's breakers."""
    breakers = sampling.dry_sequence_breakers if sampling.dry_multiplier else ()
    return N_BREAKER_TOKEN_BYTES * n_vocab + N_BREAKER_BYTES * len(breakers) if breakers else 0
