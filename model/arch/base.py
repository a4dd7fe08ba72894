"""The interface of an architecture: its hyperparameters, its weights, its graph.

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
from ...graph import GGMLType, Tensor
from ..hparams import HParams, read_hparams
from ..keys import Keys
from .build import GraphBuild, Norm
from .inputs import GraphInputs, KVLayer
from .weights import DeclaredWeights, LoadedWeights, WeightSpec

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
        needs_experts: a file without experts is invalid.
        lacks_parts: layers may lack attention or the feed-forward part.
        path: the model's file, for messages.
        hp: the model's shape. A subclass reads the keys that it alone has into attributes.
        temperature: a factor of queries by position; None: there is none.
    """

    name: ClassVar[str]
    norm: Norm = Norm.RMS
    needs_experts: ClassVar[bool] = False
    lacks_parts: ClassVar[bool] = False

    def __init__(self, keys: Keys) -> None:
        """Read the hyperparameters. Raises the errors of `read_hparams`."""
        eps = "layer_norm_rms_epsilon" if self.norm is Norm.RMS else "layer_norm_epsilon"
        self.path = keys.path
        self.hp: HParams = read_hparams(
            keys, eps, moe=self.needs_experts, lacks_parts=self.lacks_parts
        )
        self.temperature: Temperature | None = None
        self._keys = keys

    def ignores(self, tensor: str) -> bool:
        """True if the model does not use this tensor of its file.

        These are the layers of `n_layer_nextn`, factors of quantized activations, and factors of
        frequencies if no layer has rope.
        """
        if tensor == "rope_freqs.weight":
            return all(layer.rope is None for layer in self.hp.layers)
        n_layer = self.hp.n_layer
        unused = range(n_layer, n_layer + self.hp.n_layer_nextn)
        in_unused = any(tensor.startswith(f"blk.{il}.") for il in unused)
        return in_unused or tensor.endswith(".input_scale")

    @abstractmethod
    def forward(self, g: GraphBuild) -> Tensor:
        """Build the graph of a step. Return its logits, [n_vocab, n_outputs]."""

    def build(
        self,
        weights: Mapping[str, Tensor],
        inputs: GraphInputs,
        kv: Sequence[KVLayer | None],
        *,
        page_size: int,
        n_ctx: int,
    ) -> Tensor:
        """Build the graph of a step with a model's weights, see `GraphBuild`.

        Return its logits [n_vocab, n_outputs], flagged as output.
        """
        g = GraphBuild(self.hp, LoadedWeights(weights), inputs, kv, page_size, n_ctx, self.norm)
        return self.forward(g).named("result_output").set_output()

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

    def max_ctx(self) -> int | None:
        """Return the most positions of a sequence: the model has embeddings of so many.

        None: there is no limit.
        """
        return None

    def describe(self, n_ctx: int) -> str:
        """Return what this size of the context changes in the computation; "" if nothing."""
        return ""

    def notes(self, n_ctx: int) -> list[str]:
        """Return lines that warn people of how a context of this size is computed."""
        notes, most, unread = [], self.max_ctx(), self._keys.unread()
        if most is not None and n_ctx > most:
            notes.append(f"a request has at most {most} tokens: the model has so many positions")
        if unread:
            notes.append(
                f"nothing reads these keys of the file: {', '.join(unread)}; if they change how "
                "the model computes, its texts are wrong"
            )
        return notes
