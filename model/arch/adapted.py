"""LoRA adapters in a model's graph: low-rank products that are added to those of weights.

The adapters of a weight are side by side in one pair of matrices. Each token has a scale for each
part of them, 0 for adapters that it does not use. Knows no files and no memory.
Tested by tests/model/test_adapters_archs.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ...graph import Op, Tensor, ops


class AdapterWeights(NamedTuple):
    """The adapters of one matrix [n_in, n_out], in the order of their numbers.

    A row belongs to a part: an adapter and a factor of its products. Of the embedding, `a` has a
    row for each token, and `parts` is F32 [n_parts, rank]: 1 at the part of each row.
    """

    a: Tensor  # F32 [n_in, rank]; of the embedding [rank, n_vocab]
    b: Tensor  # F32 [n_out, rank]
    parts: Tensor  # I32 [rank]


class Adapted:
    """Adds the products of adapters to a graph."""

    def __init__(
        self, weights: Mapping[str, AdapterWeights], scales: Tensor, out_ids: Tensor
    ) -> None:
        """
        Args:
            weights: the adapters by the name of the weight that they change.
            scales: F32 [n_parts, n_tokens], the scales of each token.
            out_ids: I32 [n_outputs], the tokens that become outputs.
        """
        self._weights = weights
        self._scales = scales
        self._out_ids = out_ids
        self._of_outputs: Tensor | None = None
        self._whole = set[Tensor]()  # tensors that do not depend on a choice of outputs

    def add(self, y: Tensor, x: Tensor, name: str) -> Tensor:
        """Return y [n_out, n], the product of weight `name` and x [n_in, n], with its adapters'."""
        found = self._weights.get(name)
        if found is None:
            return y
        z = ops.lora_a(found.a, x, self._scales_of(x), found.parts).named(f"{name}.lora_a")
        return ops.lora_b(y, found.b, z).named(f"{name}.lora_b")

    def add_embedding(self, y: Tensor, tokens: Tensor, name: str) -> Tensor:
        """Return embeddings y [n_embd, n_tokens] of the table `name`, with its adapters'."""
        found = self._weights.get(name)
        if found is None:
            return y
        scales = ops.mul_mat(found.parts, self._scales)  # [rank, n_tokens]
        z = ops.mul(ops.get_rows(found.a, tokens), scales).named(f"{name}.lora_a")
        return ops.lora_b(y, found.b, z).named(f"{name}.lora_b")

    def _scales_of(self, x: Tensor) -> Tensor:
        """Return the scales of the rows of x: those of all tokens, or of the outputs."""
        if not self._is_of_outputs(x):
            return self._scales
        if self._of_outputs is None:
            self._of_outputs = ops.get_rows(self._scales, self._out_ids)
        return self._of_outputs

    def _is_of_outputs(self, x: Tensor) -> bool:
        """True if x depends on a choice of outputs; there may be as many outputs as tokens."""
        seen, rest = set[Tensor](), [x]
        while rest:
            t = rest.pop()
            if t.op is Op.GET_ROWS and t.src[1] is self._out_ids:
                return True
            if t not in self._whole and t not in seen:
                seen.add(t)
                rest += t.src
        self._whole |= seen
        return False
