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
from ..pooling import Pooling
from .adapted import Adapted, AdapterWeights
from .build import GraphBuild, Norm
from .classifier import classify, read_labels, read_pooling
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


def read_temperature(keys: Keys, hp: HParams) -> Temperature | None:
    """Return the factor of queries that a file has, as those of Mistral 3."""
    scale = keys.number("attention.temperature_scale", 0.0)
    if not scale:
        return None
    n_ctx_orig = keys.count("rope.scaling.original_context_length", hp.n_ctx_train)
    return Temperature(scale, keys.count("attention.temperature_length", n_ctx_orig))


class Architecture(ABC):
    """An architecture with the hyperparameters of one model.

    Attributes:
        name: its `general.architecture` in GGUF files.
        norm: the norm of its layers.
        needs_experts: a file without experts is invalid.
        lacks_parts: layers may lack attention or the feed-forward part.
        attends: layers have attention.
        path: the model's file, for messages.
        hp: the model's shape. A subclass reads the keys that it alone has into attributes.
        temperature: a factor of queries by position; None: there is none.
        has_output: it has an output matrix, so that it can generate text.
        pooling: how the file makes a text's vector of its tokens' rows; None: it does not say.
        labels: the names of a classifier's scores.
    """

    name: ClassVar[str]
    has_output: ClassVar[bool] = True
    norm: Norm = Norm.RMS
    needs_experts: ClassVar[bool] = False
    lacks_parts: ClassVar[bool] = False
    attends: ClassVar[bool] = True

    def __init__(self, keys: Keys) -> None:
        """Read the hyperparameters. Raises the errors of `read_hparams`."""
        eps = "layer_norm_rms_epsilon" if self.norm is Norm.RMS else "layer_norm_epsilon"
        if f"attention.{eps}" not in keys and "attention.layer_norm_epsilon" in keys:
            eps = "layer_norm_epsilon"  # some converters write one key for both norms
        self.path = keys.path
        self.hp: HParams = read_hparams(
            keys,
            eps,
            moe=self.needs_experts,
            lacks_parts=self.lacks_parts,
            attends=self.attends,
        )
        self.temperature: Temperature | None = None
        self.pooling = read_pooling(keys)
        self._classifier_pooling = read_pooling(keys, "classifier.pooling_type")
        self.labels = read_labels(keys)
        self._keys = keys

    @property
    def generates(self) -> bool:
        """True if the model can generate text; else it computes embeddings only."""
        return self.has_output and self.hp.causal

    @property
    def n_hidden(self) -> int:
        """The elements of the hidden states that the graph reads, see `NextN`; 0: it reads none."""
        return 0

    @property
    def classifier_pooling(self) -> Pooling:
        """The pooling that makes the row which a classifier reads.

        By default, this is the row of the token that sees all others.
        """
        return self._classifier_pooling or (Pooling.LAST if self.hp.causal else Pooling.CLS)

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
        """Build the graph of a step. Return its logits, [n_vocab, n_outputs].

        An encoder has none, and returns its last layer's output, [n_embd, n_outputs].
        """

    def head(self, g: GraphBuild, x: Tensor, pooling: Pooling) -> Tensor:
        """Return the vectors or scores [n, n_texts] of pooled rows x [n_embd, n_texts].

        They are x itself, or the classifier's scores for `Pooling.RANK`.
        """
        return classify(g, x, len(self.labels)) if pooling is Pooling.RANK else x

    def build(
        self,
        weights: Mapping[str, Tensor],
        inputs: GraphInputs,
        kv: Sequence[KVLayer | None],
        *,
        page_size: int,
        n_ctx: int,
        adapters: Mapping[str, AdapterWeights] | None = None,
        control: Mapping[int, Tensor] | None = None,
        states: Mapping[int, Sequence[Tensor]] | None = None,
        hidden: list[Tensor] | None = None,
    ) -> Tensor:
        """Build the graph of a step with a model's weights, see `GraphBuild`.

        If the inputs have scales of LoRA adapters, those of `adapters` are added to the weights of
        these names. `control` are the directions of control vectors by layer. The tensor of the
        tokens' hidden states [n_embd, n_tokens] is added to the list `hidden`, if there is one.

        Return its logits [n_vocab, n_outputs], flagged as output.
        """
        scales = inputs.lora_scales
        adapted = None if scales is None else Adapted(adapters or {}, scales, inputs.out_ids)
        found = LoadedWeights(weights)
        g = GraphBuild(
            self.hp,
            found,
            inputs,
            kv,
            page_size,
            n_ctx,
            self.norm,
            adapted,
            control or {},
            states or {},
            hidden=hidden,
        )
        return self.forward(g).named("result_output").set_output()

    def build_embeddings(
        self,
        weights: Mapping[str, Tensor],
        inputs: GraphInputs,
        kv: Sequence[KVLayer | None],
        *,
        page_size: int,
        n_ctx: int,
    ) -> Tensor:
        """Build the graph of a step as `build` does, without the output matrix.

        Return the last layer's normalized output [n_embd, n_outputs], flagged as output.
        """
        g = GraphBuild(self.hp, LoadedWeights(weights), inputs, kv, page_size, n_ctx, self.norm)
        y = self.forward(g)
        return (g.embeddings[0] if g.embeddings else y).named("result_embd").set_output()

    def build_head(
        self, weights: Mapping[str, Tensor], x: Tensor, pooling: Pooling
    ) -> Tensor | None:
        """Build the graph that follows pooling, see `head`; None if it has no node.

        Return its result, flagged as output.
        """
        inputs = GraphInputs.new(1, 1, 1, 1, self.hp.memory)
        g = GraphBuild(self.hp, LoadedWeights(weights), inputs, (), PAGE_SIZE, 1, self.norm)
        y = self.head(g, x, pooling)
        return None if y is x else y.named("result_embd_pooled").set_output()

    def weights(self) -> list[WeightSpec]:
        """Return all weights, optional ones included: those that `forward` uses.

        Raises:
            ModelFileError: the hyperparameters do not fit together.
        """
        declared, memory = DeclaredWeights(), self.hp.memory
        inputs = GraphInputs.new(2, 1, 1, 1, memory, n_hidden=self.n_hidden)
        kv = [KVLayer.new(m, PAGE_SIZE, GGMLType.F32, GGMLType.F32) for m in memory]
        states = {
            il: [Tensor(GGMLType.F32, (n, 1)) for n in m.states] for il, m in enumerate(memory)
        }
        g = GraphBuild(self.hp, declared, inputs, kv, PAGE_SIZE, 1, self.norm, states=states)
        try:
            self.forward(g)
            for pooling in (Pooling.MEAN, Pooling.RANK):
                self.head(g, Tensor(GGMLType.F32, (self.hp.n_embd, 1)), pooling)
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
