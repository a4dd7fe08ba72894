"""What a model costs, whatever computes it: its sizes, and what one token reads and multiplies.

Knows no device's speed. Tested by tests/observe/test_bench_model.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ..graph.tensor import Tensor
from ..graph.types import GGMLType
from .context import Context
from .loader import LoadedModel

EMBEDDINGS: Final = "token_embd.weight"
FLOATS: Final = (GGMLType.F32, GGMLType.F16, GGMLType.BF16)


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What a model costs, whatever computes it.

    `name`: its architecture and the type of most of its weights. `n_bytes`, `n_params`: of all
    weights, each once. `n_bytes_read`: of the weights that one step reads, however many tokens it
    has; of experts, those of one token. `n_mul_adds`: of the matrix products of one token.
    `n_bytes_kv`: keys and values of one token. `is_quantized`: products are of integers.
    """

    name: str
    n_bytes: int
    n_params: int
    n_bytes_read: int
    n_mul_adds: int
    n_bytes_kv: int
    is_quantized: bool


def model_card(context: Context) -> ModelCard:
    """What the model of a context costs, with its KV pool."""
    model = context.model
    # tied ones once, though each kind of memory has them
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
        n_bytes_kv=sum(layer.k.nb[1] + layer.v.nb[1] for layer in context.kv),
        is_quantized=type not in FLOATS,
    )


def bytes_read(model: LoadedModel) -> dict[str, int]:
    """Bytes of weights that one token reads, by the name of the device where they lie."""
    names = {id(t): name for name, t in model.weights.items()}
    read = dict.fromkeys((device.name for device in model.devices), 0)
    for t in _used_by_products(model):
        read[model.homes[names[id(t)]].device.name] += int(_share_used(model, t) * t.nbytes)
    return read


def _used_by_products(model: LoadedModel) -> Iterable[Tensor]:
    """The weights that a token needs as a whole: of the embeddings it takes one row, unless they
    are the output's weights as well."""
    return {id(t): t for name, t in model.weights.items() if name != EMBEDDINGS}.values()


def _share_used(model: LoadedModel, t: Tensor) -> float:
    """Of experts, the share that a token goes to; 1 for all others."""
    hp = model.hp
    return hp.n_expert_used / hp.n_expert if hp.n_expert and t.ne[2] == hp.n_expert else 1.0
