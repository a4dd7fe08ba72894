"""What Gemma 3n and Gemma 4 share: inputs of each layer, and layers without own keys and values.

Tested by tests/model/test_arch_golden.py.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from ...graph import Op, Tensor, ops
from ..hparams import HParams, Layer, with_windows
from ..keys import Keys
from .build import GraphBuild
from .gemma import Gemma, local_rope
from .layer_build import LayerBuild

UNSHARED: Final = ("attn_k.weight", "attn_v.weight", "attn_k_norm.weight")


class PerLayer(Gemma):
    """A Gemma whose tokens have a small embedding for each layer.

    Attributes:
        n_input: elements of a layer's input; 0: layers have none.
    """

    default_cap = 30.0

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self.scale = 1.0

    def read_layers(self, keys: Keys, *, period: int, n_shared: int, n_input: int) -> None:
        """Read the windows, and what the layers share and get. Numbers are defaults of keys."""
        n_layer = self.hp.n_layer
        hp = with_windows(keys, self.hp, period, rope=local_rope)
        n = keys.count("attention.shared_kv_layers", n_shared, low=0, high=n_layer - 1)
        self.hp = _with_shared_kv(keys, hp, n_layer - n)
        self.n_input = keys.count("embedding_length_per_layer_input", n_input, low=0)

    def ignores(self, tensor: str) -> bool:
        """True also for keys and values of a layer that does not use its own."""
        unused = (il for il, layer in enumerate(self.hp.layers) if layer.kv_layer is not None)
        names = (f"blk.{il}.{name}" for il in unused for name in UNSHARED)
        return tensor in names or super().ignores(tensor)

    # --- attention ---

    def attention(self, b: LayerBuild, x: Tensor) -> Tensor:
        q = self.rope(b, b.norm(b.heads(b.one_of_qkv(x, "q")), "attn_q_norm"), "Qcur")
        if b.shape.kv_layer is not None:
            return self.project(b, b.attend(q, None, None, scale=self.scale))
        k, v = self.keys_values(b, x)
        k = self.rope(b, b.norm(k, "attn_k_norm"), "Kcur")
        v = b.named(b.g.normed(v), "Vcur")
        return self.project(b, b.attend(q, k, v, scale=self.scale))

    def keys_values(self, b: LayerBuild, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values before their norms, [head_dim, n_head_kv, n_tokens]."""
        return b.heads(b.one_of_qkv(x, "k")), b.heads(b.one_of_qkv(x, "v"), b.shape.head_dim_v)

    # --- inputs of layers ---

    def inputs(self, g: GraphBuild, x: Tensor) -> Tensor:
        """Return the layers' inputs [n_input, n_layer, n_tokens], from the first input x."""
        n, n_layer = self.n_input, self.hp.n_layer
        ne = (n, n_layer, g.n_tokens)
        table = g.required(
            "per_layer_token_embd.weight", (n * n_layer, self.hp.n_vocab), None, Op.GET_ROWS
        )
        own = ops.scale(ops.get_rows(table, g.inputs.tokens), math.sqrt(n))
        y = ops.scale(g.linear(x, "per_layer_model_proj", n * n_layer, 0), self.hp.n_embd**-0.5)
        y = g.norm(ops.reshape(y, ne), "per_layer_proj_norm", 0)
        return ops.scale(ops.add(y, ops.reshape(own, ne)), 2**-0.5).named("inp_per_layer")

    def input_of(self, b: LayerBuild, inputs: Tensor) -> Tensor:
        """Return a layer's input, [n_input, n_tokens]; in the last layer, the outputs' rows."""
        ne, nb = inputs.ne, inputs.nb
        (own,) = b.outputs(ops.view(inputs, (ne[0], ne[2]), (nb[0], nb[2]), b.il * nb[1]))
        return own

    def gated_input(self, b: LayerBuild, x: Tensor, own: Tensor) -> Tensor:
        """Return what a layer's input adds to x, [n_embd, n_tokens]."""
        gate = ops.gelu(b.linear(x, "inp_gate", self.n_input))
        return b.norm(b.linear(ops.mul(gate, own), "proj", self.hp.n_embd), "post_norm")


def _with_shared_kv(keys: Keys, hp: HParams, first: int) -> HParams:
    """From layer `first` on, use the keys and values of the last earlier layer of equal window."""

    def change(il: int, layer: Layer) -> Layer:
        if il < first:
            return layer
        same = [i for i in range(first) if hp.layers[i].window == layer.window]
        if not same:
            n = hp.n_layer - first
            keys.fail("attention.shared_kv_layers", n, f"no earlier layer is like layer {il}")
        return replace(layer, kv_layer=same[-1], n_head_kv=hp.layers[same[-1]].n_head_kv)

    return hp.with_layers(change)
