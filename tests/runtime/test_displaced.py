"""Displaced nodes: found if a device lacks an op or a type, not if the user moved them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from matrix import combinations
from placed import placed
from tiny_models import TINY, write_model

from lamella.base.errors import PlacementError
from lamella.graph import GGMLType, Op, Tensor
from lamella.kernels.cpu import CpuDevice
from lamella.kernels.sim import SimDevice
from lamella.model.context import Context
from lamella.model.loader import LoadedModel, load_model
from lamella.model.params import ContextParams
from lamella.model.params import parse_overrides as parse
from lamella.model.placement import moe_overrides
from lamella.runtime.displaced import Displaced, displaced, refuse, summary
from lamella.sched import Device

N_PREFILL = 64
Find = Callable[..., list[Displaced]]


class Picky(SimDevice):
    """A simulated device without kernels for some nodes."""

    def __init__(self, refuses: Callable[[Tensor], bool], name: str = "SIM0") -> None:
        super().__init__(name, compute=CpuDevice(1).new_compute)
        self.refuses = refuses

    def supports_op(self, op: Tensor) -> bool:
        return super().supports_op(op) and not self.refuses(op)


def sim(name: str = "SIM0", **options: object) -> SimDevice:
    return SimDevice(name, compute=CpuDevice(1).new_compute, **options)  # type: ignore[arg-type]


def weighs(*types: GGMLType) -> Callable[[Tensor], bool]:
    """True for products with matrices of these types."""
    return lambda node: node.op is Op.MUL_MAT and node.src[0].type in types


@pytest.fixture
def find(tmp_path: Path) -> Iterator[Find]:
    """`find(name, device...)` returns the displaced nodes of a tiny model's prefill or decode
    graph."""
    opened: list[LoadedModel | Context] = []

    def made(
        name: str,
        *devices: Device,
        type: GGMLType = GGMLType.F32,
        n_tokens: int = 1,
        context: ContextParams | None = None,
        cpu: CpuDevice | None = None,
        **params: Any,
    ) -> list[Displaced]:
        path = tmp_path / f"{name}-{type.name}.gguf"
        if not path.exists():
            write_model(TINY[name], path, type)
        cpu = cpu or CpuDevice(1)
        model = load_model(path, placed(cpu, devices, **params))
        opened.append(model)
        context = context or ContextParams(n_ctx=N_PREFILL, n_ubatch=N_PREFILL)
        model_context = Context(model, context)
        opened.append(model_context)
        scheduled = model_context.plan_graph(n_tokens, 1)
        return displaced(scheduled, model)

    yield made
    for thing in reversed(opened):
        thing.close() if isinstance(thing, Context) else thing.free()


def kv(**params: object) -> ContextParams:
    return ContextParams(n_ctx=N_PREFILL, n_ubatch=N_PREFILL, **params)  # type: ignore[arg-type]


# --- nothing is displaced ---


@pytest.mark.parametrize(
    ("name", "n_tokens", "n_gpu_layers"), combinations(TINY, [1, N_PREFILL], [None, 2, 1, 0, -1])
)
def test_a_device_that_supports_all_nodes(
    name: str, n_tokens: int, n_gpu_layers: int | None, find: Find
) -> None:
    if n_gpu_layers is not None:
        assert find(name, sim(), n_tokens=n_tokens, n_gpu_layers=n_gpu_layers) == []
        return
    two = (sim("SIM0"), sim("SIM1"))
    assert find(name, *two, n_tokens=n_tokens, tensor_split=(1.0, 1.0)) == []
    assert find(name, n_tokens=n_tokens) == []


def test_quantized_weights_and_pages(find: Find) -> None:
    # a token's keys must be whole blocks of Q8_0
    pages = kv(type_k=GGMLType.Q8_0, type_v=GGMLType.Q8_0)
    assert find("qwen3", sim(), type=GGMLType.Q4_0, context=pages) == []


@pytest.mark.parametrize("n_tokens", [1, N_PREFILL])
def test_pages_on_the_cpu(n_tokens: int, find: Find) -> None:
    assert find("llama", sim(), n_tokens=n_tokens, kv_offload=False) == []


@pytest.mark.parametrize(
    ("name", "n", "n_tokens"), combinations(["mixtral", "qwen3moe"], [-1, 1], [1, N_PREFILL])
)
def test_experts_on_the_cpu(name: str, n: int, n_tokens: int, find: Find) -> None:
    cpu = CpuDevice(1)
    overrides = moe_overrides(2, n, cpu.buffer_type)
    found = find(name, sim(), cpu=cpu, n_tokens=n_tokens, overrides=overrides)
    assert found == []


def test_an_override_to_another_device(find: Find) -> None:
    first, second = sim("SIM0"), sim("SIM1")
    overrides = (("ffn_up", second.buffer_type), ("token_embd", first.buffer_type))
    assert find("llama", first, second, tensor_split=(1.0,), overrides=overrides) == []


# --- missing kernels ---


def test_weights_of_a_type_without_kernels(find: Find) -> None:
    gpu = Picky(weighs(GGMLType.Q4_0))
    found = find("llama", gpu, type=GGMLType.Q4_0, n_gpu_layers=2)
    assert {d.op for d in found} == {"MUL_MAT"}
    assert len(found) == 7 + 1  # the last layer, and the output
    assert {(d.device, d.wanted) for d in found} == {("CPU", "SIM0")}
    why = {d.why for d in found}
    assert why == {"SIM0 has no kernel for MUL_MAT with weights of Q4_0"}
    (fix,) = {d.fix for d in found}
    # rows of 64 or 96 are no whole blocks of 256
    assert fix.startswith("quantize the weights to Q8_0, F16, BF16 or F32, or place them")
    assert r"\.ffn_up\.weight=CPU,\.ffn_down\.weight=CPU,^output\.weight=CPU" in fix


def test_types_that_help_all_nodes_of_a_kind(find: Find) -> None:
    def refuses(node: Tensor) -> bool:
        if node.op is not Op.MUL_MAT:
            return False
        weight = node.src[0]
        return weight.type is GGMLType.Q4_0 or (weight.type, weight.ne[0]) == (GGMLType.Q8_0, 96)

    found = find("llama", Picky(refuses), type=GGMLType.Q4_0)
    assert found[0].fix.startswith("quantize the weights to F16, BF16 or F32, or ")


def test_the_suggested_override_works(find: Find) -> None:
    """With the suggested override, no node is displaced."""
    gpu = Picky(weighs(GGMLType.Q4_0))
    found = find("llama", gpu, type=GGMLType.Q4_0)
    text = found[0].fix.split('-ot "')[1].rstrip('"')
    cpu = CpuDevice(1)
    overrides = tuple((pattern, cpu.buffer_type) for pattern, name in parse(text) if name == "CPU")
    again = find("llama", gpu, type=GGMLType.Q4_0, cpu=cpu, overrides=overrides)
    assert again == []


def test_an_op_without_kernels_for_weights(find: Find) -> None:
    found = find("mixtral", sim(ops=set(Op) - {Op.MUL_MAT_ID}))
    assert {d.node for d in found} == {
        f"ffn_moe_{kind}-{il}" for kind in ("gate", "up", "down") for il in range(2)
    }
    assert all("quantize" not in d.fix for d in found)
    assert found[0].fix.startswith('place them on the CPU explicitly: -ot "\\.ffn_gate_exps')


@pytest.mark.parametrize(
    ("name", "op", "nodes"),
    [
        ("llama", Op.GLU, {"ffn_swiglu-0", "ffn_swiglu-1"}),
        ("llama", Op.ROPE, {"Qcur-0", "Kcur-0", "Qcur-1", "Kcur-1"}),
        ("llama-3.1", Op.ROPE, {"Qcur-0", "Kcur-0", "Qcur-1", "Kcur-1"}),
        ("mixtral", Op.DIV, {"ffn_moe_weights_norm-0", "ffn_moe_weights_norm-1"}),
    ],
)
def test_an_op_without_kernels(name: str, op: Op, nodes: set[str], find: Find) -> None:
    found = find(name, sim(ops=set(Op) - {op}))
    assert {d.node for d in found} == nodes
    assert {(d.op, d.device, d.wanted) for d in found} == {(op.name, "CPU", "SIM0")}
    assert all(
        d.why.startswith(f"SIM0 has no kernel for {op.name} with sources of ") for d in found
    )
    assert all(d.fix == "use another device (-dev), or fewer layers (-ngl)" for d in found)
    only_last = find(name, sim(ops=set(Op) - {op}), n_gpu_layers=2)
    assert {d.node for d in only_last} == {node for node in nodes if node.endswith("-1")}


def test_nodes_without_a_name_belong_to_their_reader_s_layer(find: Find) -> None:
    found = find("llama", sim(ops=set(Op) - {Op.RMS_NORM}), n_gpu_layers=2)
    assert [d.op for d in found] == ["RMS_NORM"] * 3  # two in the last layer, one for the output
    assert all(d.node.startswith("node_") for d in found)
    assert len(find("llama", sim(ops=set(Op) - {Op.RMS_NORM}), n_gpu_layers=1)) == 1


@pytest.mark.parametrize(
    ("refused", "fix"),
    [
        (lambda k, v: k is GGMLType.Q8_0, "-ctk f16"),
        (lambda k, v: v is GGMLType.Q8_0, "-ctv f16"),
        (lambda k, v: GGMLType.Q8_0 in (k, v), "-ctk f16 -ctv f16"),
        (lambda k, v: (k, v) != (GGMLType.BF16, GGMLType.Q8_0), "-ctk bf16"),
        (lambda k, v: True, "-nkvo, which keeps the KV cache and attention on the CPU"),
    ],
)
def test_pages_of_a_type_without_kernels(
    refused: Callable[[GGMLType, GGMLType], bool], fix: str, find: Find
) -> None:
    def refuses(node: Tensor) -> bool:
        return node.op is Op.FLASH_ATTN_EXT and refused(node.src[1].type, node.src[2].type)

    pages = kv(type_k=GGMLType.Q8_0, type_v=GGMLType.Q8_0)
    found = find("qwen3", Picky(refuses), context=pages)
    assert [d.node for d in found] == ["fattn-0", "fattn-1"]
    assert {(d.device, d.wanted) for d in found} == {("CPU", "SIM0")}
    why = "SIM0 has no kernel for FLASH_ATTN_EXT with keys of Q8_0 and values of Q8_0"
    assert {(d.why, d.fix) for d in found} == {(why, fix)}
    assert find("qwen3", Picky(refuses), context=pages, kv_offload=False) == []


def test_a_weight_whose_device_supports_only_small_batches(find: Find) -> None:
    gpu = Picky(lambda node: node.name == "ffn_out-0" and node.ne[1] == N_PREFILL)
    assert find("llama", gpu) == []
    (found,) = find("llama", gpu, n_tokens=N_PREFILL)
    assert (found.node, found.device, found.wanted) == ("ffn_out-0", "CPU", "SIM0")
    assert found.why == "SIM0 has no kernel for MUL_MAT with sources of F32, F32"
    assert found.fix == r'place them on the CPU explicitly: -ot "\.ffn_down\.weight=CPU"'


def test_the_input_embedding_belongs_to_the_cpu(find: Find) -> None:
    assert find("llama", Picky(lambda node: node.name == "inp_embd")) == []


# --- op offload ---


def test_the_input_embedding_on_a_device(find: Find) -> None:
    assert find("llama", sim(), embd_offload=True) == []
    weak = Picky(lambda node: "token_embd.weight" in {src.name for src in node.src})
    (node,) = find("llama", weak, embd_offload=True)
    assert (node.node, node.device, node.wanted) == ("inp_embd", "CPU", "SIM0")
    assert find("llama", weak) == []


def test_op_offload(find: Find) -> None:
    gpu = sim(offload_ops=[Op.MUL_MAT])
    found = find("llama", gpu, n_gpu_layers=1, n_tokens=N_PREFILL)
    assert {(d.op, d.device, d.wanted, d.cause, d.fix) for d in found} == {
        ("MUL_MAT", "SIM0", "CPU", "1.off", "--no-op-offload")
    }
    assert len(found) == 14
    without = find(
        "llama",
        gpu,
        n_gpu_layers=1,
        n_tokens=N_PREFILL,
        op_offload=False,
    )
    assert without == []


# --- messages ---


def node(name: str, **changes: str) -> Displaced:
    fields = {
        "op": "MUL_MAT",
        "device": "CPU",
        "wanted": "SIM0",
        "cause": "1.wgt0",
        "why": "SIM0 has none",
        "fix": "buy one",
    }
    return Displaced(name, **(fields | changes))


def test_one_line_per_kind() -> None:
    many = [node("a-0"), node("b-0"), node("c", op="ADD", fix=""), node("a-0")]
    assert summary(many) == [
        "2 MUL_MAT nodes run on CPU, not on SIM0 (1.wgt0), for example a-0: SIM0 has none; to "
        "change it: buy one",
        "1 ADD node runs on CPU, not on SIM0 (1.wgt0), for example c: SIM0 has none",
    ]
    for change in ({"device": "X"}, {"wanted": "X"}, {"cause": "X"}, {"why": "X"}, {"op": "X"}):
        assert len(summary([node("a"), node("b", **change)])) == 2
    assert summary([]) == []


def test_the_error_of_strict_placement_lists_all_kinds() -> None:
    refuse([])
    with pytest.raises(PlacementError) as refused:
        refuse([node("a-0"), node("b", op="ADD", fix="sell one")])
    text = str(refused.value)
    assert text.startswith("placement is strict, but nodes would be displaced:\n  1 MUL_MAT node")
    assert "for example a-0: SIM0 has none; to change it: buy one\n  1 ADD node" in text
    assert text.endswith("sell one")
