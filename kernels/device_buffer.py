"""Memory of a device that the host cannot read in place, only copy to and from.

Tested by tests/kernels/test_cuda_device.py and tests/kernels/test_sim_memory.py.
"""

from __future__ import annotations

from typing import NoReturn

from ..alloc.buffer import Buffer
from ..base.errors import TensorAccessError
from ..graph.tensor import Tensor


class DeviceBuffer(Buffer):
    """A buffer in such memory. Access in place is an error, as it would be a fault on a device."""

    @property
    def memory(self) -> NoReturn:
        raise TensorAccessError(f"the host cannot read {self.buft.name} in place: copy it")

    def array(self, tensor: Tensor) -> NoReturn:
        raise TensorAccessError(
            f"{tensor!r} is in {self.buft.name}, which the host cannot read in place: copy it"
        )
