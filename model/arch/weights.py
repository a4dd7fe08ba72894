"""Specifications of an architecture's weights: name, shape, layer, and the op that reads them.

Names are GGUF's. Knows no files and no devices. Tested by tests/model/test_arch_weights.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from ...graph import Op
from ..hparams import HParams


class Bias(Enum):
    """Presence of a matrix's bias in a file."""

    NONE = auto()
    OPTIONAL = auto()
    REQUIRED = auto()


@dataclass(frozen=True, slots=True)
class WeightSpec:
    """One weight.

    Attributes:
        name: the name in `GraphBuild.weights`.
        ne: shape.
        layer: the layer; None for the input embedding, n_layer for the output.
        op: the op that reads the weight. A device must support it to hold the weight.
        files: alternative sources in a file, in order of preference. Each is a list of tensors,
            concatenated to make the weight.
        required: the file must have the weight.
    """

    name: str
    ne: tuple[int, ...]
    layer: int | None
    op: Op
    files: tuple[tuple[str, ...], ...]
    required: bool = True


def embedding(hp: HParams) -> WeightSpec:
    """Return the input embedding, [n_embd, n_vocab]."""
    name = "token_embd.weight"
    return WeightSpec(name, (hp.n_embd, hp.n_vocab), None, Op.GET_ROWS, ((name,),))


def output(hp: HParams) -> list[WeightSpec]:
    """Return the last norm and the output matrix. A file without one uses the embedding."""
    name = "output.weight"
    files = ((name,), ("token_embd.weight",))
    matrix = WeightSpec(name, (hp.n_embd, hp.n_vocab), hp.n_layer, Op.MUL_MAT, files)
    return [vector("output_norm.weight", hp.n_embd, hp.n_layer), matrix]


def vector(name: str, n: int, layer: int, op: Op = Op.MUL, *, required: bool = True) -> WeightSpec:
    """Return a vector weight [n], such as a norm's factors or a bias (op ADD)."""
    return WeightSpec(name, (n,), layer, op, ((name,),), required)


def linear(
    name: str, n_in: int, n_out: int, layer: int, bias: Bias = Bias.NONE
) -> list[WeightSpec]:
    """Return the matrix `name`.weight [n_in, n_out], and `name`.bias [n_out] by `bias`."""
    weight = f"{name}.weight"
    specs = [WeightSpec(weight, (n_in, n_out), layer, Op.MUL_MAT, ((weight,),))]
    if bias is not Bias.NONE:
        required = bias is Bias.REQUIRED
        specs.append(vector(f"{name}.bias", n_out, layer, Op.ADD, required=required))
    return specs


def experts(hp: HParams, il: int) -> list[WeightSpec]:
    """Return the router and the experts [n_in, n_out, n_expert] of one layer.

    Older files have a tensor for each expert, `blk.N.ffn_gate.E.weight`.
    """
    shapes = {
        "ffn_gate": (hp.n_embd, hp.n_ff_exp),
        "ffn_up": (hp.n_embd, hp.n_ff_exp),
        "ffn_down": (hp.n_ff_exp, hp.n_embd),
    }
    specs = linear(f"blk.{il}.ffn_gate_inp", hp.n_embd, hp.n_expert, il)
    for kind, (n_in, n_out) in shapes.items():
        name = f"blk.{il}.{kind}_exps.weight"
        single = tuple(f"blk.{il}.{kind}.{e}.weight" for e in range(hp.n_expert))
        ne = (n_in, n_out, hp.n_expert)
        specs.append(WeightSpec(name, ne, il, Op.MUL_MAT_ID, ((name,), single)))
    return specs


def rope_freqs(hp: HParams, il: int) -> WeightSpec:
    """Return Llama 3's rope frequency factors [n_rot / 2] for one layer.

    The file has one tensor for all layers. Each layer has its own weight, as layers may be on
    different devices.
    """
    name, files = f"blk.{il}.rope_freqs.weight", (("rope_freqs.weight",),)
    return WeightSpec(name, (hp.n_rot // 2,), il, Op.ROPE, files, required=False)
