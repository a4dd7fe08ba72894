"""A mixture of experts: the choice of experts for each token, and their weighted sum.

Tensors have llama.cpp's names (llama-graph.cpp, build_moe_ffn). Knows no architecture.
Tested by tests/model/test_arch_experts.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from ...graph import Op, Tensor, ops
from ...graph.op import UnaryOp
from ..hparams import HParams
from ..keys import Keys
from .build import Activation, Gated, softcapped
from .layer_build import LayerBuild
from .weights import Bias, Part

LEAST: Final = 1e-20


class Gating(Enum):
    """How logits become weights. Values are those of `expert_gating_func` in files."""

    SOFTMAX = 1  # over all experts
    SIGMOID = 2
    CHOSEN = 3  # softmax over the chosen experts


@dataclass(frozen=True, slots=True)
class Router:
    """How a token chooses its experts.

    Attributes:
        renorm: the weights of the chosen experts are divided by their sum.
        scale: a factor of the weights.
        bias: the presence of `exp_probs_b`, which is added to the probabilities for the choice
            only (arXiv 2408.15664).
        logit_bias: the presence of a bias of the router's matrix.
        softcap: logits become softcap * tanh(logits / softcap); 0: they do not.
        n_group, n_group_used: the experts are divided into groups. Those of the best groups are
            chosen from.
        n_group_best: a group's score is the sum of this many of its best experts: 2 (arXiv
            2412.19437) or 1 (arXiv 2405.04434).
    """

    gating: Gating = Gating.SOFTMAX
    renorm: bool = True
    scale: float = 1.0
    bias: Bias = Bias.NONE
    logit_bias: Bias = Bias.NONE
    softcap: float = 0.0
    n_group: int = 1
    n_group_used: int = 1
    n_group_best: int = 2

    def route(self, b: LayerBuild, x: Tensor) -> tuple[Tensor, Tensor]:
        """Choose experts for x [n_embd, n_tokens].

        Returns:
            (experts [n_used, n_tokens], the best first; weights [1, n_used, n_tokens]).
        """
        return _route(b, x, self)


@dataclass(frozen=True, slots=True)
class Experts:
    """The experts of a model.

    Attributes:
        router: how a token chooses its experts.
        n_dense: the first layers have none.
        step: they are in every step-th layer.
        n_ff_shared: the width of an expert that all tokens use besides; 0: there is none.
        shared_gate: its result is multiplied by sigmoid(ffn_gate_inp_shexp · x).
        act: of gate and up.
        ungated: the activation of up, in experts without a gate.
        bias: of the experts' matrices.
        weigh_input: weights are factors of the experts' input, not of their results.
    """

    router: Router
    n_dense: int = 0
    step: int = 1
    n_ff_shared: int = 0
    shared_gate: bool = False
    act: Gated = ops.swiglu
    ungated: Activation | None = None
    bias: Bias = Bias.NONE
    weigh_input: bool = False

    def are_in(self, il: int) -> bool:
        """True if layer `il` has experts."""
        return il >= self.n_dense and (il + 1) % self.step == 0

    def build(self, b: LayerBuild, x: Tensor) -> Tensor:
        """Return the sum of the experts' results of x [n_embd, n_tokens]."""
        y = moe(
            b,
            x,
            self.router,
            self.act,
            ungated=self.ungated,
            bias=self.bias,
            weigh_input=self.weigh_input,
        )
        if not self.n_ff_shared:
            return y
        if self.ungated is None:
            shared = shared_expert(b, x, self.n_ff_shared, self.act, gate=self.shared_gate)
        else:
            shared = b.mlp(x, self.n_ff_shared, self.ungated, suffix="_shexp")
        return b.add(y, shared, "ffn_out")


def read_experts(
    keys: Keys,
    hp: HParams,
    gating: Gating = Gating.SOFTMAX,
    *,
    renorm: bool = False,
    shared_gate: bool = False,
) -> Experts:
    """Return the experts that a file has. `gating` and `renorm` are defaults of its keys."""
    return Experts(
        router=read_router(keys, gating, renorm=renorm),
        n_dense=keys.count("leading_dense_block_count", 0, low=0),
        step=keys.count("interleave_moe_layer_step", 1),
        n_ff_shared=_n_ff_shared(keys, hp),
        shared_gate=shared_gate,
    )


def _n_ff_shared(keys: Keys, hp: HParams) -> int:
    """Return the width of the shared expert; 0: there is none.

    It is the width of its tensors, as converters write different keys.
    """
    n_shared = keys.count("expert_shared_count", 0, low=0)
    n_ff = keys.count("expert_shared_feed_forward_length", n_shared * hp.n_ff_exp, low=0)
    names = (f"blk.{il}.ffn_down_shexp.weight" for il in range(hp.n_layer))
    found = next((keys.file.tensors[name] for name in names if name in keys.file.tensors), None)
    return n_ff if found is None else found.ne[0]


def read_router(keys: Keys, gating: Gating = Gating.SOFTMAX, *, renorm: bool = False) -> Router:
    """Return the router that a file's keys describe. `gating` and `renorm` are defaults."""
    n_expert = keys.count("expert_count")
    n_group = keys.count("expert_group_count", 1, low=0) or 1
    if n_expert % n_group:
        keys.fail("expert_group_count", n_group, f"must divide the {n_expert} experts")
    if n_group > 1 and n_expert // n_group < 2:
        keys.fail("expert_group_count", n_group, "a group must have at least two experts")
    func = keys.count("expert_gating_func", gating.value, low=0, high=len(Gating))
    return Router(
        gating=Gating(func) if func else gating,
        renorm=keys.flag("expert_weights_norm", renorm),
        scale=keys.factor("expert_weights_scale", 1.0),
        bias=Bias.OPTIONAL,
        n_group=n_group,
        n_group_used=keys.count("expert_group_used_count", n_group, low=0, high=n_group) or n_group,
    )


def moe(
    b: LayerBuild,
    x: Tensor,
    router: Router,
    act: Gated = ops.swiglu,
    *,
    routed: Tensor | None = None,
    ungated: Activation | None = None,
    bias: Bias = Bias.NONE,
    weigh_input: bool = False,
) -> Tensor:
    """Return the weighted sum of down(act(gate(x), up(x))) by each token's chosen experts.

    Args:
        b: the layer.
        x: [n_embd, n_tokens].
        router: how experts are chosen.
        act: of gate and up.
        routed: the router's input, x by default.
        ungated: the activation of up, in experts without a gate.
        bias: of the experts' matrices.
        weigh_input: weights are factors of x, not of the experts' results.
    """
    chosen, weights = router.route(b, x if routed is None else routed)
    weights = _scaled(b, weights, "down", chosen)
    rows = ops.reshape(x, (x.ne[0], 1, x.ne[1]))
    if weigh_input:
        repeated = ops.repeat(rows, (x.ne[0], chosen.ne[0], x.ne[1]))
        rows = b.named(ops.mul(repeated, weights), "ffn_moe_weighted")
    if ungated is None:
        gate = _matrices(b, "gate", rows, chosen, bias)
        up = _matrices(b, "up", rows, chosen, bias)
        hidden = b.named(act(gate, up), f"ffn_moe_{act.__name__}")
    else:
        hidden = ungated(_matrices(b, "up", rows, chosen, bias))
        hidden = b.named(hidden, f"ffn_moe_{ungated.__name__}")
    down = _matrices(b, "down", hidden, chosen, bias)  # [n_embd, n_used, n_tokens]
    if not weigh_input:
        down = b.named(ops.mul(down, weights), "ffn_moe_weighted")
    return b.named(_sum(down), "ffn_moe_out")


def shared_expert(
    b: LayerBuild, x: Tensor, n_ff: int, act: Gated = ops.swiglu, *, gate: bool = False
) -> Tensor:
    """Return the result of the expert that all tokens use, [n_embd, n_tokens].

    With `gate`, it is multiplied by sigmoid(ffn_gate_inp_shexp · x).
    """
    y = b.gated(x, n_ff, act, suffix="_shexp")
    if gate:
        y = ops.mul(y, ops.unary(b.linear(x, "ffn_gate_inp_shexp", 1), UnaryOp.SIGMOID))
    return b.named(y, "ffn_shexp")


# --- the choice ---


def _route(b: LayerBuild, x: Tensor, router: Router) -> tuple[Tensor, Tensor]:
    n_expert, n_used, n_tokens = b.hp.n_expert, b.hp.n_expert_used, x.ne[1]
    logits = b.linear(x, "ffn_gate_inp", n_expert, router.logit_bias, scaled=False)
    logits = b.named(softcapped(logits, router.softcap), "ffn_moe_logits")
    probs = b.named(_probabilities(logits, router), "ffn_moe_probs")
    chosen = ops.argsort_top_k(_selection(b, probs, router), n_used)
    chosen = b.named(chosen, "ffn_moe_topk")
    weights = ops.get_rows(ops.reshape(probs, (1, n_expert, n_tokens)), chosen)
    weights = ops.reshape(b.named(weights, "ffn_moe_weights"), (n_used, n_tokens))
    if router.gating is Gating.CHOSEN:
        weights = b.named(ops.soft_max(weights), "ffn_moe_weights_softmax")
    if router.renorm:
        total = ops.sum_rows(weights)
        if router.gating is Gating.SIGMOID:
            total = ops.scale(total, 1.0, LEAST)  # all may be 0
        total = b.named(total, "ffn_moe_weights_sum")
        weights = b.named(ops.div(weights, total), "ffn_moe_weights_norm")
    if router.scale != 1.0:
        weights = b.named(ops.scale(weights, router.scale), "ffn_moe_weights_scaled")
    return chosen, ops.reshape(weights, (1, n_used, n_tokens))


def _probabilities(logits: Tensor, router: Router) -> Tensor:
    match router.gating:
        case Gating.SOFTMAX:
            return ops.soft_max(logits)
        case Gating.SIGMOID:
            return ops.unary(logits, UnaryOp.SIGMOID)
        case Gating.CHOSEN:
            return logits


def _selection(b: LayerBuild, probs: Tensor, router: Router) -> Tensor:
    """Return what the experts are chosen by, [n_expert, n_tokens]."""
    if router.bias is not Bias.NONE:
        # some converters leave out the suffix ".bias"
        files = b.parts(["exp_probs_b.bias"], ["exp_probs_b"])
        bias = b.g.weight(
            f"blk.{b.il}.exp_probs_b.bias",
            (probs.ne[0],),
            b.il,
            Op.ADD,
            files=files,
            required=router.bias is Bias.REQUIRED,
        )
        if bias is not None:
            probs = b.named(ops.add(probs, bias), "ffn_moe_probs_biased")
    if router.n_group_used == router.n_group:
        return probs
    return b.named(_of_best_groups(probs, router), "ffn_moe_probs_masked")


def _of_best_groups(probs: Tensor, router: Router) -> Tensor:
    """Return probs with minus infinity for the experts of all but the best groups."""
    n_expert, n_tokens = probs.ne[:2]
    n_group, n_each = router.n_group, n_expert // router.n_group
    groups = ops.reshape(probs, (n_each, n_group, n_tokens))
    n_best = router.n_group_best
    best = ops.cont(ops.argsort_top_k(groups, n_best))  # [n_best, n_group, n_tokens]
    single = ops.reshape(probs, (1, n_each, n_group, n_tokens))
    scores = ops.sum_rows(ops.reshape(ops.get_rows(single, best), (n_best, n_group, n_tokens)))
    chosen = ops.argsort_top_k(ops.reshape(scores, (n_group, n_tokens)), router.n_group_used)
    of_chosen = ops.get_rows(groups, chosen)  # [n_each, n_group_used, n_tokens]
    masked = ops.set_rows(ops.fill(groups, -math.inf), of_chosen, ops.cont(chosen))
    return ops.reshape(masked, (n_expert, n_tokens))


# --- the experts ---


def _matrices(b: LayerBuild, kind: str, x: Tensor, chosen: Tensor, bias: Bias) -> Tensor:
    """Return the products of x [n_in, 1 or n_used, n_tokens] with the chosen experts' matrices.

    Old files have a tensor for each expert, `blk.N.ffn_gate.E.weight`. Newer ones may have gate and
    up in one tensor.
    """
    n_expert, n_ff = b.hp.n_expert, b.hp.n_ff_exp
    n_out = b.hp.n_embd if kind == "down" else n_ff
    name = f"ffn_{kind}_exps"
    y = ops.mul_mat_id(
        b.required(
            f"{name}.weight", (x.ne[0], n_out, n_expert), Op.MUL_MAT_ID, files=_sources(b, kind)
        ),
        x,
        chosen,
    )
    if kind != "down":  # the factors of down are in the weights
        y = _scaled(b, y, kind, chosen)
    if bias is not Bias.NONE:
        files = b.parts([f"{name}.bias"], *_fused(kind, n_ff, "bias"))
        y = ops.add_id(
            y, b.required(f"{name}.bias", (n_out, n_expert), Op.ADD_ID, files=files), chosen
        )
    return b.named(y, f"ffn_moe_{kind}")


def _sources(b: LayerBuild, kind: str) -> tuple[tuple[Part, ...], ...]:
    single = [f"ffn_{kind}.{e}.weight" for e in range(b.hp.n_expert)]
    return b.parts([f"ffn_{kind}_exps.weight"], single, *_fused(kind, b.hp.n_ff_exp, "weight"))


def _fused(kind: str, n_ff: int, what: str) -> list[Sequence[Part]]:
    if kind == "down":
        return []
    return [[Part(f"ffn_gate_up_exps.{what}", 0 if kind == "gate" else n_ff, n_ff, 2 * n_ff)]]


def _scaled(b: LayerBuild, y: Tensor, kind: str, chosen: Tensor) -> Tensor:
    """Return y [n, n_used, n_tokens] times the factors of the chosen experts, if there are any."""
    n_expert = b.hp.n_expert
    name = f"ffn_{kind}_exps.scale"
    whole = [] if kind == "down" else [["ffn_gate_up_exps.scale"]]
    scales = b.weight(name, (n_expert,), files=b.parts([name], *whole))
    if scales is None:
        return y
    table, ids = ops.reshape(scales, (1, n_expert)), ops.cont(chosen)
    found = ops.get_rows(table, ops.reshape(ids, (ids.n_elements,)))
    return ops.mul(y, ops.reshape(found, (1, *chosen.ne[:2])))


def _sum(x: Tensor) -> Tensor:
    """Sum over experts in a fixed order: [n_embd, n_used, n_tokens] to [n_embd, n_tokens]."""
    parts = [
        ops.view(x, (x.ne[0], x.ne[2]), (x.nb[0], x.nb[2]), i * x.nb[1]) for i in range(x.ne[1])
    ]
    total = parts[0]
    for part in parts[1:]:
        total = ops.add(total, part)
    return total if len(parts) > 1 else ops.cont(total)
