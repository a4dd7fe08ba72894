"""What weights an architecture has: names, shapes, where they belong and which op reads them.

Names are GGUF's. Knows neither files nor devices. Tested by tests/model/test_arch_weights.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from ...graph import Op
from ..hparams import HParams


class Bias(Enum):
    """Whether a matrix comes with a bias."""

    NONE = auto()
    OPTIONAL = auto()
    REQUIRED = auto()


@dataclass(frozen=True, slots=True)
class WeightSpec:
    """One weight.

    `layer` is None for the input embedding and n_layer for the output. `op` is what reads the
    weight: a device that cannot run it cannot hold it. `files` are the ways in which a file may
    hold the weight, in order of preference: each is a list of tensors, of which the weight is made
    one after the other.
    """

    name: str
    ne: tuple[int, ...]
    layer: int | None
    op: Op
    files: tuple[tuple[str, ...], ...]
    required: bool = True


def embedding(hp: HParams) -> WeightSpec:
    """The rows that tokens turn into: [n_embd, n_vocab]."""
    name = "token_embd.weight"
    return WeightSpec(name, (hp.n_embd, hp.n_vocab), None, Op.GET_ROWS, ((name,),))


def output(hp: HParams) -> list[WeightSpec]:
    """The last norm and the output matrix, which is the embedding where the file has none."""
    name = "output.weight"
    files = ((name,), ("token_embd.weight",))
    matrix = WeightSpec(name, (hp.n_embd, hp.n_vocab), hp.n_layer, Op.MUL_MAT, files)
    return [vector("output_norm.weight", hp.n_embd, hp.n_layer), matrix]


def vector(name: str, n: int, layer: int, op: Op = Op.MUL, *, required: bool = True) -> WeightSpec:
    """A norm's factors, a bias (op ADD) or the like: [n]."""
    return WeightSpec(name, (n,), layer, op, ((name,),), required)


def linear(
    name: str, n_in: int, n_out: int, layer: int, bias: Bias = Bias.NONE
) -> list[WeightSpec]:
    """The matrix `name`.weight [n_in, n_out], with `name`.bias [n_out] if it has one."""
    weight = f"{name}.weight"
    specs = [WeightSpec(weight, (n_in, n_out), layer, Op.MUL_MAT, ((weight,),))]
    if bias is not Bias.NONE:
        required = bias is Bias.REQUIRED
        specs.append(vector(f"{name}.bias", n_out, layer, Op.ADD, required=required))
    return specs


def experts(hp: HParams, il: int) -> list[WeightSpec]:
    """The router and the experts of one layer, [n_in, n_out, n_expert] each.

    Older files hold every expert's matrix as a tensor of its own, `blk.N.ffn_gate.E.weight`.
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
    """Llama 3's factors of the rope frequencies [n_rot / 2].

    The file has them once; each layer has a weight of its own, as it needs them on its device.
    """
    name, files = f"blk.{il}.rope_freqs.weight", (("rope_freqs.weight",),)
    return WeightSpec(name, (hp.n_rot // 2,), il, Op.ROPE, files, required=False)
