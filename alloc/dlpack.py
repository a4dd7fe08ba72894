"""DLPack: memory as an array that other libraries take without a copy.

    capsule = capsule_of(Exported(buffer, address, shape, device))

The structures and the rules of capsules are those of DLPack 1.0 (dmlc/dlpack, include/dlpack.h, and
its Python specification). Only contiguous float32 arrays. What is exported keeps its buffer alive
until the consumer's last array is gone. Tested by tests/alloc/test_dlpack.py.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

CPU: Final = 1  # kDLCPU
CUDA: Final = 2  # kDLCUDA
FLOAT: Final = 2  # kDLFloat
IS_COPIED: Final = 2  # a flag
VERSION: Final = (1, 0)
NAME: Final = b"dltensor"
VERSIONED: Final = b"dltensor_versioned"

Device = tuple[int, int]  # type and number


@dataclass(frozen=True, slots=True)
class Exported:
    """float32 elements at `address`, in rows; `owner` keeps the memory."""

    owner: object
    address: int
    shape: tuple[int, ...]
    device: Device
    is_copied: bool = False


class _Tensor(ctypes.Structure):  # DLTensor
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):  # DLManagedTensor
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter))


class _ManagedVersioned(ctypes.Structure):  # DLManagedTensorVersioned
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", _Deleter),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


# what consumers still hold, by the address of its structure
_LIVE: Final[dict[int, tuple[Any, ...]]] = {}
_NUMBERS: Final = count(1)


def n_live() -> int:
    """The number of exports that are not freed."""
    return len(_LIVE)


def capsule_of(exported: Exported, *, versioned: bool) -> Any:
    """A new capsule. Its consumer frees the export, or it does itself if it is not taken."""
    n = len(exported.shape)
    shape = (ctypes.c_int64 * n)(*exported.shape)
    strides = (ctypes.c_int64 * n)(*_strides(exported.shape))
    managed: _Managed | _ManagedVersioned = _ManagedVersioned() if versioned else _Managed()
    t = managed.tensor
    t.data, t.device_type, t.device_id = exported.address, *exported.device
    t.ndim, t.code, t.bits, t.lanes = n, FLOAT, 32, 1
    t.shape = ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64))
    t.strides = ctypes.cast(strides, ctypes.POINTER(ctypes.c_int64))
    managed.deleter = _DELETE
    if isinstance(managed, _ManagedVersioned):
        managed.major, managed.minor = VERSION
        managed.flags = IS_COPIED if exported.is_copied else 0
    at = ctypes.addressof(managed)
    _LIVE[at] = managed, shape, strides, exported
    return _new_capsule(at, VERSIONED if versioned else NAME, _DESTROY)


def _strides(shape: tuple[int, ...]) -> list[int]:
    strides, step = list[int](), 1
    for n in reversed(shape):
        strides.insert(0, step)
        step *= n
    return strides


def _delete(at: int) -> None:
    _LIVE.pop(at, None)


def _destroy(capsule: int) -> None:
    for name in (NAME, VERSIONED):  # a consumer has renamed what it took
        if _is_valid(capsule, name):
            _LIVE.pop(_pointer(capsule, name), None)


_DELETE: Final = _Deleter(_delete)
# its argument is no py_object: the capsule has no references any more
_DESTROY: Final = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(_destroy)

_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
