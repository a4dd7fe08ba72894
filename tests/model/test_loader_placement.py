"""Homes of weights: layers on devices, shares, overrides, and unsupported ops."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tiny_models import TINY, Tiny, write_model

from lamella.alloc import HostBufferType
from lamella.base.errors import RequestError, UnsupportedModelError
from lamella.graph import GGMLType, Op
from lamella.kernels.cpu import CpuDevice
from lamella.kernels.sim import SimDevice
from lamella.model.arch import open_architecture
from lamella.model.gguf import open_gguf
from lamella.model.params import PlacementParams
from lamella.model.placement import (
    Home,
    Overrides,
    Placement,
    layer_devices,
    moe_overrides,
    place,
)
from lamella.sched import Device, DeviceType

CPU = SimDevice("CPU", DeviceType.CPU)
GPU = SimDevice("SIM0")
OTHER = SimDevice("SIM1")


def names(devices: list[Device]) -> str:
    """Return a text like `CC0|0`: a character for each layer's device, then that of the output."""
    letters = [{"CPU": "C", "SIM0": "0", "SIM1": "1", "SIM2": "2"}[d.name] for d in devices]
    return "".join(letters[:-1]) + "|" + letters[-1]


@pytest.mark.parametrize(
    ("n_gpu_layers", "expected"),
    [
        (0, "CCCC|C"),
        (1, "CCCC|0"),
        (2, "CCC0|0"),
        (4, "C000|0"),
        (5, "0000|0"),
        (99, "0000|0"),
        (-1, "0000|0"),
    ],
)
def test_the_last_layers_go_to_the_device(n_gpu_layers: int, expected: str) -> None:
    params = Placement(cpu=CPU, devices=(GPU,), params=PlacementParams(n_gpu_layers=n_gpu_layers))
    assert names(layer_devices(4, params)) == expected


def test_without_devices_everything_is_on_the_cpu() -> None:
    assert names(layer_devices(2, Placement(cpu=CPU))) == "CC|C"


GIB = 2**30
SMALL, LARGE = SimDevice("SIM0", memory=GIB), SimDevice("SIM1", memory=3 * GIB)
FULL = SimDevice("SIM2", memory=0)


@pytest.mark.parametrize(
    ("devices", "split", "n_gpu_layers", "expected"),
    [
        ((SMALL, LARGE), None, -1, "0011111|1"),  # by free memory
        ((SMALL, LARGE), (0.0, 0.0), -1, "0011111|1"),
        ((SMALL, LARGE), None, 4, "CCCC011|1"),
        ((SMALL, LARGE), (1.0, 1.0), -1, "0000111|1"),
        ((SMALL, LARGE), (3.0, 1.0), -1, "0000001|1"),
        ((SMALL, LARGE), (0.0, 1.0), -1, "1111111|1"),
        ((SMALL, LARGE), (1.0,), -1, "0000000|0"),  # missing shares are 0
        ((FULL, LARGE), None, -1, "1111111|1"),
        ((SMALL, FULL, LARGE), (1.0, 1.0, 2.0), -1, "0022111|1"),
        ((FULL,), None, -1, "2222222|2"),  # allocation then fails with an error
    ],
)
def test_shares(
    devices: tuple[Device, ...], split: tuple[float, ...] | None, n_gpu_layers: int, expected: str
) -> None:
    params = Placement(
        cpu=CPU,
        devices=devices,
        params=PlacementParams(tensor_split=split, n_gpu_layers=n_gpu_layers),
    )
    assert names(layer_devices(7, params)) == expected


# --- weights ---


def homes(
    tiny: Tiny, tmp_path: Path, params: Placement, type: GGMLType = GGMLType.F32
) -> dict[str, Home]:
    """Return the homes of all weights of a model with all optional weights."""
    write_model(tiny, tmp_path / "m.gguf")
    with open_gguf(tmp_path / "m.gguf") as file:
        arch = open_architecture(file)
    types = {s: type if len(s.ne) > 1 else GGMLType.F32 for s in arch.weights()}
    return place(tmp_path / "m.gguf", arch.hp, types, params)


def test_weights_follow_their_layer_and_the_embedding_stays(tmp_path: Path) -> None:
    params = Placement(cpu=CPU, devices=(GPU,), params=PlacementParams(n_gpu_layers=2))
    found = homes(TINY["llama-3.1"], tmp_path, params)
    on_gpu = {name for name, home in found.items() if home == (GPU, GPU.buffer_type)}
    assert on_gpu == {n for n in found if n.startswith(("blk.1.", "output", "cls."))}
    rest = set(found) - on_gpu
    assert {found[name] for name in rest} == {(CPU, CPU.buffer_type)}
    assert {"token_embd.weight", "blk.0.rope_freqs.weight"} <= rest


@pytest.mark.parametrize(("n_gpu_layers", "home"), [(-1, GPU), (2, CPU)])
def test_embeddings_on_the_device_of_the_first_layer(
    n_gpu_layers: int, home: Device, tmp_path: Path
) -> None:
    params = PlacementParams(n_gpu_layers=n_gpu_layers, embd_offload=True)
    found = homes(TINY["llama"], tmp_path, Placement(cpu=CPU, devices=(GPU,), params=params))
    assert found["token_embd.weight"] == (home, home.buffer_type)
    weak = SimDevice("SIM0", ops=set(Op) - {Op.GET_ROWS})
    found = homes(TINY["llama"], tmp_path, Placement(cpu=CPU, devices=(weak,), params=params))
    assert found["token_embd.weight"].device is CPU


def test_unsupported_weights_go_to_the_cpu(tmp_path: Path) -> None:
    weak = SimDevice("SIM0", ops=set(Op) - {Op.MUL_MAT_ID})
    found = homes(TINY["mixtral"], tmp_path, Placement(cpu=CPU, devices=(weak,)))
    on_cpu = {name for name, home in found.items() if home.device is CPU}
    assert on_cpu == {n for n in found if "_exps.weight" in n or n == "token_embd.weight"}


@pytest.mark.parametrize("op", [Op.MUL, Op.ADD, Op.ROPE, Op.MUL_MAT])
def test_support_is_checked_with_the_op_of_each_weight(op: Op, tmp_path: Path) -> None:
    weak = SimDevice("SIM0", ops=set(Op) - {op})
    found = homes(TINY["llama-3.1"], tmp_path, Placement(cpu=CPU, devices=(weak,)))
    kinds = {"norm": Op.MUL, "scale": Op.MUL, "bias": Op.ADD, "rope_freqs": Op.ROPE}
    for name, home in found.items():
        its = next((o for kind, o in kinds.items() if kind in name), Op.MUL_MAT)
        on_cpu = its is op or name == "token_embd.weight"
        assert home.device is (CPU if on_cpu else weak), name


@pytest.mark.parametrize("name", ["llama", "mixtral"])
def test_weights_that_no_device_supports_are_refused(name: str, tmp_path: Path) -> None:
    op = {"llama": Op.MUL_MAT, "mixtral": Op.MUL_MAT_ID}[name]
    cpu = SimDevice("CPU", DeviceType.CPU, ops=set(Op) - {op})
    with pytest.raises(
        UnsupportedModelError, match=rf"m\.gguf: tensor .*weight: CPU cannot run {op.name} .* F32"
    ):
        homes(TINY[name], tmp_path, Placement(cpu=cpu))


@pytest.mark.parametrize("type", [GGMLType.I32, GGMLType.F64])
def test_types_that_weights_cannot_have(type: GGMLType, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=rf"token_embd\.weight: .*{type.name}"):
        homes(TINY["llama"], tmp_path, Placement(cpu=CPU), type)


def test_overrides_take_precedence(tmp_path: Path) -> None:
    overrides = (
        (r"ffn_(up|down)_exps", CPU.buffer_type),
        (r"blk\.1\.", OTHER.buffer_type),
        (r"^token_embd", OTHER.buffer_type),
    )
    params = Placement(
        cpu=CPU,
        devices=(GPU, OTHER),
        overrides=overrides,
        params=PlacementParams(tensor_split=(1.0,)),
    )
    found = homes(TINY["mixtral"], tmp_path, params)
    assert found["blk.1.ffn_up_exps.weight"] == (CPU, CPU.buffer_type)
    assert found["blk.1.ffn_gate_exps.weight"] == (OTHER, OTHER.buffer_type)
    assert found["token_embd.weight"] == (OTHER, OTHER.buffer_type)
    assert found["blk.0.ffn_gate_exps.weight"] == (GPU, GPU.buffer_type)


def test_an_override_to_memory_without_a_capable_device(tmp_path: Path) -> None:
    weak = SimDevice("SIM0", ops=set(Op) - {Op.MUL_MAT})
    params = Placement(cpu=CPU, devices=(weak,), overrides=(("attn_q", weak.buffer_type),))
    with pytest.raises(RequestError, match=r"blk\.0\.attn_q\.weight.*SIM0.*can run MUL_MAT"):
        homes(TINY["llama"], tmp_path, params)


def test_an_override_to_a_buffer_type_of_several_devices(tmp_path: Path) -> None:
    """The first device that can compute with the weight is used."""
    beside = SimDevice(
        "SIM0", DeviceType.ACCEL, ops=set(Op) - {Op.MUL_MAT}, reads=[CPU.buffer_type]
    )
    params = Placement(cpu=CPU, devices=(beside,), overrides=(("blk", CPU.buffer_type),))
    found = homes(TINY["llama"], tmp_path, params)
    assert found["blk.0.attn_q.weight"] == (CPU, CPU.buffer_type)
    assert found["blk.0.attn_norm.weight"] == (beside, CPU.buffer_type)


PACKING = CpuDevice(1)
PLAIN, (REPACK,) = PACKING.buffer_type, PACKING.extra_buffer_types


def test_an_override_to_the_cpu_uses_its_best_buffer_type(tmp_path: Path) -> None:
    overrides = (("ffn_(up|down)", PLAIN), ("attn_norm", PLAIN))
    params = Placement(cpu=PACKING, devices=(GPU,), overrides=overrides)
    found = homes(TINY["llama"], tmp_path, params, GGMLType.Q4_0)
    assert found["blk.0.ffn_up.weight"] == (PACKING, REPACK)
    assert found["blk.0.attn_norm.weight"] == (PACKING, PLAIN)  # it has no better one for a vector
    assert found["blk.0.ffn_gate.weight"] == (GPU, GPU.buffer_type)


def test_an_override_to_the_cpu_is_pinned_with_op_offload(
    tmp_path: Path,
) -> None:
    taker = SimDevice("SIM0", offload_ops=[Op.MUL_MAT])
    overrides = (("ffn_up", PLAIN), (r"ffn_down\.weight", REPACK))
    params = Placement(cpu=PACKING, devices=(taker,), overrides=overrides)
    found = homes(TINY["llama"], tmp_path, params, GGMLType.Q4_0)
    assert found["blk.0.ffn_up.weight"] == (PACKING, taker.host_buffer_type)
    assert found["blk.0.ffn_down.weight"] == (PACKING, REPACK)  # exactly the given buffer type
    alone = replace(params, params=PlacementParams(op_offload=False))
    found = homes(TINY["llama"], tmp_path, alone, GGMLType.Q4_0)
    assert found["blk.0.ffn_up.weight"] == (PACKING, REPACK)


@pytest.mark.parametrize(
    ("n", "layers"), [(0, set()), (1, {0}), (2, {0, 1}), (9, {0, 1}), (-1, {0, 1})]
)
@pytest.mark.parametrize("name", ["mixtral", "qwen3moe", "llama"])
def test_experts_of_the_first_layers_stay_on_the_cpu(
    name: str, n: int, layers: set[int], tmp_path: Path
) -> None:
    overrides = moe_overrides(2, n, CPU.buffer_type)
    params = Placement(cpu=CPU, devices=(GPU,), overrides=overrides)
    found = homes(TINY[name], tmp_path, params)
    kinds = ("gate", "up", "down") if name != "llama" else ()
    names = [f"ffn_{kind}_exps.{part}" for kind in kinds for part in ("weight", "scale")]
    experts = {f"blk.{il}.{name}" for il in layers for name in names}
    on_cpu = {weight for weight, home in found.items() if home.device is CPU}
    assert on_cpu == experts | {"token_embd.weight"}


def test_experts_of_many_layers_by_number() -> None:
    params = replace(BASE, overrides=moe_overrides(16, 2, CPU.buffer_type))
    for il, forced in ((0, True), (1, True), (2, False), (10, False), (11, False)):
        assert (params.override(f"blk.{il}.ffn_up_exps.weight") is CPU.buffer_type) is forced
    assert len(moe_overrides(2, 10**6, CPU.buffer_type)) == 1  # one override for all layers
    for name in ("ffn_gate_inp.weight", "ffn_up_shexp.weight", "ffn_up.weight"):
        assert params.override(f"blk.0.{name}") is None


def test_the_first_override_counts() -> None:
    experts: Overrides = moe_overrides(2, -1, CPU.buffer_type)
    params = replace(BASE, overrides=((r"blk\.1\.", OTHER.buffer_type), *experts))
    assert params.override("blk.1.ffn_up_exps.weight") is OTHER.buffer_type
    assert params.override("blk.0.ffn_up_exps.weight") is CPU.buffer_type


# --- wrong parameters ---


BASE = Placement(cpu=CPU, devices=(GPU, OTHER))


def split(*shares: float) -> dict[str, object]:
    return {"params": PlacementParams(tensor_split=shares)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cpu": GPU}, "cpu is SIM0, a gpu"),
        ({"devices": (CPU,)}, "CPU is a CPU, which is always included"),
        ({"devices": (GPU, GPU)}, "SIM0 is listed twice"),
        (split(1.0, 1.0, 1.0), "3 shares for 2 devices"),
        (split(1.0, -1.0), "share -1.0"),
        (split(float("nan"), 1.0), "share nan"),
        (split(float("inf"), 1.0), "share inf"),
        ({"overrides": (("blk.(", CPU.buffer_type),)}, "'blk.\\(' is not a regular expression"),
        ({"overrides": (("x", HostBufferType("REMOTE")),)}, "can use REMOTE; .*SIM0, SIM1, CPU"),
    ],
)
def test_wrong_parameters(change: dict[str, object], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        replace(BASE, **change)  # type: ignore[arg-type]
