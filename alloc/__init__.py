"""alloc: buffer types, buffers and their usage; linear, dynamic and graph allocators.

Does not know backends. Of an op it knows only whether the op can work in place.
"""

from .buffer import (
    Buffer,
    BufferType,
    Usage,
    buffer_of,
    tensor_alloc,
    tensor_copy,
    tensor_get,
    tensor_set,
    view_init,
)
from .dyn_tallocr import DynTensorAllocator
from .gallocr import GraphAllocator
from .host import HostBuffer, HostBufferType, array_of
from .layout import Layout, plan_layout
from .tallocr import TensorAllocator, alloc_tensors

__all__ = [
    "Buffer",
    "BufferType",
    "DynTensorAllocator",
    "GraphAllocator",
    "HostBuffer",
    "HostBufferType",
    "Layout",
    "TensorAllocator",
    "Usage",
    "alloc_tensors",
    "array_of",
    "buffer_of",
    "plan_layout",
    "tensor_alloc",
    "tensor_copy",
    "tensor_get",
    "tensor_set",
    "view_init",
]
