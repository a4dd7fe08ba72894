"""The static costs of a model: its sizes, and the bytes read and multiplications of one token.

Knows no device's speed. Tested by tests/observe/test_bench_model.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ..graph.tensor import Tensor
from ..graph.types import GGMLType
from .graph_context import GraphContext
from .kv_memory import KVRead
from .loader import LoadedModel

EMBEDDINGS: Final = "token_embd.weight"
OUTPUT: Final = "output.weight"


@dataclass(frozen=True, slots=True)
class ModelCard:
    """The static costs of a model.

    Attributes:
        name: the architecture and the type.
        n_bytes: size of all weights; tied weights count once.
        n_params: elements of all weights; tied weights count once.
        n_bytes_read: bytes of weights that a step of one token reads.
        n_mul_adds: multiply-adds in the matrix products of one token.
        n_mul_adds_output: those of the output matrix, only for tokens whose logits are computed.
        n_bytes_kv: bytes of keys and values that are stored for one token.
        kv_reads: the keys and values that each layer reads for one token.
        type: the most frequent type of its weights.
    """

    name: str
    n_bytes: int
    n_params: int
    n_bytes_read: int
    n_mul_adds: int
    n_mul_adds_output: int
    n_bytes_kv: int
    kv_reads: tuple[KVRead, ...]
    type: GGMLType


def model_card(context: GraphContext) -> ModelCard:
    """Return the costs of a context's model and KV pool."""
    model = context.model
    # keyed by origin: tied weights may have a copy in each kind of memory
    weights = {model.origins[name]: t for name, t in model.weights.items()}.values()
    n_read = n_mul_adds = 0.0
    for t in _used_by_products(model):
        used = _share_used(model, t)
        n_read += used * t.nbytes
        n_mul_adds += used * t.n_elements if t.ne[1] > 1 else 0
    counts: dict[GGMLType, int] = {}
    for t in weights:
        counts[t.type] = counts.get(t.type, 0) + t.n_elements
    type = max(counts, key=lambda t: counts[t])
    return ModelCard(
        name=f"{model.hp.arch} {type.name}",
        n_bytes=sum(t.nbytes for t in weights),
        n_params=sum(t.n_elements for t in weights),
        n_bytes_read=int(n_read),
        n_mul_adds=int(n_mul_adds),
        n_mul_adds_output=_n_output(model),
        n_bytes_kv=sum(group.cell_bytes for group in context.groups),
        kv_reads=tuple(read for _, read in context.reads()),
        type=type,
    )


def _n_output(model: LoadedModel) -> int:
    """Return the elements of the output matrix, which may be that of the embeddings."""
    output = model.weights.get(OUTPUT)
    return 0 if output is None else output.n_elements


def bytes_read(model: LoadedModel) -> dict[str, int]:
    """Return the bytes of weights that one token reads, by the name of their device."""
    names = {id(t): name for name, t in model.weights.items()}
    read = dict.fromkeys((device.name for device in model.devices), 0)
    for t in _used_by_products(model):
        read[model.homes[names[id(t)]].device.name] += int(_share_used(model, t) * t.nbytes)
    return read


def _used_by_products(model: LoadedModel) -> Iterable[Tensor]:
    """Return the weights that a token reads as a whole.

    The embeddings count only if they are also the output's weights: else a token reads one row.
    """
    return {id(t): t for name, t in model.weights.items() if name != EMBEDDINGS}.values()


def _share_used(model: LoadedModel, t: Tensor) -> float:
    """Return the share of a weight that a token reads: below 1 for experts only."""
    hp = model.hp
    return hp.n_expert_used / hp.n_expert if hp.n_expert and t.ne[2] == hp.n_expert else 1.0
