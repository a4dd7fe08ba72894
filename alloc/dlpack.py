"""DLPack: memory as an array that other libraries take without a copy.

    capsule = capsule_of(Exported(buffer, address, shape, device), versioned=True)

NumPy makes the capsule, of an array over the memory that it never reads; then the device is set. So
what consumers call is NumPy's, in C: it works in any thread, beside an exception that is raised,
and when Python has ended. The structures are those of DLPack 1.0 (dmlc/dlpack,
include/dlpack.h). Only contiguous float32 arrays. What is exported keeps its buffer alive until the
consumer's last array is gone. Tested by tests/alloc/test_dlpack.py.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

CPU: Final = 1  # kDLCPU
CUDA: Final = 2  # kDLCUDA
IS_COPIED: Final = 2  # a flag
VERSION: Final = (1, 0)
NAME: Final = b"dltensor"
VERSIONED: Final = b"dltensor_versioned"
# DLManagedTensorVersioned: two uint32 of the version, two pointers, flags, and the DLTensor, with
# which DLManagedTensor begins
FLAGS_AT: Final = 24
TENSOR_AT: Final = 32
DEVICE_AT: Final = 8  # of the DLTensor, after a pointer: the device's type and number
HAS_VERSIONS: Final = np.lib.NumpyVersion(np.__version__) >= "2.1.0"

Device = tuple[int, int]  # type and number


@dataclass(frozen=True, slots=True)
class Exported:
    """float32 elements at `address`, in rows; `owner` keeps the memory."""

    owner: object
    address: int
    shape: tuple[int, ...]
    device: Device
    is_copied: bool = False


class _Memory:
    """The memory for NumPy, whose arrays keep this object, which keeps the owner."""

    def __init__(self, exported: Exported) -> None:
        self.owner = exported.owner
        self.__array_interface__ = {
            "version": 3,
            "shape": exported.shape,
            "typestr": "<f4",
            "data": (exported.address, False),
        }


def capsule_of(exported: Exported, *, versioned: bool) -> Any:
    """A new capsule. Its consumer frees the export, or it does itself if it is not taken. With old
    versions of NumPy, it is not versioned; consumers must take that."""
    array = np.asarray(_Memory(exported))
    if versioned and HAS_VERSIONS:
        capsule = array.__dlpack__(max_version=VERSION)
        at = _pointer(capsule, VERSIONED)
        if exported.is_copied:
            ctypes.c_uint64.from_address(at + FLAGS_AT).value |= IS_COPIED
        at += TENSOR_AT
    else:
        capsule = array.__dlpack__()
        at = _pointer(capsule, NAME)
    (ctypes.c_int32 * 2).from_address(at + DEVICE_AT)[:] = [*exported.device]
    return capsule


_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
