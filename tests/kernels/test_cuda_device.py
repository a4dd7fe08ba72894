"""CUDA devices on the emulated GPU: memory, supported ops, kernels cached on disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from cuda_grid import GridCompiler, GridDriver, GridGpu, needs_compiler

from lamella.alloc import HostBufferType, Usage, alloc_tensors, tensor_copy, tensor_get, tensor_set
from lamella.base.errors import BackendError, OutOfMemoryError, TensorAccessError
from lamella.graph import GGMLType, Tensor, ops
from lamella.kernels.cuda.device import CudaDevice
from lamella.kernels.cuda.driver import Driver, Function
from lamella.kernels.cuda.library import Library, file_name
from lamella.kernels.cuda.registry import open_cuda
from lamella.kernels.cuda.table import CudaKernel, CudaSource
from lamella.sched import Caps, DeviceType

MIB = 2**20
TOY = CudaSource(str(Path(__file__).with_name("toy_scale.cu")))

pytestmark = needs_compiler


@pytest.fixture
def driver() -> Iterator[GridDriver]:
    driver = GridDriver(n_gpus=2, memory=MIB)
    yield driver
    for gpu in driver.grid_gpus:
        assert not any(gpu.live[kind] for kind in ("allocations", "host allocations"))


@pytest.fixture
def devices(driver: GridDriver) -> list[CudaDevice]:
    return list(open_cuda(lambda: driver, GridCompiler).devices())


def tensor(*ne: int) -> Tensor:
    return Tensor(GGMLType.F32, ne, name="t")


# --- devices ---


def test_every_gpu_is_a_device(devices: list[CudaDevice]) -> None:
    assert [d.name for d in devices] == ["CUDA0", "CUDA1"]
    device = devices[0]
    assert device.type is DeviceType.GPU
    assert device.caps == Caps(async_=True, events=True, copy_ahead=True)
    assert device.memory() == (MIB, MIB)
    assert "sm_90" in device.description
    assert device.buffer_type.name == "CUDA0" and not device.buffer_type.is_host
    assert device.host_buffer_type.name == "CUDA_Host" and device.host_buffer_type.is_host
    assert device.supports_buft(device.buffer_type)
    assert not device.supports_buft(devices[1].buffer_type)
    assert not device.supports_buft(device.host_buffer_type)


def test_the_reason_for_no_device_is_one_line() -> None:
    def broken() -> Driver:
        raise BackendError("no NVIDIA driver is installed")

    def no_compiler() -> GridCompiler:
        raise BackendError("NVRTC is missing")

    assert open_cuda(broken, GridCompiler).reason == "no NVIDIA driver is installed"
    assert open_cuda(GridDriver, no_compiler).reason == "NVRTC is missing"
    none = open_cuda(lambda: GridDriver(n_gpus=0), GridCompiler)
    assert none.devices() == () and "7.5" in none.reason and "\n" not in none.reason
    assert open_cuda(GridDriver, GridCompiler).reason == ""


def test_the_real_driver_has_devices_or_a_reason() -> None:
    registry = open_cuda()
    assert bool(registry.devices()) != bool(registry.reason)
    assert "\n" not in registry.reason


@pytest.mark.parametrize(("n", "takes"), [(31, False), (32, True), (512, True)])
def test_large_batches_are_worth_a_copy_of_the_weights(
    devices: list[CudaDevice], n: int, takes: bool
) -> None:
    w, x = tensor(64, 8), tensor(64, n)
    assert devices[0].offload_op(ops.mul_mat(w, x)) == takes
    rows = ops.get_rows(tensor(64, 99), Tensor(GGMLType.I32, (n,)))
    assert not devices[0].offload_op(rows)


# --- memory ---


def test_bytes_are_written_and_read_back(devices: list[CudaDevice]) -> None:
    t = tensor(16, 3)
    (buffer,) = alloc_tensors([t], devices[0].buffer_type)
    buffer.clear(0x11)
    values = np.arange(48, dtype=np.float32)
    tensor_set(t, values[:16], offset=64)
    got = tensor_get(t).view(np.float32)
    assert (got[16:32] == values[:16]).all()
    assert tensor_get(t, 0, 4).tobytes() == b"\x11" * 4
    buffer.memset_tensor(t, 7, 4, 2)
    assert tensor_get(t, 3, 4).tobytes() == b"\x11\x07\x07\x11"
    with pytest.raises(TensorAccessError, match="CUDA0"):
        _ = buffer.memory  # type: ignore[attr-defined]
    with pytest.raises(TensorAccessError, match="copy it"):
        buffer.array(t)  # type: ignore[attr-defined]
    buffer.free()
    buffer.free()


def test_the_last_piece_of_16_bytes_belongs_to_the_buffer(
    driver: GridDriver, devices: list[CudaDevice]
) -> None:
    buffer = devices[0].buffer_type.alloc_buffer(1001)
    assert buffer.size == 1001
    assert list(driver.grid_gpus[0].device_memory.sizes.values()) == [1008]
    buffer.free()


def test_copies_between_all_kinds_of_memory(devices: list[CudaDevice]) -> None:
    kinds = [d.buffer_type for d in devices] + [devices[0].host_buffer_type, HostBufferType()]
    values = np.random.default_rng(0).standard_normal(40, np.float32)
    for a in kinds:
        for b in kinds:
            src, dst = tensor(40), tensor(40)
            buffers = [*alloc_tensors([src], a), *alloc_tensors([dst], b)]
            tensor_set(src, values)
            tensor_copy(src, dst)
            assert tensor_get(dst).tobytes() == values.tobytes(), (a, b)
            for buffer in buffers:
                buffer.free()


def test_too_much_memory_is_an_error_with_the_free_bytes(devices: list[CudaDevice]) -> None:
    buft = devices[1].buffer_type
    kept = buft.alloc_buffer(MIB - 1024)
    with pytest.raises(OutOfMemoryError) as e:
        buft.alloc_buffer(2000)
    assert (e.value.where, e.value.wanted, e.value.free) == ("CUDA1", 2000, 1024)
    buft.alloc_buffer(1000).free()
    kept.free()
    assert buft.used == 0


# --- kernels ---


class Counting(GridCompiler):
    """Counts what it compiles."""

    compiled: list[str]

    def __init__(self) -> None:
        super().__init__()
        self.compiled = []

    def compile(self, source: CudaSource, arch: int) -> bytes:
        self.compiled.append(source.file)
        return super().compile(source, arch)


@pytest.fixture
def gpu(driver: GridDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GridGpu:
    monkeypatch.setattr(Library, "folder", tmp_path / "0123456789abcdef")
    return driver.grid_gpus[0]


def test_a_kernel_is_compiled_once_and_cached(gpu: GridGpu, tmp_path: Path) -> None:
    def allowed(function: Function) -> int:
        return gpu._functions[function].shared_memory

    compiler = Counting()
    calls: list[tuple[int, int, str]] = []
    library = Library(gpu, compiler, lambda done, total, name, s: calls.append((done, total, name)))
    kernel = CudaKernel(TOY, "toy_scale")
    first = library.function(kernel)
    assert library.function(kernel) == first
    assert allowed(library.function(kernel, 64 << 10)) == 64 << 10
    assert allowed(library.function(kernel, 50 << 10)) == 64 << 10
    assert compiler.compiled == [TOY.file]
    assert calls == [(0, 1, TOY.file), (1, 1, TOY.file)]
    library.close()
    again = Library(gpu, compiler)
    again.function(kernel)
    assert len(compiler.compiled) == 1
    again.close()
    again.close()
    (file,) = [f for f in gpu_folder(tmp_path).iterdir() if f.name == file_name(TOY)]
    file.write_bytes(file.read_bytes()[:-1])
    last = Library(gpu, compiler)
    last.function(kernel)
    assert len(compiler.compiled) == 2
    last.close()


def gpu_folder(tmp_path: Path) -> Path:
    return tmp_path / "0123456789abcdef"


def test_a_compile_error_names_the_source_and_the_cause(gpu: GridGpu, tmp_path: Path) -> None:
    broken = tmp_path / "broken.cu"
    broken.write_text('#include "device.cuh"\nKERNEL(broken, 32, 1) { no_such_name = 1; }\n')
    library = Library(gpu, GridCompiler())
    with pytest.raises(BackendError, match="no_such_name"):
        library.function(CudaKernel(CudaSource(str(broken)), "broken"))
    assert not gpu_folder(tmp_path).exists()


def test_a_folder_is_named_after_compiler_architecture_and_sources(driver: GridDriver) -> None:
    gpu = driver.grid_gpus[0]

    class Newer(GridCompiler):
        version = "newer"

    folders = {Library(gpu, GridCompiler()).folder, Library(gpu, Newer()).folder}
    other = GridDriver(arch=75).grid_gpus[0]
    folders.add(Library(other, GridCompiler()).folder)
    assert len(folders) == 3
    assert Library(gpu, GridCompiler()).folder in folders


def test_weights_are_marked(devices: list[CudaDevice]) -> None:
    t = tensor(4)
    (buffer,) = alloc_tensors([t], devices[0].buffer_type, Usage.WEIGHTS)
    assert buffer.usage is Usage.WEIGHTS
    buffer.free()
