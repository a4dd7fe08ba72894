"""Pinned memory: weights of ops that devices take over in large batches, if there is room."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from placed import placed
from tiny_models import N_VOCAB, TINY, write_model

from lamella.alloc import Usage, buffer_of, tensor_get
from lamella.base.errors import OutOfMemoryError
from lamella.graph import GGMLType, Op
from lamella.kernels.cpu import CpuDevice
from lamella.kernels.sim import SimDevice
from lamella.model import loader
from lamella.model.batch import Batch
from lamella.model.context import Context
from lamella.model.gguf import file as gguf_file
from lamella.model.loader import LoadedModel, load_model
from lamella.model.params import ContextParams
from lamella.model.placement import Placement

N_TOKENS = 40


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_model(TINY["mixtral"], tmp_path / "m.gguf", GGMLType.Q4_0, split_experts=True)
    return tmp_path / "m.gguf"


def taker() -> SimDevice:
    """Return a device that takes matrix products of any batch over from the CPU."""
    compute = CpuDevice(1).new_compute
    return SimDevice("SIM0", offload_ops=[Op.MUL_MAT, Op.MUL_MAT_ID], compute=compute)


def load(path: Path, gpu: SimDevice, n_gpu_layers: int, op_offload: bool = True) -> LoadedModel:
    return load_model(
        path, placed(CpuDevice(1), (gpu,), n_gpu_layers=n_gpu_layers, op_offload=op_offload)
    )


def memories(model: LoadedModel) -> dict[str, str]:
    """Return the buffer type of each weight, checked against its home."""
    found = {name: buffer_of(tensor).buft for name, tensor in model.weights.items()}
    assert found == {name: home.buft for name, home in model.homes.items()}
    return {name: buft.name for name, buft in found.items()}


def logits(model: LoadedModel) -> bytes:
    with Context(model, ContextParams(n_ctx=64)) as context:
        seq = context.pool.new_sequence()
        context.append(seq, N_TOKENS)
        batch = Batch()
        batch.add([(7 * i) % N_VOCAB for i in range(N_TOKENS)], seq, 0, n_outputs=N_TOKENS)
        return context.decode(batch).tobytes()


def test_only_weights_of_offloaded_ops_are_pinned(path: Path) -> None:
    model = load(path, taker(), 2)
    for name, memory in memories(model).items():
        if name.startswith(("blk.1.", "output")):
            assert memory == "SIM0", name
        elif "norm" in name or name == "token_embd.weight":  # read by MUL and GET_ROWS
            assert memory.startswith("CPU"), name
        else:
            assert memory == "SIM0_Host", name
            assert model.homes[name].device.name == "CPU"
            assert buffer_of(model.weights[name]).usage is Usage.WEIGHTS


def test_without_op_offload_nothing_is_pinned(path: Path) -> None:
    kinds = set(memories(load(path, taker(), 1, op_offload=False)).values())
    assert kinds == {"SIM0", "CPU", "CPU_REPACK"}


def test_a_device_without_op_offload_pins_nothing(path: Path) -> None:
    assert "SIM0_Host" not in memories(load(path, SimDevice("SIM0"), 1)).values()


def test_a_device_without_layers_is_in_use_for_op_offload(path: Path) -> None:
    assert [d.name for d in load(path, taker(), 0).devices] == ["SIM0", "CPU"]
    assert [d.name for d in load(path, taker(), 0, op_offload=False).devices] == ["CPU"]


@pytest.mark.parametrize("n_gpu_layers", [0, 1, 2])
def test_results_do_not_depend_on_pinning(path: Path, n_gpu_layers: int) -> None:
    pinned = load(path, taker(), n_gpu_layers)
    plain = load_model(path, Placement(cpu=CpuDevice(1, repack=False)))
    assert "SIM0_Host" in memories(pinned).values()
    assert logits(pinned) == logits(plain)


def test_pinned_memory_is_filled_in_slices(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only repacked weights need all of a tensor at once."""
    whole = []
    monkeypatch.setattr(gguf_file, "SLICE_BYTES", 100)
    monkeypatch.setattr(
        loader,
        "_copy_whole",
        lambda file, tensor, *_: whole.append(buffer_of(tensor).buft.name),
    )
    model = load(path, taker(), 1)
    assert "SIM0_Host" not in whole
    monkeypatch.undo()
    expected = load_model(path, Placement(cpu=CpuDevice(1, repack=False)))
    pinned = [name for name, memory in memories(model).items() if memory == "SIM0_Host"]
    assert pinned
    for name in pinned:
        assert bytes(tensor_get(model.weights[name])) == bytes(tensor_get(expected.weights[name]))


def test_weights_go_to_pageable_memory_if_pinning_fails(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gpu = taker()
    assert gpu.host_buffer_type is not None
    gpu.host_buffer_type.capacity = 1000
    with caplog.at_level(logging.WARNING, "lamella"):
        model = load(path, gpu, 1)
    (warning,) = caplog.messages
    assert warning.startswith("out of memory: SIM0_Host cannot allocate ")
    assert warning.endswith("the CPU's weights are in pageable memory, copies are slower")
    found = memories(model)
    assert found["blk.0.attn_q.weight"] == "CPU"
    assert "SIM0_Host" not in found.values()
    assert [d.name for d in model.devices] == ["SIM0", "CPU"]
    assert logits(model) == logits(load(path, taker(), 1))
    memory = [gpu.buffer_type, *{home.buft for home in model.homes.values()}]
    model.free()
    assert [buft.used for buft in memory] == [0] * len(memory)


def test_other_memory_that_is_too_small_is_an_error(path: Path) -> None:
    gpu = taker()
    gpu.buffer_type.capacity = 1000
    with pytest.raises(OutOfMemoryError, match="SIM0 cannot allocate"):
        load(path, gpu, 2)
    assert gpu.host_buffer_type is not None
    assert gpu.host_buffer_type.used == 0


def test_an_override_to_pinned_memory(path: Path) -> None:
    gpu, cpu = taker(), CpuDevice(1)
    assert gpu.host_buffer_type is not None
    params = Placement(cpu=cpu, devices=(gpu,), overrides=(("blk", gpu.host_buffer_type),))
    model = load_model(path, params)
    assert memories(model)["blk.1.attn_norm.weight"] == "SIM0_Host"
    assert logits(model)
