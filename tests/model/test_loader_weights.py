"""Loaded weights: home, usage and content, for every type, architecture and number of layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from gguf import GGUFReader, quants
from gguf.constants import GGMLQuantizationType
from matrix import combinations
from placed import placed
from tiny_models import TINY, Tiny, write_model

from lamella.alloc import HostBufferType, Usage, buffer_of, tensor_get
from lamella.alloc.buffer import Bytes
from lamella.alloc.host import HostBuffer, aligned_zeros
from lamella.graph import GGMLType, Tensor
from lamella.graph.ops.check import is_matrix_type
from lamella.kernels.reference.arrays import can_dequantize
from lamella.kernels.sim import SimDevice
from lamella.kernels.sim.memory import SimBufferType
from lamella.model.gguf import GGUFFile, TensorInfo
from lamella.model.gguf import file as gguf_file
from lamella.model.loader import LoadedModel, load_model
from lamella.model.placement import Placement
from lamella.sched import DeviceType

WEIGHT_TYPES = [t for t in GGMLType if is_matrix_type(t) and can_dequantize(t)]
NAMES = ("llama-3.1", "mixtral", "qwen2", "qwen3", "qwen3moe")


def model_for(name: str, type: GGMLType) -> Tiny:
    """Return a tiny model whose rows are whole blocks of a type."""
    if type.block_size <= 64:
        return replace(TINY[name], n_ff=128, n_ff_exp=64)
    n_expert = min(TINY[name].n_expert, 3)
    wide = replace(TINY[name], n_embd=256, n_ff=256, n_head=4, head_dim=64, n_ff_exp=256)
    return replace(wide, n_expert=n_expert)


def devices() -> tuple[SimDevice, SimDevice]:
    return SimDevice("SIM0"), SimDevice("CPU", DeviceType.CPU)


def load(
    path: Path,
    n_gpu_layers: int = 0,
    gpus: Sequence[SimDevice] = (),
    progress: Callable[[int, int], None] | None = None,
    **params: Any,
) -> LoadedModel:
    gpu, cpu = devices()
    placement = placed(cpu, gpus or (gpu,), n_gpu_layers=n_gpu_layers, **params)
    return load_model(path, placement, progress)


def in_file(path: Path) -> dict[str, Bytes]:
    """Return every tensor's bytes, read by the `gguf` package."""
    return {t.name: t.data.view(np.uint8).reshape(-1) for t in GGUFReader(path).tensors}


def source_of(name: str, file: Mapping[str, object]) -> str:
    """Return the name of a weight's tensor in the file."""
    if name.endswith("rope_freqs.weight"):
        return "rope_freqs.weight"
    return "token_embd.weight" if name == "output.weight" and name not in file else name


def decoded(tensor: Tensor) -> npt.NDArray[np.float32]:
    data = tensor_get(tensor).reshape(*tensor.ne[: tensor.n_dims][:0:-1], -1)
    return quants.dequantize(data, GGMLQuantizationType(int(tensor.type)))


def expected_device(name: str, n_layer: int, n_gpu_layers: int) -> str:
    if name.startswith("token_embd"):
        return "CPU"
    layer = int(name.split(".")[1]) if name.startswith("blk.") else n_layer
    return "SIM0" if layer >= n_layer + 1 - n_gpu_layers else "CPU"


@pytest.mark.parametrize(("name", "type"), combinations(NAMES, WEIGHT_TYPES))
def test_every_weight_has_the_right_home_and_content(
    name: str, type: GGMLType, tmp_path: Path
) -> None:
    tiny = replace(model_for(name, type), n_vocab=32)
    path = tmp_path / "m.gguf"
    write_model(tiny, path, type, vocab=False)
    file = in_file(path)
    for n_gpu_layers in range(tiny.n_layer + 2):
        model = load(path, n_gpu_layers)
        assert {source_of(weight, file) for weight in model.weights} == set(file)
        for weight, tensor in model.weights.items():
            home, buffer = model.homes[weight], buffer_of(tensor)
            assert home.device.name == expected_device(weight, tiny.n_layer, n_gpu_layers)
            assert buffer.buft is home.buft is home.device.buffer_type
            assert buffer.usage is Usage.WEIGHTS
            assert tensor.type is (type if tensor.n_dims > 1 else GGMLType.F32), weight
            assert np.array_equal(tensor_get(tensor), file[source_of(weight, file)]), weight
        model.free()


@pytest.mark.parametrize("type", WEIGHT_TYPES, ids=lambda t: t.name)
def test_content_decodes_as_the_gguf_package_does(type: GGMLType, tmp_path: Path) -> None:
    tiny = replace(model_for("llama-3.1", type), n_layer=1)
    expected = write_model(tiny, tmp_path / "m.gguf", type)
    model = load(tmp_path / "m.gguf", 1)
    for weight, tensor in model.weights.items():
        assert np.array_equal(decoded(tensor), expected[source_of(weight, expected)]), weight


# --- tied weights ---


def test_tied_embeddings_are_copied_to_the_output_device(tmp_path: Path) -> None:
    write_model(TINY["llama-tied"], tmp_path / "m.gguf")
    on_cpu = load(tmp_path / "m.gguf").weights
    assert on_cpu["output.weight"] is on_cpu["token_embd.weight"]
    split = load(tmp_path / "m.gguf", 1).weights
    assert split["output.weight"] is not split["token_embd.weight"]
    assert split["output.weight"].name == "output.weight"


def test_each_device_has_rope_factors_once(tmp_path: Path) -> None:
    write_model(replace(TINY["llama-3.1"], n_layer=4), tmp_path / "m.gguf")
    weights = load(tmp_path / "m.gguf", 3).weights
    factors = [weights[f"blk.{il}.rope_freqs.weight"] for il in range(4)]
    assert factors[0] is factors[1]
    assert factors[2] is factors[3]
    assert factors[1] is not factors[2]


def test_optional_weights_may_be_absent(tmp_path: Path) -> None:
    write_model(TINY["llama"], tmp_path / "m.gguf")
    weights = load(tmp_path / "m.gguf").weights
    assert not [name for name in weights if name.endswith(".bias") or "rope" in name]
    write_model(TINY["llama-bias"], tmp_path / "m.gguf", without=["blk.0.attn_k.bias"])
    weights = load(tmp_path / "m.gguf").weights
    assert "blk.0.attn_k.bias" not in weights
    assert "blk.1.attn_k.bias" in weights


# --- other layouts ---


@pytest.mark.parametrize("slice_bytes", [1000, 4 << 20])
def test_single_experts_are_concatenated(
    slice_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf_file, "SLICE_BYTES", slice_bytes)
    write_model(TINY["mixtral"], tmp_path / "whole.gguf", GGMLType.Q4_0)
    write_model(TINY["mixtral"], tmp_path / "split.gguf", GGMLType.Q4_0, split_experts=True)
    whole, split = load(tmp_path / "whole.gguf"), load(tmp_path / "split.gguf", 2)
    assert whole.weights.keys() == split.weights.keys()
    for name, tensor in split.weights.items():
        assert np.array_equal(tensor_get(tensor), tensor_get(whole.weights[name])), name


@pytest.mark.parametrize("type", [GGMLType.F16, GGMLType.BF16, GGMLType.Q8_0])
def test_vectors_are_loaded_as_float32(type: GGMLType, tmp_path: Path) -> None:
    vectors = ["blk.0.attn_norm.weight", "blk.1.attn_q.bias", "output_norm.weight"]
    expected = write_model(TINY["qwen2"], tmp_path / "m.gguf", types=dict.fromkeys(vectors, type))
    model = load(tmp_path / "m.gguf", 2)
    for name in vectors:
        assert model.weights[name].type is GGMLType.F32
        assert np.array_equal(decoded(model.weights[name]), expected[name])


class RepackedBuffer(HostBuffer):
    """Stores every tensor's bytes in reverse order. A tensor must be written at once."""

    def _write(self, offset: int, data: Bytes) -> None:
        super()._write(offset, data[::-1])

    def _read(self, offset: int, size: int) -> Bytes:
        return super()._read(offset, size)[::-1].copy()


class RepackedBufferType(HostBufferType):
    def _alloc(self, size: int) -> RepackedBuffer:
        return RepackedBuffer(self, aligned_zeros(size, self.alignment, self.name))


@pytest.mark.parametrize("split_experts", [False, True])
def test_repacked_weights(
    split_experts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf_file, "SLICE_BYTES", 100)
    repacked = RepackedBufferType("REPACKED")
    cpu = SimDevice("CPU", DeviceType.CPU, reads=(repacked,))
    expected = write_model(TINY["mixtral"], tmp_path / "m.gguf", split_experts=split_experts)
    params = Placement(cpu=cpu, overrides=((r"blk\.", repacked),))
    model = load_model(tmp_path / "m.gguf", params)
    for name, tensor in model.weights.items():
        assert (buffer_of(tensor).buft is repacked) is name.startswith("blk.")
        assert np.array_equal(decoded(tensor), expected[name]), name


def test_buffers_of_limited_size(tmp_path: Path) -> None:
    expected = write_model(TINY["llama"], tmp_path / "m.gguf")
    memory = SimBufferType("SIM0", max_size=40_000)
    model = load(tmp_path / "m.gguf", -1, [SimDevice("SIM0", buffer_type=memory)])
    on_gpu = [t for name, t in model.weights.items() if name != "token_embd.weight"]
    assert len({id(buffer_of(t)) for t in on_gpu}) > 3
    for name, tensor in model.weights.items():
        assert np.array_equal(decoded(tensor), expected[name])


# --- reading ---


def test_weights_are_read_in_the_order_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []
    read = GGUFFile._bytes

    def spy_read(file: GGUFFile, info: TensorInfo, *args: int) -> Bytes:
        names.append(info.name)
        return read(file, info, *args)

    monkeypatch.setattr(GGUFFile, "_bytes", spy_read)
    write_model(TINY["qwen2"], tmp_path / "m.gguf")
    load(tmp_path / "m.gguf")
    assert names == list(in_file(tmp_path / "m.gguf"))


@pytest.mark.parametrize("n_gpu_layers", [0, 3])
def test_progress(n_gpu_layers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_file, "SLICE_BYTES", 256)
    write_model(TINY["llama-tied"], tmp_path / "m.gguf", GGMLType.F16)
    calls: list[tuple[int, int]] = []
    model = load(tmp_path / "m.gguf", n_gpu_layers, progress=lambda *at: calls.append(at))
    total = sum(t.nbytes for t in set(model.weights.values()))
    done = [n for n, _ in calls]
    assert {n for _, n in calls} == {total}
    assert done == sorted(set(done))
    assert done[-1] == total
    assert done[0] == 0
    assert 91 <= len(calls) <= 101


# --- the loaded model ---


def test_attributes_of_a_loaded_model(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_model(TINY["qwen3moe"], path)
    model = load(path, 2)
    assert model.path == path
    assert model.n_bytes == path.stat().st_size
    assert model.arch.name == "qwen3moe"
    assert model.metadata.int("qwen3moe.block_count") == model.hp.n_layer == 2
    assert [d.name for d in model.devices] == ["SIM0", "CPU"]
    assert [model.kv_home(il).name for il in range(2)] == ["CPU", "SIM0"]
    path.unlink()  # the file is not needed any more
    assert model.metadata.strings("tokenizer.ggml.tokens")[1] == "<s>"


def test_devices_without_weights_are_not_in_use(tmp_path: Path) -> None:
    write_model(TINY["llama"], tmp_path / "m.gguf")
    assert [d.name for d in load(tmp_path / "m.gguf", 0).devices] == ["CPU"]
    first, second = SimDevice("SIM0"), SimDevice("SIM1")
    split = load(tmp_path / "m.gguf", -1, [first, second], tensor_split=(0.0, 1.0))
    assert [d.name for d in split.devices] == ["SIM1", "CPU"]


def test_an_override_keeps_the_keys_and_values_with_their_layer(tmp_path: Path) -> None:
    write_model(TINY["llama"], tmp_path / "m.gguf")
    gpu, cpu = devices()
    overrides = ((r"blk\.1\.", cpu.buffer_type),)
    params = Placement(cpu=cpu, devices=(gpu,), overrides=overrides)
    model = load_model(tmp_path / "m.gguf", params)
    assert model.kv_home(1) is gpu
    assert model.homes["blk.1.attn_q.weight"].device is cpu


def test_free_releases_all_memory_and_may_be_called_twice(tmp_path: Path) -> None:
    write_model(TINY["llama"], tmp_path / "m.gguf")
    gpu, cpu = devices()
    model = load_model(
        tmp_path / "m.gguf",
        placed(cpu, (gpu,), n_gpu_layers=1),
    )
    assert gpu.buffer_type.used > 0
    assert cpu.buffer_type.used > 0
    model.free()
    model.free()
    assert gpu.buffer_type.used == cpu.buffer_type.used == 0
