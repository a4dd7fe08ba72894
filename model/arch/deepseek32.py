"""deepseek32: DeepSeek V3.2. DeepSeek V3 with sparse attention.

glm-dsa: GLM 5. Some of its layers attend to the positions that an earlier one chose.

Tested by tests/model/test_arch_sparse.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Final

from ...graph import Op, RopeMode, Tensor, ops
from ..keys import Keys
from ..layer_memory import Index
from .deepseek2 import DeepSeek2
from .experts import Experts, Gating, read_experts
from .layer_build import LayerBuild

NORM_EPS: Final = 1e-6  # of the indexer's keys, if the file has no key for it


@dataclass(frozen=True, slots=True)
class Indexer:
    """Rates the positions that a token sees (DeepSeek Sparse Attention, the lightning indexer).

    Attributes:
        n_head, size: its heads, and their elements. They have one key.
        top_k: the positions that a token attends to.
        eps: of the norm of keys.
        rope_mode: of the first elements of queries and keys.
    """

    n_head: int
    size: int
    top_k: int
    eps: float
    rope_mode: RopeMode

    def keys(self, b: LayerBuild, x: Tensor) -> Tensor:
        """Return the keys of x [n_embd, n_tokens], [size, 1, n_tokens]."""
        k = ops.norm(b.linear(x, "indexer.attn_k", self.size), self.eps)
        k = ops.mul(k, b.required("indexer.k_norm.weight", (self.size,)))
        k = ops.add(k, b.required("indexer.k_norm.bias", (self.size,), Op.ADD))
        return b.rope(b.heads(k, self.size), "indexer_k", self.rope_mode)

    def choose(self, b: LayerBuild, x: Tensor, q_rows: Tensor) -> Tensor:
        """Return the cells that tokens attend to. Keys are written; queries are made of `q_rows`.

        Constant factors of scores are left out, as they do not change the choice.
        """
        q = b.heads(b.linear(q_rows, "indexer.attn_q_b", self.n_head * self.size), self.size)
        q = b.rope(q, "indexer_q", self.rope_mode)
        return b.choose(q, b.linear(x, "indexer.proj", self.n_head), self.top_k)


class DeepSeek32(DeepSeek2):
    """https://huggingface.co/deepseek-ai/DeepSeek-V3.2-Exp

    Attributes:
        indexer: of layers that choose positions.
    """

    name = "deepseek32"
    indexer_rope: ClassVar[RopeMode] = RopeMode.NEOX

    def check(self, keys: Keys) -> None:
        self.require_absorbed(keys)
        super().check(keys)
        if not self.q_lora_rank:
            keys.fail("attention.q_lora_rank", 0, "must be above 0")
        self.indexer = Indexer(
            keys.count("attention.indexer.head_count"),
            keys.count("attention.indexer.key_length", low=self.n_rot),
            keys.count("attention.indexer.top_k"),
            keys.positive("attention.layer_norm_epsilon", NORM_EPS),
            self.indexer_rope,
        )
        index = Index(self.indexer.size, self.indexer.top_k)
        layers = self.with_indexer(keys)
        self.hp = self.hp.with_layers(
            lambda il, layer: replace(layer, index=index) if il in layers else layer
        )

    def with_indexer(self, keys: Keys) -> set[int]:
        """Return the layers that choose positions."""
        return set(range(self.hp.n_layer))

    def attend_rows(
        self, b: LayerBuild, q: Tensor, row: Tensor, x: Tensor, q_rows: Tensor
    ) -> Tensor:
        if b.shape.index is None:
            b.store(row, None)
            b.g.chosen[b.il] = b.g.chosen[b.il - 1]
        else:
            b.store(ops.concat(row, self.indexer.keys(b, x), 0), None)
            b.g.chosen[b.il] = self.indexer.choose(b, x, q_rows)
        return b.attend(q, None, None, scale=self.scale, chosen=b.g.chosen[b.il])


class GlmDSA(DeepSeek32):
    """https://huggingface.co/zai-org/GLM-5"""

    name = "glm-dsa"
    indexer_rope = RopeMode.NORMAL

    def _read_experts(self, keys: Keys) -> Experts:
        return read_experts(keys, self.hp, Gating.SIGMOID)

    def with_indexer(self, keys: Keys) -> set[int]:
        """Return the layers that choose positions: those with the tensors of an indexer.

        Others have none in files, beside the key `attention.indexer.types`.
        """
        names = (f"blk.{il}.indexer.attn_k.weight" for il in range(self.hp.n_layer))
        found = {il for il, name in enumerate(names) if name in keys.file.tensors}
        return found | {0}
