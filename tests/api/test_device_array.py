"""Arrays in a device's memory: NumPy's on the host, and an emulated GPU's."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from api_models import tiny_file
from cuda_grid import GridCompiler, GridDriver, has_compiler

import lamella
from lamella import ClosedError, RequestError
from lamella.kernels import devices
from lamella.kernels.cuda.registry import open_cuda

IDS = list(range(1, 41))  # two ubatches
CPU, CUDA = (1, 0), (2, 0)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_file(tmp_path_factory)


@pytest.fixture
def model(path: Path) -> Iterator[lamella.Model]:
    with lamella.load(path, n_ctx=64, n_ubatch=32, devices=["none"]) as model:
        yield model


@pytest.fixture
def gpu_model(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[lamella.Model]:
    """The model on an emulated GPU, whose memory is the process's."""
    if not has_compiler():
        pytest.skip("the emulated GPU needs a C++ compiler")
    registry = open_cuda(lambda: GridDriver(memory=2**28), GridCompiler)
    monkeypatch.setattr(devices, "find_cuda", lambda: registry)
    with lamella.load(path, n_ctx=64, n_ubatch=32, n_gpu_layers=99, fit=False) as model:
        yield model


# --- on the host ---


def test_numpy_takes_logits_without_a_copy(model: lamella.Model) -> None:
    array, expected = model.logits(IDS, device=True), model.logits(IDS)
    assert (array.shape, len(array), array.dtype) == (
        expected.shape,
        len(IDS),
        np.dtype(np.float32),
    )
    assert array.device == "CPU" and array.__dlpack_device__() == CPU
    assert repr(array) == f"<lamella.DeviceArray {list(expected.shape)} float32 on CPU>"
    view = np.from_dlpack(array)
    assert view.tobytes() == expected.tobytes() == array.numpy().tobytes()
    view[0, 0] = 5
    assert array.numpy()[0, 0] == 5
    assert np.from_dlpack(array, copy=True)[0, 0] == 5
    np.from_dlpack(array, copy=True)[0, 0] = 6
    assert view[0, 0] == 5
    assert not hasattr(array, "__cuda_array_interface__")


def test_memory_outlives_the_array_and_the_model(path: Path) -> None:
    with lamella.load(path, n_ctx=64, devices=["none"]) as model:
        expected = model.logits(IDS)
        array = model.logits(IDS, device=True)
        view, buffer = np.from_dlpack(array), weakref.ref(array._tensor.buffer)
        del array
        others = [model.logits(IDS[::-1], device=True) for _ in range(3)]
    gc.collect()
    assert view.tobytes() == expected.tobytes() != others[0].numpy().tobytes()
    assert buffer() is not None
    del view
    gc.collect()
    assert buffer() is None


def test_what_cannot_be_exported(model: lamella.Model) -> None:
    array = model.logits([1], device=True)
    with pytest.raises(BufferError, match=r"on CPU cannot be exported to .* \(2, 0\)"):
        array.__dlpack__(dl_device=CUDA)
    with pytest.raises(BufferError):
        array.__dlpack__(dl_device=CUDA, copy=True)
    with pytest.raises(RequestError):
        model.logits([], device=True)
    model.close()
    with pytest.raises(ClosedError):
        model.logits([1], device=True)


def test_embeddings(path: Path) -> None:
    with lamella.load(path, embeddings=True, pooling="mean", n_ctx=32, devices=["none"]) as model:
        for texts in ("a b", ["a b", "c"]):
            array = model.embed(texts, device=True)
            assert np.from_dlpack(array).tobytes() == model.embed(texts).tobytes()
        assert model.embed([], device=True).shape == (0, model.n_embd)
        cut = model.embed(["a b"], dimensions=3, device=True)
        assert np.from_dlpack(cut).tobytes() == model.embed(["a b"], dimensions=3).tobytes()
    with (
        lamella.load(path, embeddings=True, pooling="none", n_ctx=32, devices=["none"]) as model,
        pytest.raises(RequestError, match="pooling is none"),
    ):
        model.embed(["a"], device=True)


def test_an_array_that_lives_until_the_process_ends(path: Path) -> None:
    code = f"""
import lamella, numpy as np
model = lamella.load({str(path)!r}, n_ctx=64, devices=["none"])
kept = np.from_dlpack(model.logits([1, 2], device=True))
also = model.logits([1, 2], device=True).__dlpack__()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""


# --- on an emulated GPU ---


def test_the_memory_of_a_gpu(gpu_model: lamella.Model) -> None:
    array, expected = gpu_model.logits(IDS, device=True), gpu_model.logits(IDS)
    assert array.device == "CUDA0" and array.__dlpack_device__() == CUDA
    found = array.__cuda_array_interface__
    assert found.keys() == {"shape", "typestr", "data", "strides", "stream", "version"}
    assert (found["shape"], found["typestr"], found["version"]) == (expected.shape, "<f4", 3)
    address, read_only = found["data"]
    assert not read_only
    there = ctypes.string_at(address, expected.nbytes)
    assert there == expected.tobytes() == array.numpy().tobytes()
    capsule = array.__dlpack__(stream=2, max_version=(1, 0))
    assert "dltensor_versioned" in repr(capsule)
    assert "versioned" not in repr(array.__dlpack__(stream=-1))
    gpu_model.logits(IDS[::-1], device=True)
    assert ctypes.string_at(address, expected.nbytes) == expected.tobytes()


def test_a_gpu_s_array_can_be_copied_to_the_host(gpu_model: lamella.Model) -> None:
    array = gpu_model.logits([3], device=True)
    with pytest.raises(BufferError, match=r"on CUDA0 .* copy=False"):
        array.__dlpack__(dl_device=CPU, copy=False)
    with pytest.raises(BufferError):
        array.__dlpack__(copy=True)  # on the GPU
    with pytest.raises((BufferError, RuntimeError), match="Unsupported device"):
        np.from_dlpack(array)
    assert np.from_dlpack(array, device="cpu").tobytes() == gpu_model.logits([3]).tobytes()
