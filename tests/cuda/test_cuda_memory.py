"""A GPU whose memory is too small: the error names the device and the bytes, all memory is freed,
and a smaller request works."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from gpus import Gpus, emulated_gpus, leaves_nothing, real_gpus
from model_files import ModelFiles
from model_run import loaded, logits_of, opened, some_tokens

from lamella.alloc import Buffer
from lamella.base.errors import OutOfMemoryError
from lamella.kernels.cuda.device import CudaDevice
from lamella.model.context import Context
from lamella.model.params import ContextParams

pytestmark = pytest.mark.timeout(900)

MIB = 2**20
SMALLEST = 4096  # bytes of the smallest filler


@pytest.fixture(scope="module")
def gpus(request: pytest.FixtureRequest) -> Iterator[Gpus]:
    """Emulated GPUs have little memory: filling more takes time."""
    if request.config.getoption("--cuda"):
        yield real_gpus()
        return
    with emulated_gpus(n_gpus=1, memory=8 * MIB) as found:
        yield found


@pytest.fixture
def path(gpus: Gpus, files: ModelFiles) -> Path:
    return files.random(gpus.pick("0.5b", "deep"), "Q8_0")


@contextmanager
def leaving(device: CudaDevice, n_free: int) -> Iterator[None]:
    """Leave at most `n_free` bytes free in the block, and only slightly less."""
    fillers: list[Buffer] = []
    piece = device.memory()[0]
    try:
        while piece >= SMALLEST and (more := device.memory()[0] - n_free) > 0:
            try:
                fillers.append(device.buffer_type.alloc_buffer(min(piece, more)))
            except OutOfMemoryError:  # not free in one piece
                piece //= 2
        yield
    finally:
        for filler in fillers:
            filler.free()


def check(error: OutOfMemoryError, device: CudaDevice, n_free: int) -> None:
    """Check that the error names the device, the requested bytes, and the free ones."""
    assert error.where == device.name
    assert error.free is not None
    assert error.free < error.wanted
    assert error.free <= n_free
    assert f"{device.name} cannot allocate {error.wanted} bytes, {error.free} bytes" in str(error)


def logits(path: Path, device: CudaDevice, n_gpu_layers: int = -1) -> bytes:
    with opened(path, [device], n_gpu_layers) as context:
        return logits_of(context, some_tokens(context, 40), 38, 1).tobytes()


def test_a_model_that_is_too_large_then_fewer_layers(gpus: Gpus, path: Path) -> None:
    gpu, n_free = gpus.first, path.stat().st_size // 2
    with leaves_nothing(gpu), leaving(gpu, n_free):
        for _ in range(gpus.pick(2, 1)):
            with leaves_nothing(gpu):
                with pytest.raises(OutOfMemoryError) as caught, loaded(path, [gpu]):
                    pass
                check(caught.value, gpu, n_free)
                del caught
            with loaded(path, [gpu], n_gpu_layers=2) as model:
                assert gpu in model.devices


def test_a_pool_that_is_too_large_then_a_smaller_one(gpus: Gpus, path: Path) -> None:
    gpu = gpus.first
    expected = logits(path, gpu)
    with leaves_nothing(gpu), loaded(path, [gpu]) as model:
        hp, n_free = model.hp, gpu.memory()[0]
        most_free = n_free + gpus.pick(gpu.driver_margin, 0)  # a driver gave back 8 MiB meanwhile
        n_bytes = sum(2 * (m.n_embd_k + m.n_embd_v) for m in hp.memory)
        with leaves_nothing(gpu):
            for n_ctx in (2 * n_free // n_bytes, n_free // n_bytes):
                # the pool alone is too large; then it fits, but nothing else does
                with pytest.raises(OutOfMemoryError) as caught:
                    Context(model, ContextParams(n_ctx=n_ctx))
                check(caught.value, gpu, most_free)
            del caught
        with Context(model, ContextParams(n_ctx=256, n_ubatch=64)) as context:
            found = logits_of(context, some_tokens(context, 40), 38, 1)
            assert found.tobytes() == expected


def test_memory_of_any_size_is_too_small_or_enough(gpus: Gpus, path: Path) -> None:
    """Whatever does not fit: weights, keys and values, compute buffers, scratch memory."""
    gpu = gpus.first
    expected = logits(path, gpu)
    largest = gpus.pick(2048 * MIB, 4 * MIB)
    shares = gpus.pick([i / 8 for i in range(1, 9)], [0.1, 0.3, 1.0])
    worked = []
    with leaves_nothing(gpu):
        for share in shares:
            n_free = int(share * largest)
            with leaving(gpu, n_free), leaves_nothing(gpu):
                try:
                    assert logits(path, gpu) == expected
                    worked.append(True)
                except OutOfMemoryError as e:
                    check(e, gpu, n_free)
                    worked.append(False)
    assert worked == sorted(worked), "a size was enough, but a larger one was not"
    assert not worked[0] and worked[-1]
    assert logits(path, gpu) == expected


def test_contexts_that_are_opened_often_leave_nothing(gpus: Gpus, path: Path) -> None:
    gpu = gpus.first
    for n_gpu_layers in gpus.pick((-1, 2), (2,)):
        expected = logits(path, gpu, n_gpu_layers)
        with leaves_nothing(gpu):
            for _ in range(gpus.pick(20, 2)):
                assert logits(path, gpu, n_gpu_layers) == expected
