"""DLPack's capsules: what NumPy makes of them, their structures, and who frees them."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from lamella.alloc.dlpack import (
    CPU,
    CUDA,
    HAS_VERSIONS,
    NAME,
    VERSIONED,
    Device,
    Exported,
    capsule_of,
)


class Owner:
    """Keeps 6 numbers."""

    def __init__(self) -> None:
        self.values = np.arange(6, dtype=np.float32)

    def exported(self, device: Device = (CPU, 0), copied: bool = False) -> Exported:
        return Exported(self, int(self.values.ctypes.data), (2, 3), device, copied)


class Producer:
    """Hands out a capsule to NumPy, as an old or a new library does."""

    def __init__(self, owner: Owner, versioned: bool, device: Device = (CPU, 0)) -> None:
        self.device = device
        self.capsule = capsule_of(owner.exported(device), versioned=versioned)

    def __dlpack_device__(self) -> Device:
        return self.device

    def __dlpack__(self, **_: Any) -> Any:
        capsule, self.capsule = self.capsule, None
        return capsule


def taken(versioned: bool) -> tuple[npt.NDArray[Any], Any]:
    """NumPy's array of an export, and a weak reference to its owner."""
    owner = Owner()
    return np.from_dlpack(Producer(owner, versioned)), weakref.ref(owner)


@pytest.mark.parametrize("versioned", [False, True])
def test_numpy_takes_an_export_and_frees_it(versioned: bool) -> None:
    array, owner = taken(versioned)
    assert array.tolist() == [[0, 1, 2], [3, 4, 5]] and array.dtype == np.float32
    assert array.ctypes.data == owner().values.ctypes.data
    part = array[1:]
    del array
    gc.collect()
    assert owner() is not None and part.tolist() == [[3, 4, 5]]
    del part
    gc.collect()
    assert owner() is None


@pytest.mark.parametrize("versioned", [False, True])
def test_a_capsule_that_nobody_takes_frees_its_export(versioned: bool) -> None:
    owner = Owner()
    capsule, kept = capsule_of(owner.exported(), versioned=versioned), weakref.ref(owner)
    del owner
    assert kept() is not None and "dltensor" in repr(capsule)
    del capsule
    assert kept() is None


@pytest.mark.parametrize("versioned", [False, True])
def test_a_consumer_s_error_reaches_the_user_and_frees_the_export(versioned: bool) -> None:
    owner = Owner()
    kept = weakref.ref(owner)
    with pytest.raises((BufferError, RuntimeError), match="Unsupported device"):
        np.from_dlpack(Producer(owner, versioned, (CUDA, 0)))
    del owner
    gc.collect()
    assert kept() is None


def test_an_array_that_outlives_lamella_s_modules() -> None:
    code = """
import numpy as np
from lamella.alloc.dlpack import CPU, Exported, capsule_of
class Producer:
    values = np.arange(1 << 20, dtype=np.float32)
    def __dlpack_device__(self):
        return CPU, 0
    def __dlpack__(self, **_):
        at = self.values.ctypes.data
        return capsule_of(Exported(self, at, (1 << 20,), (CPU, 0)), versioned=False)
np.kept = np.from_dlpack(Producer())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not HAS_VERSIONS, reason="NumPy makes no versioned capsules")
def test_the_structure_for_a_gpu() -> None:
    owner = Owner()
    capsule = capsule_of(owner.exported((CUDA, 3), copied=True), versioned=True)
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    at = pointer(capsule, VERSIONED)
    words = np.ctypeslib.as_array((ctypes.c_uint8 * 80).from_address(at))
    assert words[:8].view(np.uint32).tolist() == [1, 0]  # the version
    assert words[24:32].view(np.uint64).tolist() == [2]  # flags: a copy
    assert words[32:40].view(np.uint64).tolist() == [owner.values.ctypes.data]
    assert words[40:52].view(np.int32).tolist() == [2, 3, 2]  # CUDA 3, two dimensions
    assert words[52:56].tolist() == [2, 32, 1, 0]  # float32, one lane
    shape, strides = (
        np.ctypeslib.as_array((ctypes.c_int64 * 2).from_address(int(p))).tolist()
        for p in words[56:72].view(np.uint64)
    )
    assert (shape, strides) == ([2, 3], [3, 1])
    assert words[72:80].view(np.uint64).tolist() == [0]  # the offset
    old = capsule_of(owner.exported((CUDA, 3)), versioned=False)
    at = pointer(old, NAME)
    head = np.ctypeslib.as_array((ctypes.c_uint8 * 24).from_address(at))
    assert head[:8].view(np.uint64).tolist() == [owner.values.ctypes.data]
    assert head[8:20].view(np.int32).tolist() == [2, 3, 2]
