"""The memory that a request may take at most, known before it runs.

Counted are the tokens and texts of prompts and choices, probabilities and biases. Keys and values,
and the logits of running requests, are the engine's. Tested by tests/server/test_request_cost.py.
"""

from __future__ import annotations

from typing import Final

from .tasks import GenerationTask

# estimated from the sizes of Python's objects and of arrays, rounded up
N_TOKEN_BYTES: Final = 128  # a token with its text
N_POSITION_BYTES: Final = 256  # the arrays of a position's probabilities, without elements
N_PROB_BYTES: Final = 8  # an id and a logarithm
N_BIAS_BYTES: Final = 160  # a bias and its text in the reply
N_CHOICE_BIAS_BYTES: Final = 32  # a bias in a sampler
N_CHOICE_BYTES: Final = 8192


def request_cost(task: GenerationTask, n_ctx: int) -> int:
    """The most bytes that a task takes. A choice ends at `n_predict` or when the context is full.

    A stream is read as it is made, so it keeps no probabilities.
    """
    n_predict, n_top = task.params.generation.n_predict, task.body.n_top_probs
    n_bias = len(task.params.sampling.logit_bias)
    position = N_TOKEN_BYTES
    if n_top is not None and not task.body.stream:
        position += N_POSITION_BYTES + N_PROB_BYTES * (1 + n_top)
    total = N_BIAS_BYTES * n_bias
    for prompt in task.prompts:
        n_room = max(n_ctx - len(prompt), 0)
        n = n_room if n_predict < 0 else min(n_predict, n_room)
        choice = N_CHOICE_BYTES + N_CHOICE_BIAS_BYTES * n_bias + position * n
        total += N_TOKEN_BYTES * len(prompt) + task.body.n_choices * choice
    return total
