"""A block that predicts further tokens, as a model of its own that guesses for the file's model.

DeepSeek-V3's multi-token prediction (arXiv 2412.19437, section 2.2): the block predicts token i + 2
from token i + 1 and the hidden state of token i. Files have such blocks after the layers, as
`nextn_predict_layers` more; this is the first one. Tested by tests/model/test_nextn.py.
"""

from __future__ import annotations

from dataclasses import replace

from ...base.errors import UnsupportedModelError
from ...graph import Op, Tensor, ops
from ..hparams import HParams
from ..keys import Keys
from ..layer_memory import index_of
from .base import Architecture
from .build import GraphBuild
from .decoder import Decoder
from .layer_build import LayerBuild
from .weights import Part

PLAIN = ("forward", "embed", "logits", "output_norm")  # methods that a block's graph replaces


class NextN(Architecture):
    """arXiv 2412.19437

    Its graph has a further input: the hidden state of the token before each. The model's are those
    after its last norm, and the block's own are those before the norm of its head, as in vLLM
    (deepseek_mtp.py, glm4_moe_mtp.py). Its other layers have neither weights nor memory.
    """

    def __init__(self, keys: Keys, decoder: Architecture) -> None:
        """
        Raises:
            UnsupportedModelError: the file has no such blocks, or they are not supported.
        """
        hp, kind = decoder.hp, type(decoder)
        il = hp.n_layer
        if f"blk.{il}.nextn.eh_proj.weight" not in keys.file.tensors or not hp.n_layer_nextn:
            raise UnsupportedModelError(
                f"{keys.path}: draft-mtp: the file has no block that predicts further tokens "
                f"(tensor blk.{il}.nextn.eh_proj.weight); use -md with a small model"
            )
        if (
            not isinstance(decoder, Decoder)
            or any(getattr(kind, name) is not getattr(Decoder, name) for name in PLAIN)
            or index_of(hp.memory) is not None  # a block may use the choice of another layer
        ):
            raise UnsupportedModelError(
                f"{keys.path}: draft-mtp: blocks of architecture {hp.arch!r} are not supported; "
                "use -md with a small model"
            )
        self.norm = decoder.norm
        super().__init__(keys)
        self.hp = decoder.hp = with_block(hp)
        self.temperature = decoder.temperature
        self._decoder = decoder

    @property
    def n_hidden(self) -> int:
        return self.hp.n_embd

    def ignores(self, tensor: str) -> bool:
        in_block = tensor.startswith(f"blk.{self.hp.n_layer - 1}.")
        return not in_block or self._decoder.ignores(tensor)

    def forward(self, g: GraphBuild) -> Tensor:
        b = LayerBuild.of(g, self.hp.n_layer - 1)
        hidden = g.inputs.hidden
        assert hidden is not None, "the graph has hidden states as an input"
        both = ops.concat(b.norm(self._embed(b), "nextn.enorm"), b.norm(hidden, "nextn.hnorm"), 0)
        x = b.named(b.linear(both, "nextn.eh_proj", self.hp.n_embd), "eh_proj")
        x = g.keep(self._decoder.layer(b, x))
        return self._logits(b, b.norm(x, "nextn.shared_head_norm"))

    def _embed(self, b: LayerBuild) -> Tensor:
        """Return the embeddings of the tokens, by the block's own table if it has one."""
        name = "token_embd.weight"
        files = (*b.parts(["nextn.embed_tokens.weight"]), (Part(name),))
        ne = (self.hp.n_embd, self.hp.n_vocab)
        table = b.g.required(name, ne, None, Op.GET_ROWS, files=files)
        return ops.get_rows(table, b.g.inputs.tokens).named("inp_embd")

    def _logits(self, b: LayerBuild, x: Tensor) -> Tensor:
        """Return the logits of x [n_embd, n_outputs], by the block's own matrix if it has one."""
        shared = (Part("output.weight"),), (Part("token_embd.weight"),)
        files = (*b.parts(["nextn.shared_head_head.weight"]), *shared)
        return b.g.linear(x, "output", self.hp.n_vocab, self.hp.n_layer, files=files)

    def max_ctx(self) -> int | None:
        return self._decoder.max_ctx()

    def notes(self, n_ctx: int) -> list[str]:
        return []  # the model has them


def with_block(hp: HParams) -> HParams:
    """Return the shape with the first block as its last layer, and no memory in the others. The
    block is like the last layer."""
    none = tuple(replace(layer, n_head_kv=0, kv_layer=None, states=()) for layer in hp.layers)
    return replace(hp, layers=(*none, hp.layers[-1]), n_layer_nextn=hp.n_layer_nextn - 1)
