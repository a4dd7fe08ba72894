"""The interface of an architecture, and the decoder shared by llama and its relatives.

Knows no devices and no memory. Tested by tests/model/test_arch_forward.py and
tests/model/test_arch_weights.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt

from ...base.errors import GraphError, ModelFileError
from ...graph import GGMLType, RopeMode, Tensor
from ..hparams import HParams, read_hparams
from ..keys import Keys
from .build import GraphBuild, LayerBuild, Norm
from .experts import Router, moe
from .inputs import GraphInputs, KVLayer
from .weights import Bias, DeclaredWeights, LoadedWeights, WeightSpec

F32Array = npt.NDArray[np.float32]

PAGE_SIZE: Final = 1  # of the graph that declares weights


@dataclass(frozen=True, slots=True)
class Temperature:
    """A factor of queries that grows with their position, for long contexts (Llama 4).

    It is 1 + scale * ln(1 + floor((pos + offset) / length)).
    """

    scale: float
    length: int
    offset: int = 0

    def of(self, pos: npt.NDArray[np.int32]) -> F32Array:
        """Return the factors of positions [n], [n]."""
        turns = np.log1p(np.floor((pos + self.offset) / self.length))
        factors: F32Array = (1.0 + self.scale * turns).astype(np.float32)
        return factors


class Architecture(ABC):
    """An architecture with the hyperparameters of one model.

    Attributes:
        name: its `general.architecture` in GGUF files.
        norm: the norm of its layers.
        hp: the model's shape. A subclass reads the keys that it alone has into attributes.
        temperature: a factor of queries by position; None: there is none.
    """

    name: ClassVar[str]
    norm: ClassVar[Norm] = Norm.RMS
    needs_experts: ClassVar[bool] = False
    lacks_parts: ClassVar[bool] = False  # layers may lack attention or the feed-forward part

    def __init__(self, keys: Keys) -> None:
        """Read the hyperparameters. Raises the errors of `read_hparams`."""
        eps = "layer_norm_rms_epsilon" if self.norm is Norm.RMS else "layer_norm_epsilon"
        self.path = keys.path
        self.hp: HParams = read_hparams(
            keys, eps, moe=self.needs_experts, lacks_parts=self.lacks_parts
        )
        self.temperature: Temperature | None = None

    @abstractmethod
    def forward(self, g: GraphBuild) -> Tensor:
        """Build the graph of a step. Return its logits [n_vocab, n_outputs], flagged as output."""

    def build(
        self,
        weights: Mapping[str, Tensor],
        inputs: GraphInputs,
        kv: Sequence[KVLayer | None],
        *,
        page_size: int,
        n_ctx: int,
    ) -> Tensor:
        """Build the graph of a step with a model's weights, see `GraphBuild`."""
        loaded = LoadedWeights(weights)
        return self.forward(GraphBuild(self.hp, loaded, inputs, kv, page_size, n_ctx, self.norm))

    def weights(self) -> list[WeightSpec]:
        """Return all weights, optional ones included: those that `forward` uses.

        Raises:
            ModelFileError: the hyperparameters do not fit together.
        """
        declared, memory = DeclaredWeights(), self.hp.memory
        inputs = GraphInputs.new(2, 1, 1, 1, memory)
        kv = [
            KVLayer(*(Tensor(GGMLType.F32, (n, PAGE_SIZE)) for n in (m.n_embd_k, m.n_embd_v)))
            for m in memory
        ]
        try:
            self.forward(GraphBuild(self.hp, declared, inputs, kv, PAGE_SIZE, 1, self.norm))
        except GraphError as e:
            raise ModelFileError(
                f"{self.path}: the hyperparameters do not fit together: {e}"
            ) from None
        return list(declared.specs.values())

    def max_default_ctx(self) -> int | None:
        """Return the largest context that may be chosen without the user; None: no limit.

        A larger one changes the model's results.
        """
        return None

    def describe(self, n_ctx: int) -> str:
        """Return a line about how a context of this size is computed; "" if there is no choice."""
        return ""


class Decoder(Architecture):
    """Norm, attention, norm, feed-forward: Llama (arXiv 2302.13971) and its relatives.

    A subclass replaces the parts in which it differs.
    """

    rope_mode: ClassVar[RopeMode] = RopeMode.NEOX
    qkv_bias: ClassVar[Bias] = Bias.NONE
    bias: ClassVar[Bias] = Bias.NONE  # of the attention's output and of the feed-forward matrices
    output_bias: ClassVar[Bias] = Bias.NONE
    router: Router = Router()

    def forward(self, g: GraphBuild) -> Tensor:
        x = self.embed(g)
        for il in range(self.hp.n_layer):
            x = self.layer(g.layer(il), x)
        return self.logits(g, x)

    def embed(self, g: GraphBuild) -> Tensor:
        """Return the first layer's input, [n_embd, n_tokens]."""
        return g.embed()

    def layer(self, b: LayerBuild, x: Tensor) -> Tensor:
        """Return a layer's output of its input x. The last layer's has the outputs' rows only."""
        y = self.attention(b, b.norm(x, "attn_norm"))
        y, x = b.outputs(y, x)
        x = b.add(y, x, "ffn_inp")
        return b.add(self.ffn(b, b.norm(x, "ffn_norm")), x, "l_out")

    def attention(self, b: LayerBuild, x: Tensor) -> Tensor:
        """Return the attention of a layer's tokens x [n_embd, n_tokens], projected."""
        q, k, v = b.qkv(x, self.qkv_bias)
        q, k = self.rotated(b, q, k)
        return self.project(b, b.attend(q, k, v))

    def rotated(self, b: LayerBuild, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries and keys [head_dim, n_head, n_tokens] of rows [n, n_tokens]."""
        return self.rope(b, b.heads(q), "Qcur"), self.rope(b, b.heads(k), "Kcur")

    def rope(self, b: LayerBuild, x: Tensor, name: str) -> Tensor:
        """Return heads x with their positions."""
        return b.rope(x, name, self.rope_mode)

    def project(self, b: LayerBuild, x: Tensor) -> Tensor:
        """Return the product of attention's result with its output matrix, [n_embd, n_tokens]."""
        return b.named(b.linear(x, "attn_output", self.hp.n_embd, self.bias), "attn_out")

    def ffn(self, b: LayerBuild, x: Tensor) -> Tensor:
        """Return the feed-forward part of x [n_embd, n_tokens]."""
        if self.hp.n_expert:
            return moe(b, x, self.router)
        return b.gated(x, b.shape.n_ff, bias=self.bias)

    def logits(self, g: GraphBuild, x: Tensor) -> Tensor:
        """Return the logits of the last layer's output x [n_embd, n_outputs]."""
        return g.logits(x, self.output_bias)


class QKNorm(Decoder):
    """A decoder that normalizes each head's queries and keys before their rotation."""

    def rotated(self, b: LayerBuild, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        q, k = b.norm(b.heads(q), "attn_q_norm"), b.norm(b.heads(k), "attn_k_norm")
        return self.rope(b, q, "Qcur"), self.rope(b, k, "Kcur")
