"""CPU_REPACK: memory that packs whole tensors, and which weights of models use it."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader
from packed_run import Bytes, buffer_of, bytes_of, packed_bytes, random_bytes
from reference_run import GUARD, each_type, leaf, normal

from lamella.alloc import HostBufferType, Usage, alloc_tensors, tensor_copy, tensor_get, tensor_set
from lamella.alloc.buffer import tensor_read, view_init
from lamella.base.errors import OutOfMemoryError, RequestError, TensorAccessError
from lamella.base.settings import NO_JIT
from lamella.graph import GGMLType, Op, Tensor, ops
from lamella.kernels.cpu import CpuDevice
from lamella.kernels.cpu.packed import buffer as buffer_module
from lamella.kernels.cpu.packed.buffer import RepackBuffer, RepackBufferType
from lamella.kernels.cpu.packed.formats import FORMATS
from lamella.kernels.sim import SimDevice
from lamella.model.loader import LoadedModel, load_model
from lamella.model.placement import Placement

sys.path.append(str(Path(__file__).parents[1] / "model"))  # the tiny models

from arch_run import Runner
from placed import placed
from tiny_models import TINY, write_model

Q4_0, F32 = GGMLType.Q4_0, GGMLType.F32

each_count = pytest.mark.parametrize("n_threads", [1, 2, 3])


def filled(type: GGMLType, *shape: int, n_threads: int = 1) -> tuple[Tensor, RepackBuffer, Bytes]:
    """A tensor of random bytes, its buffer, and the bytes."""
    t, raw = Tensor(type, shape[::-1]), bytes_of(random_bytes(type, *shape))
    buffer = buffer_of(t, n_threads)
    buffer.set_tensor(t, raw)
    return t, buffer, raw


# --- memory ---


def test_the_buffer_type() -> None:
    buft = RepackBufferType(2)
    assert (buft.name, buft.is_host, buft.is_packed) == ("CPU_REPACK", False, True)
    assert buft.get_alloc_size(Tensor(Q4_0, (64, 17))) == 32 * 36
    assert buft.get_alloc_size(Tensor(Q4_0, (64, 17, 5))) == 5 * 32 * 36
    assert buft.get_alloc_size(Tensor(F32, (3, 16))) == 192
    assert buft.get_alloc_size(Tensor(GGMLType.Q1_0, (128, 3))) == 3 * 18


def test_more_memory_than_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffer_module, "free_memory", lambda: 1000)
    t = Tensor(Q4_0, (64, 17))
    buft = RepackBufferType(1)
    with pytest.raises(OutOfMemoryError, match=r"CPU_REPACK.* 1152 .*1000"):
        alloc_tensors([t], buft)
    assert t.buffer is None
    assert buft.used == 0
    small = Tensor(Q4_0, (64, 16))
    [buffer] = alloc_tensors([small], buft)
    assert buft.used == buffer.size == 576
    buffer.free()
    buffer.free()
    assert buft.used == 0


@each_count
@each_type((Q4_0, GGMLType.Q6_K, GGMLType.F16))
def test_threads_pack_the_same_bytes(
    type: GGMLType, n_threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # also matrices with fewer groups than threads, and too small for several threads
    for n, part in ((17, 1), (100, 1), (100, 10_000), (3000, 1 << 20)):
        monkeypatch.setattr(buffer_module, "PART_BYTES", part)
        t, buffer, raw = filled(type, n, 512, n_threads=n_threads)
        size = buffer.buft.get_alloc_size(t)
        assert (buffer.memory[:size] == packed_bytes(type, raw, 512)).all(), n
        assert (buffer.memory[size:] == GUARD).all(), n
        assert (buffer.get_tensor(t) == raw).all(), n


@each_count
def test_threads_read_what_they_pack(n_threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffer_module, "PART_BYTES", 1000)
    t, buffer, raw = filled(Q4_0, 2, 100, 64, n_threads=n_threads)
    other = bytes_of(random_bytes(Q4_0, 2, 100, 64))
    found: list[tuple[int, int]] = []

    def read(begin: int, end: int) -> Bytes:
        found.append((begin, end))
        return other[begin:end].copy()

    buffer.fill_tensor(t, read)
    assert (buffer.get_tensor(t) == other).all()
    row, step = 36, 16 * 36  # a part is a group of rows
    ends = [min(b + step, m + 100 * row) for m in (0, 100 * row) for b in range(m, m + 3600, step)]
    assert sorted(end for _, end in found) == ends
    assert sum(end - begin for begin, end in found) == raw.size


@each_count
def test_a_read_that_fails_ends_all_threads(
    n_threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buffer_module, "PART_BYTES", 1000)
    t, buffer, raw = filled(Q4_0, 320, 64, n_threads=n_threads)
    running: set[int] = set()

    def read(begin: int, end: int) -> Bytes:
        if begin == 0:
            raise OSError("the first part")
        running.add(begin)
        time.sleep(0.01)
        running.remove(begin)
        return raw[begin:end]

    with pytest.raises(OSError, match="the first part"):
        buffer.fill_tensor(t, read)
    assert not running


def test_all_large_tensors_share_one_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    def packing() -> set[threading.Thread]:
        return {t for t in threading.enumerate() if t.name.startswith("lamella-pack")}

    monkeypatch.setattr(buffer_module, "PART_BYTES", 1000)
    before, buft = packing(), RepackBufferType(3)  # earlier threads may end at any time
    small, *large = (Tensor(Q4_0, (64, n)) for n in (16, 320, 320))
    alloc_tensors([small, *large], buft)
    tensor_set(small, bytes_of(random_bytes(Q4_0, 16, 64)))
    assert not packing() - before
    for t in large:
        tensor_set(t, bytes_of(random_bytes(Q4_0, 320, 64)))
        assert 1 <= len(packing() - before) <= 3


def test_a_fork_packs_with_its_own_threads() -> None:
    source = """
import os, signal
import numpy as np
from lamella.alloc import alloc_tensors, tensor_get, tensor_set
from lamella.graph import GGMLType, Tensor
from lamella.kernels.cpu.packed.buffer import RepackBufferType
t = Tensor(GGMLType.Q4_0, (1024, 4096))
kept = alloc_tensors([t], RepackBufferType(2))
raw = np.resize(np.arange(251, dtype=np.uint8), t.nbytes)
tensor_set(t, np.zeros_like(raw))
child = os.fork()
signal.alarm(30)
tensor_set(t, raw)
assert (tensor_get(t) == raw).all()
if child == 0:
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
"""
    # Python 3.12 warns of a fork beside other threads
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", source]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@each_type(FORMATS)
def test_experts_are_contiguous_matrices(type: GGMLType) -> None:
    t, buffer, raw = filled(type, 2, 3, 18, 256, n_threads=2)
    size = FORMATS[type].bytes_of(256, 18)
    parts = raw.reshape(6, -1)
    for i, part in enumerate(parts):
        assert (buffer.memory[size * i :][:size] == packed_bytes(type, part, 256)).all(), i
    assert (buffer.memory[6 * size :] == GUARD).all()
    assert (buffer.get_tensor(t) == raw).all()


def test_tensors_of_one_buffer() -> None:
    tensors = [Tensor(type, (256, n)) for type, n in zip(FORMATS, range(1, 40, 2), strict=False)]
    [buffer] = alloc_tensors(tensors, RepackBufferType(2), Usage.WEIGHTS)
    assert buffer.usage is Usage.WEIGHTS
    raws = [bytes_of(random_bytes(t.type, t.ne[1], 256)) for t in tensors]
    for t, raw in zip(tensors, raws, strict=True):
        tensor_set(t, raw)
    for t, raw in zip(tensors, raws, strict=True):
        assert (tensor_get(t) == raw).all(), t


@pytest.mark.parametrize(("offset", "size"), [(0, 1), (7, 100), (0, 1224), (1223, 1), (36, 0)])
def test_parts_can_be_read(offset: int, size: int) -> None:
    t, buffer, raw = filled(Q4_0, 2, 17, 64)
    expected = raw[offset : offset + size]
    assert (buffer.get_tensor(t, offset, size) == expected).all()
    assert (buffer.get_tensor(t, offset) == raw[offset:]).all()
    out = np.full(size, GUARD, np.uint8)
    tensor_read(t, out, offset)
    assert (out == expected).all()


@pytest.mark.parametrize(("offset", "size"), [(-1, 1), (0, 1225), (1224, 1), (5, -1)])
def test_no_bytes_outside_of_a_tensor_are_read(offset: int, size: int) -> None:
    t, buffer, _ = filled(Q4_0, 2, 17, 64)
    with pytest.raises(TensorAccessError, match="outside the tensor of 1224 bytes"):
        buffer.get_tensor(t, offset, size)


def test_data_of_any_kind() -> None:
    values = normal(3, 5).astype(np.float32)
    for data in (values, values.tobytes(), memoryview(values.tobytes()), values.T.copy().T):
        t = Tensor(F32, (5, 3))
        buffer = buffer_of(t)
        buffer.set_tensor(t, data)
        assert buffer.get_tensor(t).tobytes() == values.tobytes()


def test_copies_from_and_to_other_memory() -> None:
    t, _, raw = filled(GGMLType.Q5_K, 20, 256)
    other, again = Tensor(t.type, t.ne), Tensor(t.type, t.ne)
    alloc_tensors([other], HostBufferType("host"))
    buffer_of(again)
    tensor_copy(t, other)
    assert (tensor_get(other) == raw).all()
    tensor_copy(other, again)
    assert (tensor_get(again) == raw).all()
    tensor_set(t, np.zeros_like(raw))
    tensor_copy(again, t)
    assert (tensor_get(t) == raw).all()


def test_clear_and_memset() -> None:
    t, buffer, _ = filled(GGMLType.Q5_0, 17, 64)
    buffer.memset_tensor(t, 0x5A)
    assert (buffer.get_tensor(t) == 0x5A).all()


# --- errors ---


@pytest.mark.parametrize(("offset", "size"), [(0, 611), (1, 611), (306, 306), (0, 0), (612, 0)])
def test_parts_cannot_be_written(offset: int, size: int) -> None:
    t, buffer, raw = filled(Q4_0, 17, 64)
    message = (
        rf"bytes {offset}\.\.{offset + size} of 612.* in CPU_REPACK must be written as a whole"
    )
    with pytest.raises(TensorAccessError, match=message):
        buffer.set_tensor(t, np.zeros(size, np.uint8), offset)
    with pytest.raises(TensorAccessError, match=message):
        buffer.memset_tensor(t, 0, offset, size)
    assert (buffer.get_tensor(t) == raw).all()


def test_more_bytes_than_a_tensor_has() -> None:
    t, buffer, _ = filled(Q4_0, 17, 64)
    with pytest.raises(TensorAccessError, match=r"0\.\.613 are outside the tensor of 612 bytes"):
        buffer.set_tensor(t, np.zeros(613, np.uint8))


def test_types_that_cannot_be_packed() -> None:
    t = Tensor(GGMLType.Q1_0, (128, 3), name="w")
    buffer = buffer_of(t)
    refused: list[Callable[[], object]] = [
        lambda: buffer.set_tensor(t, np.zeros(t.nbytes, np.uint8)),
        lambda: buffer.get_tensor(t),
        lambda: buffer.memset_tensor(t, 0),
    ]
    for call in refused:
        with pytest.raises(TensorAccessError, match=r"w\[.*Q1_0: CPU_REPACK can access only whole"):
            call()


def test_views_have_no_bytes_of_their_own() -> None:
    t, buffer, _ = filled(Q4_0, 48, 64)
    for view in (ops.view(t, (64, 16), offset=16 * t.nb[1]), ops.reshape(t, (32, 96))):
        view_init(view)
        with pytest.raises(TensorAccessError, match="only whole tensors, no views"):
            buffer.get_tensor(view)
        with pytest.raises(TensorAccessError, match="only whole tensors, no views"):
            buffer.set_tensor(view, np.zeros(view.nbytes, np.uint8))


def test_a_buffer_that_was_freed() -> None:
    t, buffer, raw = filled(Q4_0, 17, 64)
    buffer.free()
    with pytest.raises(TensorAccessError, match="its buffer of CPU_REPACK has been freed"):
        buffer.get_tensor(t)
    with pytest.raises(TensorAccessError, match="its buffer of CPU_REPACK has been freed"):
        buffer.set_tensor(t, raw)
    with pytest.raises(TensorAccessError, match="is not in this buffer of CPU_REPACK"):
        buffer.get_tensor(Tensor(Q4_0, (64, 17)))


# --- the device ---


def test_memory_that_the_device_offers() -> None:
    cpu = CpuDevice(2)
    [buft] = cpu.extra_buffer_types
    assert isinstance(buft, RepackBufferType)
    assert buft.n_threads == 2
    assert cpu.supports_buft(buft)
    assert not cpu.supports_buft(RepackBufferType(2))  # another device's
    assert not SimDevice("SIM0").supports_buft(buft)
    assert CpuDevice(2, repack=False).extra_buffer_types == ()
    with NO_JIT.set(1):
        assert CpuDevice(2).extra_buffer_types == ()


def test_other_ops_cannot_use_packed_weights() -> None:
    cpu = CpuDevice(2)
    t = Tensor(F32, (16, 16))
    alloc_tensors([t], cpu.extra_buffer_types[0])
    x = leaf(normal(16, 16))
    assert cpu.supports_op(ops.mul_mat(t, x))
    for node in (ops.add(x, t), ops.mul(x, t), ops.cont(t), ops.rms_norm(t, 1e-5)):
        assert not cpu.supports_op(node), node


# --- weights of models ---


def loaded(name: str, folder: Path, type: GGMLType = GGMLType.F16, **params: Any) -> LoadedModel:
    path = folder / "m.gguf"
    write_model(TINY[name], path, type)
    return load_model(path, placed(**{"cpu": CpuDevice(2), **params}))


def home_names(model: LoadedModel) -> dict[str, str]:
    for name, home in model.homes.items():
        assert model.weights[name].buffer.buft is home.buft, name
    return {name: home.buft.name for name, home in model.homes.items()}


def is_matrix(model: LoadedModel, name: str) -> bool:
    return model.weights[name].n_dims > 1


@pytest.mark.parametrize("name", TINY)
@each_type((F32, GGMLType.F16, GGMLType.BF16, GGMLType.Q8_0, Q4_0, GGMLType.IQ4_NL))
def test_matrices_are_packed_and_vectors_are_not(name: str, type: GGMLType, tmp_path: Path) -> None:
    model = loaded(name, tmp_path, type)
    for weight, buft in home_names(model).items():
        assert buft == ("CPU_REPACK" if is_matrix(model, weight) else "CPU"), weight
    file = {t.name: t.data.view(np.uint8).reshape(-1) for t in GGUFReader(model.path).tensors}
    for weight, data in file.items():
        if weight in model.weights:
            assert (tensor_get(model.weights[weight]) == data).all(), weight
    model.free()


def test_a_part_may_be_of_several_tensors_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # also parts of one tensor
    for part in (1, 1 << 19):
        monkeypatch.setattr(buffer_module, "PART_BYTES", part)
        write_model(TINY["mixtral"], tmp_path / "one.gguf")
        write_model(TINY["mixtral"], tmp_path / "split.gguf", split_experts=True)
        models = [
            load_model(tmp_path / name, placed(cpu=CpuDevice(2)))
            for name in ("one.gguf", "split.gguf")
        ]
        for name, weight in models[0].weights.items():
            assert (tensor_get(weight) == tensor_get(models[1].weights[name])).all(), name
        for model in models:
            model.free()


@pytest.mark.parametrize("repack", [False, True])
def test_without_repacking_or_compiling(repack: bool, tmp_path: Path) -> None:
    with NO_JIT.set(repack):
        model = loaded("llama", tmp_path, cpu=CpuDevice(2, repack=repack))
    assert set(home_names(model).values()) == {"CPU"}
    model.free()


def test_tied_embeddings_are_there_once(tmp_path: Path) -> None:
    model = loaded("llama-tied", tmp_path)
    assert model.weights["output.weight"] is model.weights["token_embd.weight"]
    assert home_names(model)["token_embd.weight"] == "CPU_REPACK"
    assert sum(b.size for b in model._buffers) < 1.2 * model.n_bytes
    model.free()


def test_devices_that_take_over_keep_weights_readable(tmp_path: Path) -> None:
    # it copies the CPU's weights to its own memory
    gpu = SimDevice("SIM0", offload_ops={Op.MUL_MAT})
    for op_offload, buft in ((True, "SIM0_Host"), (False, "CPU_REPACK")):
        model = loaded("llama", tmp_path, devices=(gpu,), n_gpu_layers=1, op_offload=op_offload)
        homes = home_names(model)
        assert homes["output.weight"] == "SIM0"
        assert homes["blk.0.ffn_up.weight"] == buft
        # no device takes GET_ROWS over
        assert homes["token_embd.weight"] == "CPU_REPACK"
        assert homes["blk.0.attn_norm.weight"] == "CPU"
        model.free()


def test_weights_of_ops_that_a_device_lacks_are_packed_for_the_cpu(tmp_path: Path) -> None:
    weak = SimDevice("SIM0", ops=set())
    model = loaded("llama", tmp_path, devices=(weak,))
    assert all(
        buft == ("CPU_REPACK" if is_matrix(model, name) else "CPU")
        for name, buft in home_names(model).items()
    )
    model.free()


def test_overrides_place_weights(tmp_path: Path) -> None:
    cpu = CpuDevice(2)
    [repack] = cpu.extra_buffer_types
    model = loaded("llama", tmp_path, cpu=cpu, overrides=(("ffn_up", cpu.buffer_type),))
    assert home_names(model)["blk.0.ffn_up.weight"] == "CPU_REPACK"  # the CPU's best buffer type
    model.free()
    with pytest.raises(RequestError, match="CPU_REPACK, where no device can run MUL on weights"):
        loaded("llama", tmp_path, cpu=cpu, overrides=(("attn_norm", repack),))


def logits_of(path: Path, cpu: CpuDevice) -> np.ndarray:
    runner = Runner(load_model(path, Placement(cpu=cpu)))
    prompt = runner.prompt([1, 5, 200, 17, 3], 3)
    runner.close()
    return np.asarray(prompt)


@pytest.mark.parametrize("name", ["llama-tied", "mixtral", "qwen3moe"])
def test_models_compute_nearly_the_same_with_packed_weights(name: str, tmp_path: Path) -> None:
    write_model(TINY[name], tmp_path / "m.gguf", GGMLType.F16)
    plain, repacked = (
        logits_of(tmp_path / "m.gguf", CpuDevice(2, repack=repack)) for repack in (False, True)
    )
    assert plain.tobytes() != repacked.tobytes()  # another order of additions
    np.testing.assert_allclose(repacked, plain, atol=2e-5 * np.abs(plain).max())
    again = logits_of(tmp_path / "m.gguf", CpuDevice(1))
    assert again.tobytes() == repacked.tobytes()
