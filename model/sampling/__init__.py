"""sampling: from logits to the next token, with llama-server's samplers, defaults and draws."""

from .native import load_kernels
from .params import DEFAULT_SAMPLERS, SamplingParams, samplers_from_chars
from .recommended import recommended_sampling
from .sampler import Sampler, SamplerVocab
from .softmax import log_softmax

__all__ = [
    "DEFAULT_SAMPLERS",
    "Sampler",
    "SamplerVocab",
    "SamplingParams",
    "load_kernels",
    "log_softmax",
    "recommended_sampling",
    "samplers_from_chars",
]
