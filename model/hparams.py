"""Hyperparameters that all architectures have, read from a GGUF file's metadata.

Keys are those of the GGUF specification, read as llama.cpp reads them (llama-model.cpp,
load_hparams). An architecture reads the keys that it alone has (model/arch/). Knows no tensors,
except to find the vocabulary size. Tested by tests/model/test_arch_hparams.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container
from dataclasses import dataclass, replace
from typing import Final

from ..base.errors import UnsupportedModelError
from .gguf import Array
from .keys import Keys
from .layer_memory import Index, Kind, LayerMemory, Window

# llama.cpp's LLAMA_MAX_LAYERS and LLAMA_MAX_EXPERTS; a file with more is broken
MAX_LAYERS: Final = 512
MAX_EXPERTS: Final = 512
TURNS_MIN, TURNS_MAX = 1e-30, 1e30  # the betas of YaRN


@dataclass(frozen=True, slots=True)
class Rope:
    """The arguments of `ops.rope` that map positions to angles.

    `ext_factor` is 1 for YaRN (arXiv 2309.00071) and 0 otherwise; `freq_scale` is 1 / factor. Only
    the first `n_dims` elements of a head are rotated.
    """

    n_dims: int
    freq_base: float = 10000.0
    freq_scale: float = 1.0
    ext_factor: float = 0.0
    attn_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    n_ctx_orig: int = 0

    def plain(self) -> Rope:
        """Return the same rotation without scaling to a longer context."""
        return replace(self, freq_scale=1.0, ext_factor=0.0, attn_factor=1.0)


@dataclass(frozen=True, slots=True)
class Layer:
    """The shape of one layer.

    Attributes:
        n_head, n_head_kv: heads of queries, and of keys and values; 0: a layer without attention,
            or with a matrix in its place.
        head_dim_k, head_dim_v: elements of a head of queries and keys, and of values.
        n_ff: width of the dense feed-forward part; 0: a layer without one.
        rope: its rotary embedding; None: it has none.
        window: the window of positions that its tokens see; None: they see all earlier ones.
        kv_layer: the layer whose keys and values it uses; None: its own.
        latent: values are the first elements of keys, and are not stored.
        states: elements of each state that it keeps of a sequence, such as a convolution's.
        index: its sparse indexer, see `LayerMemory`.
    """

    n_head: int
    n_head_kv: int
    head_dim_k: int
    head_dim_v: int
    n_ff: int
    rope: Rope | None
    window: Window | None = None
    kv_layer: int | None = None
    latent: bool = False
    states: tuple[int, ...] = ()
    index: Index | None = None

    @property
    def n_embd_k(self) -> int:
        """The number of elements of one token's keys."""
        return self.head_dim_k * self.n_head_kv

    @property
    def n_embd_v(self) -> int:
        """The number of elements of one token's values."""
        return self.head_dim_v * self.n_head_kv

    @property
    def memory(self) -> LayerMemory:
        """What the layer remembers of a sequence."""
        if self.kv_layer is not None:
            return LayerMemory(
                Kind.SHARED, self.n_embd_k, self.n_embd_v, self.window, self.kv_layer
            )
        if not self.n_head_kv:
            kind = Kind.STATE if self.states else Kind.NONE
            return LayerMemory(kind, states=self.states)
        if self.latent:
            n_embd_k = self.n_embd_k + (self.index.n_embd if self.index is not None else 0)
            return LayerMemory(
                Kind.LATENT, n_embd_k, self.n_embd_v, states=self.states, index=self.index
            )
        kind = Kind.FULL if self.window is None else Kind.WINDOW
        return LayerMemory(kind, self.n_embd_k, self.n_embd_v, self.window, states=self.states)


@dataclass(frozen=True, slots=True)
class HParams:
    """The shape of a model.

    Attributes:
        arch: the name of the architecture.
        n_ctx_train: the context that the model was trained with, in tokens.
        n_embd: elements of a token's row between layers.
        n_vocab: the number of tokens.
        eps: is added to the variances of norms.
        layers: the shape of each layer.
        n_expert, n_expert_used: experts of a layer, and those that a token uses; 0: there are none.
        n_ff_exp: the width of an expert.
        n_layer_nextn: further layers of the file, which predict more than the next token (arXiv
            2404.19737). The first may guess tokens, see `NextN`; otherwise they are not used.
        causal: a token sees no later ones.
    """

    arch: str
    n_ctx_train: int
    n_embd: int
    n_vocab: int
    eps: float
    layers: tuple[Layer, ...]
    n_expert: int = 0
    n_expert_used: int = 0
    n_ff_exp: int = 0
    n_layer_nextn: int = 0
    causal: bool = True

    @property
    def n_layer(self) -> int:
        return len(self.layers)

    @property
    def memory(self) -> tuple[LayerMemory, ...]:
        """What each layer remembers of a sequence."""
        return tuple(layer.memory for layer in self.layers)

    def with_layers(self, change: Callable[[int, Layer], Layer]) -> HParams:
        """Return the same shape with other layers; `change` gets each layer's index and shape."""
        return replace(self, layers=tuple(change(il, x) for il, x in enumerate(self.layers)))

    def with_rope_in(self, layers: Container[int]) -> HParams:
        """Return the same shape with rope in these layers only."""
        return self.with_layers(
            lambda il, layer: layer if il in layers else replace(layer, rope=None)
        )


def read_hparams(
    keys: Keys,
    eps_key: str,
    *,
    moe: bool = False,
    lacks_parts: bool = False,
    attends: bool = True,
) -> HParams:
    """Return the hyperparameters of a file.

    Args:
        keys: of the file.
        eps_key: the key of the norms' epsilon, without "attention.".
        moe: the file must have experts.
        lacks_parts: layers may lack attention or the feed-forward part.
        attends: layers have attention. If not, they have no feed-forward part either.

    Raises:
        ModelFileError: a key is missing, or has a wrong type or an invalid value.
        UnsupportedModelError: an unsupported rope scaling.
    """
    n_block = keys.count("block_count", high=MAX_LAYERS)
    n_nextn = keys.count("nextn_predict_layers", 0, low=0, high=n_block - 1)
    n_expert, n_expert_used, n_ff_exp = _experts(keys, moe)
    layers = (
        _layers(keys, n_block - n_nextn, n_ff_exp, lacks_parts)
        if attends
        else (_layers_without_attention(keys, n_block - n_nextn))
    )
    return HParams(
        arch=keys.arch,
        n_ctx_train=keys.count("context_length"),
        n_embd=keys.count("embedding_length"),
        n_vocab=_n_vocab(keys),
        eps=keys.positive(f"attention.{eps_key}"),
        layers=layers,
        n_expert=n_expert,
        n_expert_used=n_expert_used,
        # Mixtral has only feed_forward_length
        n_ff_exp=n_ff_exp or (layers[0].n_ff if n_expert else 0),
        n_layer_nextn=n_nextn,
        causal=keys.flag("attention.causal", True),
    )


def _layers(keys: Keys, n_layer: int, n_ff_exp: int, lacks_parts: bool) -> tuple[Layer, ...]:
    low = 0 if lacks_parts else 1
    n_embd = keys.count("embedding_length")
    n_head = keys.per_layer("attention.head_count", n_layer, low=low)
    n_head_kv = keys.per_layer("attention.head_count_kv", n_layer, n_head, low=low)
    for n, n_kv in zip(n_head, n_head_kv, strict=True):
        if n and (n % n_kv if n_kv else not lacks_parts):
            keys.fail("attention.head_count_kv", n_kv, f"must divide the {n} heads")
    if not any(n_head):
        keys.fail("attention.head_count", 0, "a layer must have heads")
    head_dim_k, head_dim_v = _head_dims(keys, n_embd, max(n_head))
    n_ff = keys.per_layer("feed_forward_length", n_layer, (n_ff_exp,) * n_layer, low=low)
    rope = read_rope(keys, head_dim_k)
    return tuple(
        Layer(n, n_kv, head_dim_k, head_dim_v, width, rope)
        for n, n_kv, width in zip(n_head, n_head_kv, n_ff, strict=True)
    )


def _layers_without_attention(keys: Keys, n_layer: int) -> tuple[Layer, ...]:
    for key in ("attention.head_count", "attention.head_count_kv", "feed_forward_length"):
        keys.count(key, 0, low=0, high=0)
    return (Layer(0, 0, 0, 0, 0, None),) * n_layer


# --- windows ---


def with_windows(
    keys: Keys,
    hp: HParams,
    period: int = 0,
    *,
    n_swa: int = 0,
    chunked: bool = False,
    symmetric: bool = False,
    full_first: bool = False,
    full_rope: bool = True,
    rope: Callable[[Rope], Rope] = lambda rope: rope,
) -> HParams:
    """Return the same shape with the file's windows, and with the sizes and rope of such layers.

    Sizes and rope are those of the other layers, except for the file's keys that end in `_swa`.

    Args:
        keys: of the file. `attention.sliding_window_pattern` is a flag for each layer, or a period:
            the last layer of each period has no window.
        hp: the shape without windows.
        period: of files without that key; 0: all layers have windows.
        n_swa: the size of the window of files that have no key for it; 0: no layer has a window.
        chunked, symmetric: see `Window`.
        full_first: the first layer of a period has no window, not the last.
        full_rope: if False, the other layers of a file with windows have no rope.
        rope: changes the rotation of layers with a window.
    """
    window = Window(keys.count("attention.sliding_window", n_swa, low=0), chunked, symmetric)
    if window.n_swa == 0:
        return hp
    pattern = "attention.sliding_window_pattern"
    if keys.is_array(pattern):
        has_window = keys.flags(pattern, hp.n_layer)
    else:
        every = keys.count(pattern, period, low=0)
        full = 0 if full_first else every - 1
        has_window = tuple(not every or il % every != full for il in range(hp.n_layer))
    if not full_rope:
        hp = hp.with_rope_in([il for il, has in enumerate(has_window) if has])
    return hp.with_layers(
        lambda il, layer: _with_window(keys, layer, window, rope) if has_window[il] else layer
    )


def _with_window(keys: Keys, layer: Layer, window: Window, change: Callable[[Rope], Rope]) -> Layer:
    head_dim, rope = keys.count("attention.key_length_swa", layer.head_dim_k), layer.rope
    if rope is not None:
        rope = change(rope)
        rope = replace(
            rope,
            n_dims=read_n_rot(keys, "rope.dimension_count_swa", head_dim, rope.n_dims),
            freq_base=_freq_base(keys, "rope.freq_base_swa", rope.freq_base),
        )
    return replace(
        layer,
        head_dim_k=head_dim,
        head_dim_v=keys.count("attention.value_length_swa", layer.head_dim_v),
        rope=rope,
        window=window,
    )


def _head_dims(keys: Keys, n_embd: int, n_head: int) -> tuple[int, int]:
    wanted = ("attention.key_length", "attention.value_length")
    if n_embd % n_head and not all(key in keys for key in wanted):
        keys.fail("embedding_length", n_embd, f"must be a multiple of the {n_head} heads")
    default = max(n_embd // n_head, 1)
    return keys.count(wanted[0], default), keys.count(wanted[1], default)


def _experts(keys: Keys, moe: bool) -> tuple[int, int, int]:
    """Return n_expert, n_expert_used and n_ff_exp; the last is 0 if the file has no such key."""
    if not moe and "expert_count" not in keys:
        return 0, 0, 0
    n_expert = keys.count("expert_count", low=int(moe), high=MAX_EXPERTS)
    if n_expert == 0:
        return 0, 0, 0
    n_used = keys.count("expert_used_count", high=n_expert)
    return n_expert, n_used, keys.count("expert_feed_forward_length", 0)


def _n_vocab(keys: Keys) -> int:
    """Return the vocabulary's number of tokens, else `vocab_size`, else the embeddings' rows."""
    tokens = keys.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, Array) and len(tokens):
        return len(tokens)
    embeddings = keys.file.tensors.get("token_embd.weight")
    n_rows = embeddings.ne[1] if embeddings is not None and len(embeddings.ne) > 1 else None
    return keys.count("vocab_size", n_rows)


# --- rotary embedding ---


def read_rope(keys: Keys, head_dim: int) -> Rope:
    """Return the scaling that llama.cpp applies (llama-model.cpp load_hparams, llama-context.cpp).

    Llama 3's scaling has no type of its own. Its files have the tensor rope_freqs.weight. Nor has
    the scaling of files with long and short factors (arXiv 2402.13753).
    """
    kind = keys.text("rope.scaling.type", "linear")
    if kind not in ("none", "linear", "yarn", "longrope"):
        raise UnsupportedModelError(
            f"{keys.path}: {keys.full('rope.scaling.type')} {kind!r} is not supported, "
            "only: none, linear, yarn, longrope"
        )
    factor = _rope_factor(keys)
    if kind == "yarn" and factor < 1:
        keys.fail("rope.scaling.factor", factor, "YaRN extends a context: must be at least 1")
    ext_factor, attn_factor = _yarn(keys, factor) if kind == "yarn" else (0.0, 1.0)
    return Rope(
        n_dims=read_n_rot(keys, "rope.dimension_count", head_dim),
        freq_base=_freq_base(keys, "rope.freq_base", 10000.0),
        freq_scale=1.0 / factor if kind in ("linear", "yarn") else 1.0,
        ext_factor=ext_factor,
        attn_factor=attn_factor * keys.positive("rope.scaling.attn_factor", 1.0),
        beta_fast=_n_turns(keys, "rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=_n_turns(keys, "rope.scaling.yarn_beta_slow", 1.0),
        n_ctx_orig=keys.count("rope.scaling.original_context_length", keys.count("context_length")),
    )


def _freq_base(keys: Keys, key: str, default: float) -> float:
    freq_base = keys.positive(key, default)
    if freq_base <= 1:
        keys.fail(key, freq_base, "must be above 1")
    return freq_base


def _n_turns(keys: Keys, key: str, default: float) -> float:
    value = keys.positive(key, default)
    if not TURNS_MIN <= value <= TURNS_MAX:
        keys.fail(key, value, f"must be {TURNS_MIN} to {TURNS_MAX}")
    return value


def read_n_rot(keys: Keys, key: str, head_dim: int, default: int | None = None) -> int:
    """Return the number of a head's elements that are rotated, all by default."""
    n_rot = keys.count(key, min(default or head_dim, head_dim))
    if n_rot % 2 or n_rot > head_dim:
        keys.fail(key, n_rot, f"must be even and at most the head size {head_dim}, its default")
    return n_rot


def _yarn(keys: Keys, factor: float) -> tuple[float, float]:
    """Return ext_factor and attn_factor of YaRN (arXiv 2309.00071), see `ops.rope`.

    The op multiplies queries and keys by 1 + 0.1 ln(factor). A file may have another value, as
    `yarn_attn_factor`, or as a multiplier m that divides it by 1 + 0.1 m ln(factor) (DeepSeek,
    Mistral). `yarn_ext_factor` may be 0: positions are only interpolated, and the op does not
    multiply.
    """
    ext = keys.number("rope.scaling.yarn_ext_factor", 1.0)
    if ext < 0:
        keys.fail("rope.scaling.yarn_ext_factor", ext, "must be at least 0")
    own = 1.0 + 0.1 * math.log(factor) if ext else 1.0
    multiplier = keys.number("rope.scaling.yarn_log_multiplier", 0.0)
    if multiplier < 0:
        keys.fail("rope.scaling.yarn_log_multiplier", multiplier, "must be at least 0")
    if "rope.scaling.yarn_attn_factor" in keys:
        return ext, keys.positive("rope.scaling.yarn_attn_factor") / own
    return ext, 1.0 / (1.0 + 0.1 * multiplier * math.log(factor)) if ext else 1.0


def _rope_factor(keys: Keys) -> float:
    for key in ("rope.scaling.factor", "rope.scale_linear"):  # the second is the older name
        if keys.factor(key, 1.0) != 1.0:
            return keys.factor(key, 1.0)
    return 1.0
