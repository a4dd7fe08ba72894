"""Mixtures of experts against a plain NumPy pass, one token and one expert at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from lamella.alloc import alloc_tensors, tensor_get, tensor_set
from lamella.graph import GGMLType, Graph, Tensor, ops
from lamella.kernels.cpu import CpuDevice
from lamella.kernels.sim import SimDevice
from lamella.model.arch.build import Gated, GraphBuild
from lamella.model.arch.experts import Experts, Gating, Router, moe
from lamella.model.arch.inputs import GraphInputs
from lamella.model.arch.layer_build import LayerBuild
from lamella.model.arch.weights import Bias, LoadedWeights
from lamella.model.hparams import HParams, Layer
from lamella.sched import Device, DeviceType, Scheduler

F32Array = npt.NDArray[np.float32]
F64Array = npt.NDArray[np.float64]
Weights = dict[str, F32Array]
Build = Callable[[LayerBuild, Tensor], Tensor]

N_EMBD, N_FF, N_EXPERT, N_USED, N_TOKENS = 32, 16, 8, 3, 5
HP = HParams(
    "toy",
    n_ctx_train=64,
    n_embd=N_EMBD,
    n_vocab=8,
    eps=1e-5,
    layers=(Layer(1, 1, N_EMBD, N_EMBD, N_FF, None),) * 2,
    n_expert=N_EXPERT,
    n_expert_used=N_USED,
    n_ff_exp=N_FF,
)


def random_weights(seed: int = 0) -> Weights:
    """Return the weights of experts, with reversed ne as shapes."""
    rng = np.random.default_rng(seed)

    def of(*ne: int) -> F32Array:
        return rng.standard_normal(ne[::-1]).astype(np.float32) / np.float32(np.sqrt(ne[0]))

    wide, narrow = (N_EMBD, N_FF), (N_FF, N_EMBD)
    return {
        "ffn_gate_inp.weight": 2 * of(N_EMBD, N_EXPERT),
        "ffn_gate_inp.bias": of(N_EXPERT),
        "exp_probs_b.bias": of(N_EXPERT),
        "ffn_gate_exps.weight": of(*wide, N_EXPERT),
        "ffn_up_exps.weight": of(*wide, N_EXPERT),
        "ffn_down_exps.weight": of(*narrow, N_EXPERT),
        "ffn_gate_exps.bias": of(N_FF, N_EXPERT),
        "ffn_up_exps.bias": of(N_FF, N_EXPERT),
        "ffn_down_exps.bias": of(N_EMBD, N_EXPERT),
        "ffn_gate_exps.scale": 1 + of(N_EXPERT),
        "ffn_up_exps.scale": 1 + of(N_EXPERT),
        "ffn_down_exps.scale": 1 + of(N_EXPERT),
        "ffn_gate_shexp.weight": of(N_EMBD, 24),
        "ffn_up_shexp.weight": of(N_EMBD, 24),
        "ffn_down_shexp.weight": of(24, N_EMBD),
        "ffn_gate_inp_shexp.weight": of(N_EMBD, 1),
    }


@dataclass(frozen=True)
class Case:
    """Experts, and the optional weights that their file has."""

    experts: Experts
    has: Sequence[str] = field(default=())
    own_input: bool = False  # the router has an input of its own


V3 = Router(Gating.SIGMOID, renorm=True, scale=2.5, bias=Bias.OPTIONAL)
BIASES = [f"ffn_{kind}_exps.bias" for kind in ("gate", "up", "down")]
SCALES = [f"ffn_{kind}_exps.scale" for kind in ("gate", "up", "down")]
SHARED = [f"ffn_{kind}_shexp.weight" for kind in ("gate", "up", "down")]
CASES = {
    "softmax": Case(Experts(Router(renorm=False))),
    "softmax renorm": Case(Experts(Router(renorm=True, scale=1.5))),
    "biased softmax": Case(Experts(Router(bias=Bias.REQUIRED)), ["exp_probs_b.bias"]),
    "sigmoid": Case(Experts(V3), ["exp_probs_b.bias"]),
    "sigmoid without bias": Case(Experts(V3)),
    "groups": Case(Experts(replace(V3, n_group=4, n_group_used=2)), ["exp_probs_b.bias"]),
    "groups by their best expert": Case(
        Experts(Router(renorm=False, n_group=4, n_group_used=2, n_group_best=1))
    ),
    "softmax of the chosen": Case(
        Experts(
            Router(Gating.CHOSEN, renorm=False, logit_bias=Bias.REQUIRED),
            act=ops.swiglu_oai,
            bias=Bias.REQUIRED,
        ),
        ["ffn_gate_inp.bias", *BIASES],
    ),
    "soft cap": Case(Experts(Router(softcap=0.5), act=ops.geglu)),
    "weighted input": Case(Experts(replace(V3, renorm=False), weigh_input=True)),
    "own input": Case(Experts(V3, act=ops.reglu), own_input=True),
    "scales": Case(Experts(V3), SCALES),
    "shared": Case(Experts(Router(), n_ff_shared=24), SHARED),
    "gated shared": Case(
        Experts(Router(), n_ff_shared=24, shared_gate=True),
        [*SHARED, "ffn_gate_inp_shexp.weight"],
    ),
}


def weights_of(case: Case) -> Weights:
    wanted = {"ffn_gate_inp.weight", *case.has}
    wanted |= {f"ffn_{kind}_exps.weight" for kind in ("gate", "up", "down")}
    return {name: value for name, value in random_weights().items() if name in wanted}


def block(case: Case) -> Build:
    def build(b: LayerBuild, x: Tensor) -> Tensor:
        if not case.own_input:
            return case.experts.build(b, x)
        return moe(b, x, case.experts.router, case.experts.act, routed=ops.scale(x, -1.0))

    return build


@pytest.fixture(params=["reference", "cpu"])
def device(request: pytest.FixtureRequest) -> Device:
    return CpuDevice() if request.param == "cpu" else SimDevice("CPU", DeviceType.CPU)


@pytest.fixture
def run(device: Device) -> Iterator[Callable[..., F32Array]]:
    """Compute a block of a layer of `x` [n_tokens, n_embd]: [n_tokens, n_embd]."""
    backend = device.init_backend()

    def start(build: Build, weights: Weights, x: F32Array) -> F32Array:
        tensors = {
            f"blk.0.{name}": Tensor(GGMLType.F32, value.shape[::-1], name=name)
            for name, value in weights.items()
        }
        leaf = Tensor(GGMLType.F32, x.shape[::-1], name="x")
        buffers = alloc_tensors([*tensors.values(), leaf], device.buffer_type)
        for tensor, value in zip([*tensors.values(), leaf], [*weights.values(), x], strict=True):
            tensor_set(tensor, value)
        inputs = GraphInputs.new(len(x), 1, 1, 1, HP.memory)
        g = GraphBuild(HP, LoadedWeights(tensors), inputs, [None], 1, 1)
        y = build(LayerBuild(g, 0, HP.layers[0]), leaf).set_output()
        scheduler = Scheduler([backend])
        scheduler.graph_compute(scheduler.alloc_graph(Graph(y)))
        result = tensor_get(y).view(np.float32).reshape(len(x), -1).copy()
        scheduler.free()
        for buffer in buffers:
            buffer.free()
        return result

    yield start
    backend.free()


# --- the reference ---


def sigmoid(x: F64Array) -> F64Array:
    y: F64Array = 1 / (1 + np.exp(-x))
    return y


def softmax(x: F64Array) -> F64Array:
    e = np.exp(x - x.max())
    y: F64Array = e / e.sum()
    return y


def activated(act: Gated, gate: F64Array, up: F64Array) -> F64Array:
    if act is ops.swiglu_oai:
        low: F64Array = np.minimum(gate, 7)
        return low * sigmoid(1.702 * low) * (np.clip(up, -7, 7) + 1)
    if act is ops.reglu:
        positive: F64Array = np.maximum(gate, 0)
        return positive * up
    if act is ops.geglu:
        inner: F64Array = np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)
        gelu: F64Array = gate * (1 + np.tanh(inner)) / 2
        return gelu * up
    return gate * sigmoid(gate) * up


def choose(router: Router, w: Weights, x: F64Array) -> tuple[list[int], F64Array]:
    """Return the experts of a token, the best first, and their weights."""
    logits = w["ffn_gate_inp.weight"] @ x + w.get("ffn_gate_inp.bias", np.float32(0))
    if router.softcap:
        logits = router.softcap * np.tanh(logits / router.softcap)
    probs = {Gating.SOFTMAX: softmax, Gating.SIGMOID: sigmoid}.get(router.gating, np.array)(logits)
    scores = probs + w.get("exp_probs_b.bias", np.float32(0))
    groups = scores.reshape(router.n_group, -1)
    best = np.argsort(-np.sort(groups)[:, -router.n_group_best :].sum(axis=1))[
        : router.n_group_used
    ]
    allowed = np.isin(np.arange(N_EXPERT) // groups.shape[1], best)
    chosen = np.argsort(-np.where(allowed, scores, -np.inf), kind="stable")[:N_USED]
    weights = probs[chosen]
    if router.gating is Gating.CHOSEN:
        weights = softmax(weights)
    if router.renorm:
        weights = weights / weights.sum()
    return [int(e) for e in chosen], weights * router.scale


def feed_forward(act: Gated, w: Weights, x: F64Array, suffix: str, e: Any = ...) -> F64Array:
    def linear(kind: str, y: F64Array) -> F64Array:
        name = f"ffn_{kind}_{suffix}"
        z: F64Array = w[f"{name}.weight"][e] @ y
        if suffix == "exps":
            z = z * w.get(f"{name}.scale", np.ones(N_EXPERT))[e]
            z = z + w.get(f"{name}.bias", np.zeros((N_EXPERT, 1)))[e]
        return z

    return linear("down", activated(act, linear("gate", x), linear("up", x)))


def expected(case: Case, w: Weights, x: F64Array) -> F64Array:
    """Return the experts' result for one token x [n_embd]."""
    experts = case.experts
    y = np.zeros(N_EMBD)
    for e, p in zip(*choose(experts.router, w, -x if case.own_input else x), strict=True):
        if experts.weigh_input:
            y += feed_forward(experts.act, w, p * x, "exps", e)
        else:
            y += p * feed_forward(experts.act, w, x, "exps", e)
    if experts.n_ff_shared:
        gate = sigmoid(w["ffn_gate_inp_shexp.weight"] @ x) if experts.shared_gate else 1.0
        y += gate * feed_forward(experts.act, w, x, "shexp")
    return y


# --- tests ---


def tokens(seed: int = 1) -> F32Array:
    return np.random.default_rng(seed).standard_normal((N_TOKENS, N_EMBD)).astype(np.float32)


@pytest.mark.parametrize("name", CASES)
def test_experts(name: str, run: Callable[..., F32Array]) -> None:
    case, x = CASES[name], tokens()
    weights = weights_of(case)
    actual = run(block(case), weights, x)
    wanted = np.array([expected(case, weights, row.astype(np.float64)) for row in x])
    np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["softmax renorm", "groups", "softmax of the chosen", "scales"])
def test_a_token_has_the_same_bits_alone(name: str, run: Callable[..., F32Array]) -> None:
    case, x = CASES[name], tokens()
    weights = weights_of(case)
    together = run(block(case), weights, x)
    assert np.array_equal(
        np.concatenate([run(block(case), weights, row[None]) for row in x]), together
    )


def test_the_first_of_equal_experts_is_chosen(run: Callable[..., F32Array]) -> None:
    case, x = CASES["softmax renorm"], tokens()
    weights = weights_of(case)
    weights["ffn_gate_inp.weight"][:] = weights["ffn_gate_inp.weight"][0]
    actual = run(block(case), weights, x)
    for name in ("gate", "up", "down"):  # other experts do not matter
        weights[f"ffn_{name}_exps.weight"][N_USED:] = np.nan
    assert np.array_equal(run(block(case), weights, x), actual)
