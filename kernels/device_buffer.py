"""Memory of a device. The host cannot access it in place; it can only copy to and from it.

Tested by tests/kernels/test_cuda_device.py and tests/kernels/test_sim_memory.py.
"""

from __future__ import annotations

from typing import NoReturn

from ..alloc.buffer import Buffer
from ..base.errors import TensorAccessError
from ..graph.tensor import Tensor


class DeviceBuffer(Buffer):
    """A buffer in a device's memory. Access in place raises an error, like a fault on a device."""

    @property
    def memory(self) -> NoReturn:
        raise TensorAccessError(f"the host cannot read {self.buft.name} in place: copy it")

    def array(self, tensor: Tensor) -> NoReturn:
        raise TensorAccessError(
            f"{tensor!r} is in {self.buft.name}, which the host cannot read in place: copy it"
        )
