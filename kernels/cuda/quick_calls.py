"""Calls of the CUDA driver that return at once, made while this thread keeps Python's lock.

cuda-bindings gives the lock back during each call. If another thread of Python is busy, the caller
then waits until that thread has had its turn of 5 ms, again in each of the calls of a decode step.
So the calls below go to the driver directly. Calls that may wait are made with the bindings.
Tested by tests/kernels/test_cuda_bindings.py.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Mapping
from typing import Final

from ...base.log import get_logger
from ...base.settings import CUDA_GIVES_LOCK

log = get_logger("cuda")

QuickCall = Callable[..., int]  # returns CUDA's code of an error, 0 for none

LIBRARY: Final = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
API: Final = 12000  # the version of CUDA whose functions these are
HANDLE: Final = ctypes.c_uint64  # also an address
ARGUMENTS: Final[Mapping[str, tuple[type, ...]]] = {
    "cuCtxSetCurrent": (HANDLE,),
    "cuMemcpyHtoDAsync": (HANDLE, HANDLE, ctypes.c_size_t, HANDLE),
    "cuMemcpyDtoDAsync": (HANDLE, HANDLE, ctypes.c_size_t, HANDLE),
    "cuEventRecord": (HANDLE, HANDLE),
    "cuEventQuery": (HANDLE,),
    "cuStreamQuery": (HANDLE,),
    "cuStreamWaitEvent": (HANDLE, HANDLE, ctypes.c_uint),
    "cuGraphLaunch": (HANDLE, HANDLE),
}


def quick_calls() -> dict[str, QuickCall]:
    """The calls by name. The bindings have loaded the driver. Empty if the driver does not hand
    them out, or if CUDA_GIVES_LOCK is on."""
    if CUDA_GIVES_LOCK():
        return {}
    try:
        find = ctypes.PyDLL(LIBRARY).cuGetProcAddress_v2
        return {name: _found(find, name, types) for name, types in ARGUMENTS.items()}
    except (OSError, AttributeError, LookupError) as e:
        log.debug(f"the driver is called through its bindings only: {e}")
        return {}


def _found(find: Callable[..., int], name: str, types: tuple[type, ...]) -> QuickCall:
    address, status = ctypes.c_void_p(), ctypes.c_int()
    flags = ctypes.c_uint64(0)
    code = find(name.encode(), ctypes.byref(address), API, flags, ctypes.byref(status))
    if code or not address.value:
        raise LookupError(f"cuGetProcAddress: {name}: error {code}")
    return ctypes.PYFUNCTYPE(ctypes.c_int, *types)(address.value)
