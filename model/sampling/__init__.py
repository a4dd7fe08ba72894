"""sampling: logits to the next token, with llama-server's samplers, defaults and random draws."""

from .logprobs import Logprobs, TokenLogprob, model_logprobs, sampler_logprobs
from .native import load_kernels, want_kernels
from .params import (
    DEFAULT_SAMPLERS,
    N_BIASES_MAX,
    SamplingParams,
    samplers_from_chars,
    token_of_key,
)
from .recommended import recommended_sampling
from .rows import RowSampler, Sampled
from .sampler import Sampler, SamplerVocab

__all__ = [
    "DEFAULT_SAMPLERS",
    "N_BIASES_MAX",
    "Logprobs",
    "RowSampler",
    "Sampled",
    "Sampler",
    "SamplerVocab",
    "SamplingParams",
    "TokenLogprob",
    "load_kernels",
    "model_logprobs",
    "recommended_sampling",
    "sampler_logprobs",
    "samplers_from_chars",
    "token_of_key",
    "want_kernels",
]
