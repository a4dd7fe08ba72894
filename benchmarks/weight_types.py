"""Types of a random model's tensors: one type for all matrices, or one of llama-quantize's mixes.

A mix is named as its files are (Q4_K_M): most matrices have its base type, some a better one.
`type_of` chooses a tensor's type. Knows no data: make_model.py writes it. Tested by
tests/model/test_make_model.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

Type = GGMLQuantizationType

TYPES: Final = (
    *(Type.F32, Type.F16, Type.BF16),
    *(Type.Q8_0, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1),
    *(Type.Q2_K, Type.Q3_K, Type.Q4_K, Type.Q5_K, Type.Q6_K),
    *(Type.IQ4_NL, Type.IQ4_XS, Type.IQ3_S, Type.IQ3_XXS, Type.IQ2_S, Type.IQ2_XS, Type.IQ2_XXS),
    *(Type.IQ1_S, Type.IQ1_M, Type.TQ1_0, Type.TQ2_0, Type.MXFP4),
)
# types for rows that are not whole blocks (llama-quant.cpp, tensor_type_fallback)
FALLBACKS: Final = {
    **dict.fromkeys((Type.Q2_K, Type.Q3_K, Type.TQ1_0, Type.TQ2_0), Type.Q4_0),
    Type.Q4_K: Type.Q5_0,
    Type.Q5_K: Type.Q5_1,
    Type.Q6_K: Type.Q8_0,
    **dict.fromkeys((t for t in TYPES if t.name.startswith("IQ")), Type.IQ4_NL),
    Type.IQ4_NL: Type.F16,
}
# matrices that converters write as F32
FLOATS: Final = (
    "ffn_gate_inp.weight",
    "position_embd.weight",
    "token_types.weight",
    "ssm_conv1d.weight",
)


# --- mixes (llama-quant.cpp, llama_tensor_get_type_impl, without an importance matrix) ---

Layers = Callable[[int, int], bool]  # of a layer's number and the number of layers


@dataclass(frozen=True, slots=True)
class Mix:
    """The base type of all matrices, and better types: the first of `better` that applies counts.

    Each has the name of a matrix, the layers in which it applies, and the type.
    """

    name: str
    base: Type
    better: tuple[tuple[str, Layers, Type], ...]

    def type_of(self, name: str, n_layer: int) -> Type:
        """The type of the tensor `name`, as "blk.3.ffn_down.weight"."""
        *layer, matrix, _ = name.split(".")
        il = int(layer[-1]) if layer else 0
        for part, layers, type in self.better:
            if part == matrix and layers(il, n_layer):
                return type
        return self.base


def _all(il: int, n: int) -> bool:
    return True


def _first(k: int) -> Layers:
    return lambda il, n: il < k


def _first_part(divisor: int) -> Layers:
    return lambda il, n: il < n // divisor


def has_more_bits(il: int, n: int) -> bool:
    """The first and last eighth of the layers, and every third one between."""
    return il < n // 8 or il >= 7 * n // 8 or (il - n // 8) % 3 == 2


def _medium(name: str, base: Type, fused: Type) -> Mix:
    better = [("attn_v", has_more_bits, Type.Q6_K), ("ffn_down", has_more_bits, Type.Q6_K)]
    return _mix(name, base, *better, ("attn_qkv", _all, fused))


def _mix(name: str, base: Type, *better: tuple[str, Layers, Type]) -> Mix:
    return Mix(name, base, (("output", _all, Type.Q6_K), *better))


MIXES: Final = (
    _mix(
        "Q3_K_M",
        Type.Q3_K,
        ("attn_v", _first(2), Type.Q5_K),
        ("attn_v", _all, Type.Q4_K),
        ("attn_qkv", _all, Type.Q4_K),
        ("attn_output", _all, Type.Q4_K),
        ("ffn_down", _first_part(16), Type.Q5_K),
        ("ffn_down", _all, Type.Q4_K),
    ),
    _mix(
        "Q4_K_S",
        Type.Q4_K,
        ("attn_v", _first(4), Type.Q5_K),
        ("ffn_down", _first_part(8), Type.Q5_K),
    ),
    _medium("Q4_K_M", Type.Q4_K, Type.Q5_K),
    _mix("Q5_K_S", Type.Q5_K),
    _medium("Q5_K_M", Type.Q5_K, Type.Q6_K),
)
WEIGHTS: Final[dict[str, Type | Mix]] = {each.name: each for each in (*MIXES, *TYPES)}


def type_of(
    ne: tuple[int, ...], weights: Type | Mix, name: str = "", n_layer: int = 1, n_expert: int = 0
) -> Type:
    """Return the type of a tensor: F32 for vectors, a fallback for rows of partial blocks.

    As in llama-quantize, a router is F32, and in a model with experts MXFP4 is their type alone:
    other matrices are Q8_0.
    """
    if len(ne) == 1 or name.endswith((".bias", *FLOATS)):
        return Type.F32
    wanted = weights.type_of(name, n_layer) if isinstance(weights, Mix) else weights
    if wanted is Type.MXFP4 and n_expert and "_exps" not in name:
        return Type.Q8_0
    while ne[0] % GGML_QUANT_SIZES[wanted][0]:
        wanted = FALLBACKS.get(wanted, Type.F16)
    return wanted
