"""Hyperparameters of a model, read from a GGUF file's metadata.

Keys are those of the GGUF specification, read as llama.cpp reads them (llama-model.cpp,
load_hparams). Knows no tensors, except to find the vocabulary size. Tested by
tests/model/test_arch_hparams.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from ..base.errors import ModelFileError, UnsupportedModelError
from .gguf import Array, GGUFFile
from .layer_memory import Kind, LayerMemory

# llama.cpp's LLAMA_MAX_LAYERS and LLAMA_MAX_EXPERTS; a file with more is broken
MAX_LAYERS: Final = 512
MAX_EXPERTS: Final = 512
MAX_COUNT: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """The arguments of `ops.rope` that map positions to angles.

    `ext_factor` is 1 for YaRN (arXiv 2309.00071) and 0 otherwise; `freq_scale` is 1 / factor.
    """

    freq_base: float
    freq_scale: float
    ext_factor: float
    attn_factor: float
    beta_fast: float
    beta_slow: float
    n_ctx_orig: int


@dataclass(frozen=True, slots=True)
class HParams:
    """The shape of a model. Tuples have one entry for each layer."""

    arch: str
    n_layer: int
    n_ctx_train: int
    n_embd: int
    n_vocab: int
    n_ff: tuple[int, ...]
    n_head: tuple[int, ...]
    n_head_kv: tuple[int, ...]
    head_dim_k: int
    head_dim_v: int
    n_rot: int
    rms_eps: float
    rope: RopeScaling
    n_expert: int  # 0: no mixture of experts
    n_expert_used: int
    n_ff_exp: int

    def n_embd_k(self, il: int) -> int:
        """Return the number of elements of one token's keys in layer `il`."""
        return self.head_dim_k * self.n_head_kv[il]

    def n_embd_v(self, il: int) -> int:
        """Return the number of elements of one token's values in layer `il`."""
        return self.head_dim_v * self.n_head_kv[il]

    @property
    def memory(self) -> tuple[LayerMemory, ...]:
        """The memory of each layer."""
        return tuple(
            LayerMemory(Kind.FULL, self.n_embd_k(il), self.n_embd_v(il))
            for il in range(self.n_layer)
        )


def read_hparams(file: GGUFFile, *, moe: bool = False) -> HParams:
    """Return the hyperparameters of a file. With `moe`, the file must have experts.

    Raises:
        ModelFileError: a key is missing, or has a wrong type or an invalid value.
        UnsupportedModelError: an unsupported rope scaling.
    """
    keys = _Keys(file)
    n_layer = keys.count("block_count", high=MAX_LAYERS)
    n_embd = keys.count("embedding_length")
    n_head = keys.per_layer("attention.head_count", n_layer)
    n_head_kv = keys.per_layer("attention.head_count_kv", n_layer, n_head)
    for n, n_kv in zip(n_head, n_head_kv, strict=True):
        if n % n_kv:
            keys.fail("attention.head_count_kv", n_kv, f"must divide the {n} heads")
    head_dim_k, head_dim_v = _head_dims(keys, n_embd, n_head[0])
    n_expert, n_expert_used, n_ff_exp = _experts(keys, moe)
    n_ff = keys.per_layer("feed_forward_length", n_layer, (n_ff_exp,) * n_layer)
    return HParams(
        arch=keys.arch,
        n_layer=n_layer,
        n_ctx_train=keys.count("context_length"),
        n_embd=n_embd,
        n_vocab=_n_vocab(keys, file),
        n_ff=n_ff,
        n_head=n_head,
        n_head_kv=n_head_kv,
        head_dim_k=head_dim_k,
        head_dim_v=head_dim_v,
        n_rot=_n_rot(keys, head_dim_k),
        rms_eps=keys.positive("attention.layer_norm_rms_epsilon"),
        rope=_rope(keys),
        n_expert=n_expert,
        n_expert_used=n_expert_used,
        n_ff_exp=n_ff_exp or (n_ff[0] if n_expert else 0),  # Mixtral has only feed_forward_length
    )


class _Keys:
    """Reads and checks the keys of the file's architecture, by their names without its prefix."""

    def __init__(self, file: GGUFFile) -> None:
        self.path: Path = file.path
        self.metadata = file.metadata
        self.arch = file.metadata.str("general.architecture")

    def full(self, key: str) -> str:
        return f"{self.arch}.{key}"

    def __contains__(self, key: str) -> bool:
        return self.full(key) in self.metadata

    def fail(self, key: str, value: object, rule: str) -> NoReturn:
        raise ModelFileError(f"{self.path}: {self.full(key)} is {value}: {rule}")

    def count(
        self, key: str, default: int | None = None, *, low: int = 1, high: int = MAX_COUNT
    ) -> int:
        """Return an integer in low..high, or `default`, which is not checked."""
        if default is not None and key not in self:
            return default
        value = self.metadata.int(self.full(key))
        if not low <= value <= high:
            self.fail(key, value, f"must be {low} to {high}")
        return value

    def per_layer(
        self, key: str, n_layer: int, default: tuple[int, ...] | None = None
    ) -> tuple[int, ...]:
        """Return a count for each layer. The file has one number for all layers or an array."""
        # a default of zeros comes from a missing key, so it is no default
        if default is not None and all(default) and key not in self:
            return default
        if not isinstance(self.metadata.get(self.full(key)), Array):
            return (self.count(key),) * n_layer
        values = tuple(self.metadata.ints(self.full(key)))
        if len(values) < n_layer:
            self.fail(key, f"an array of {len(values)}", f"must have one for {n_layer} layers")
        for value in values[:n_layer]:
            if not 1 <= value <= MAX_COUNT:
                self.fail(key, list(values), f"all must be 1 to {MAX_COUNT}")
        return values[:n_layer]

    def positive(self, key: str, default: float | None = None) -> float:
        """Return a finite number above 0, or `default`, which is not checked."""
        if default is not None and key not in self:
            return default
        value = self.metadata.float(self.full(key))
        if not (math.isfinite(value) and value > 0):
            self.fail(key, value, "must be above 0 and finite")
        return value


def _head_dims(keys: _Keys, n_embd: int, n_head: int) -> tuple[int, int]:
    wanted = ("attention.key_length", "attention.value_length")
    if n_embd % n_head and not all(key in keys for key in wanted):
        keys.fail("embedding_length", n_embd, f"must be a multiple of the {n_head} heads")
    default = max(n_embd // n_head, 1)
    return keys.count(wanted[0], default), keys.count(wanted[1], default)


def _n_rot(keys: _Keys, head_dim: int) -> int:
    n_rot = keys.count("rope.dimension_count", head_dim)
    if n_rot % 2 or n_rot > head_dim:
        keys.fail(
            "rope.dimension_count", n_rot, f"must be even and at most the head size {head_dim}"
        )
    return n_rot


def _experts(keys: _Keys, moe: bool) -> tuple[int, int, int]:
    """Return n_expert, n_expert_used and n_ff_exp; the last is 0 if the file has no such key."""
    if not moe and "expert_count" not in keys:
        return 0, 0, 0
    n_expert = keys.count("expert_count", low=int(moe), high=MAX_EXPERTS)
    if n_expert == 0:
        return 0, 0, 0
    n_used = keys.count("expert_used_count", high=n_expert)
    return n_expert, n_used, keys.count("expert_feed_forward_length", 0)


def _n_vocab(keys: _Keys, file: GGUFFile) -> int:
    """Return the vocabulary's number of tokens, else `vocab_size`, else the embeddings' rows."""
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, Array) and len(tokens):
        return len(tokens)
    embeddings = file.tensors.get("token_embd.weight")
    n_rows = embeddings.ne[1] if embeddings is not None and len(embeddings.ne) > 1 else None
    return keys.count("vocab_size", n_rows)


def _rope(keys: _Keys) -> RopeScaling:
    """Return the scaling that llama.cpp applies (llama-model.cpp load_hparams, llama-context.cpp).

    Llama 3's scaling has no type of its own. Its files have the tensor rope_freqs.weight.
    """
    kind = keys.metadata.str(keys.full("rope.scaling.type"), "linear")
    if kind not in ("none", "linear", "yarn"):
        raise UnsupportedModelError(
            f"{keys.path}: {keys.full('rope.scaling.type')} {kind!r} is not supported, "
            "only: none, linear, yarn"
        )
    factor = _rope_factor(keys)
    if kind == "yarn" and factor < 1:
        keys.fail("rope.scaling.factor", factor, "YaRN extends a context: must be at least 1")
    freq_base = keys.positive("rope.freq_base", 10000.0)
    if freq_base <= 1:
        keys.fail("rope.freq_base", freq_base, "must be above 1")
    return RopeScaling(
        freq_base=freq_base,
        freq_scale=1.0 if kind == "none" else 1.0 / factor,
        ext_factor=_ext_factor(keys) if kind == "yarn" else 0.0,
        attn_factor=keys.positive("rope.scaling.attn_factor", 1.0),
        beta_fast=keys.positive("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=keys.positive("rope.scaling.yarn_beta_slow", 1.0),
        n_ctx_orig=keys.count("rope.scaling.original_context_length", keys.count("context_length")),
    )


def _ext_factor(keys: _Keys) -> float:
    """The share of YaRN's extrapolation. 0 is valid: positions are only interpolated."""
    key = "rope.scaling.yarn_ext_factor"
    if key in keys and keys.metadata.float(keys.full(key)) == 0.0:
        return 0.0
    return keys.positive(key, 1.0)


def _rope_factor(keys: _Keys) -> float:
    for key in ("rope.scaling.factor", "rope.scale_linear"):  # the second is the older name
        if key in keys and keys.metadata.float(keys.full(key)) != 0.0:  # 0 means no scaling
            return keys.positive(key)
    return 1.0
