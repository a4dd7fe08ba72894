"""Results that stay in a device's memory, for other libraries.

Tested by tests/api/test_device_array.py.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from .alloc.buffer import BufferType, buffer_of, tensor_get, tensor_set
from .alloc.dlpack import CPU, CUDA, Device, Exported, capsule_of
from .alloc.host import HostBufferType
from .graph import GGMLType, Tensor

F32Array = npt.NDArray[np.float32]
HOST: Final[Device] = (CPU, 0)


class DeviceArray:
    """Numbers (float32, rows one after the other) in the memory of a GPU, or of the host if the
    model runs there. Other libraries take them without a copy: `cupy.from_dlpack(array)`
    (`pip install 'lamella[cupy]'`), `torch.from_dlpack(array)`, and `np.from_dlpack(array)` on the
    host.

    >>> array = model.logits(model.tokenize("a fox"), device=True)
    >>> array.shape, str(array.dtype), bool((np.from_dlpack(array) == array.numpy()).all())
    ((2, 4096), 'float32', True)

    All work is done when a method returns it, so no stream must wait. It has memory of its own,
    which lives until it and all arrays that were made of it are gone, also after the model is
    closed.
    """

    def __init__(self, tensor: Tensor, shape: tuple[int, ...]) -> None:
        buffer = buffer_of(tensor)
        if buffer.buft.dlpack_device is None:  # memory that only Lamella can use
            tensor = _placed(HostBufferType(), tensor_get(tensor).view(np.float32))
        self._tensor = tensor
        self.shape = shape

    @classmethod
    def _of(cls, values: F32Array, buft: BufferType) -> DeviceArray:
        """A copy of values in memory of this type."""
        return cls(_placed(buft, values), values.shape)

    @property
    def dtype(self) -> np.dtype[np.float32]:
        """float32."""
        return np.dtype(np.float32)

    @property
    def device(self) -> str:
        """The name of the memory: "CUDA0", or "CPU"."""
        return str(buffer_of(self._tensor).buft.name)

    def numpy(self) -> F32Array:
        """A copy in the host's memory."""
        return tensor_get(self._tensor).view(np.float32).reshape(self.shape)

    def __dlpack_device__(self) -> Device:
        device = buffer_of(self._tensor).buft.dlpack_device
        assert device is not None, "other memory was copied"
        return device

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: Device | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A capsule for `from_dlpack` of another library.

        `stream` does not matter, as all work is done. An array on a GPU can be copied to the host
        (`dl_device`), and not to another GPU.
        """
        own = self.__dlpack_device__()
        wanted = own if dl_device is None else (int(dl_device[0]), int(dl_device[1]))
        source = self
        if wanted != own or copy:
            if copy is False or wanted != HOST:
                raise BufferError(
                    f"an array on {self.device} cannot be exported to the DLPack device {wanted} "
                    f"with copy={copy}: it is on {own}, and can only be copied to {HOST}"
                )
            source = DeviceArray._of(self.numpy(), HostBufferType())
        buffer = buffer_of(source._tensor)
        address = buffer.address + source._tensor.offset
        exported = Exported(buffer, address, self.shape, wanted, source is not self)
        return capsule_of(exported, versioned=max_version is not None and max_version[0] >= 1)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """For CuPy, PyTorch and Numba. Only arrays on GPUs have it.

        The consumer keeps this object as long as its own array.
        """
        if self.__dlpack_device__()[0] != CUDA:
            raise AttributeError(f"an array on {self.device} has no __cuda_array_interface__")
        address = buffer_of(self._tensor).address + self._tensor.offset
        return {
            "shape": self.shape,
            "typestr": "<f4",
            "data": (address, False),
            "strides": None,
            "stream": None,  # nothing is in flight
            "version": 3,
        }

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"<lamella.DeviceArray {list(self.shape)} float32 on {self.device}>"


def _placed(buft: BufferType, values: F32Array) -> Tensor:
    """Values in a new buffer."""
    tensor = Tensor(GGMLType.F32, (values.size,), name="array")
    tensor.buffer = buft.alloc_buffer(max(tensor.nbytes, 1))
    tensor_set(tensor, np.ascontiguousarray(values))
    return tensor
