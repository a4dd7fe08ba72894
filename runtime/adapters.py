"""What is loaded beside a model: LoRA adapters, with the scales of requests that set none, and
control vectors.

Any thread may use them. Tested by tests/runtime/test_engine_adapters.py.
"""

from __future__ import annotations

from ..base.errors import RequestError
from ..model.adapter_file import AdapterFile, read_adapter
from ..model.adapter_params import AdapterParams, Scales
from ..model.adapters import Adapters
from ..model.control_file import ControlFiles, read_control_vector


def read_adapters(params: AdapterParams) -> list[AdapterFile]:
    """Read the headers of the adapters to load. Raises as `read_adapter`."""
    factor = 0.0 if params.lora_init_without_apply else 1.0
    return [read_adapter(path, factor * scale) for path, scale in params.lora]


def read_control(params: AdapterParams) -> ControlFiles:
    """Read the headers of the control vectors to load. Raises as `read_control_vector`."""
    files = tuple(read_control_vector(path, scale) for path, scale in params.control_vector)
    return ControlFiles(files, params.control_vector_layer_range)


class AdapterScales:
    """The scales of adapters.

    Attributes:
        files: the adapters, by number.
        current: the scale of each in requests that set none.
    """

    def __init__(self, adapters: Adapters | None = None) -> None:
        self.files = () if adapters is None else adapters.all
        self.current = tuple(enumerate(() if adapters is None else adapters.initial))

    def set(self, name: str, scales: Scales) -> None:
        """Set the scales of later requests; those of adapters that are not listed become 0.

        Raises:
            RequestError: there is no such adapter.
        """
        self.current = self.complete(name, scales)

    def used(self) -> tuple[float, ...]:
        """The current scales as in a `PrefixIdentity`: () if all are 0."""
        scales = tuple(scale for _, scale in self.current)
        return scales if any(scales) else ()

    def of(self, scales: Scales | None) -> Scales:
        """Return the scales of all adapters in a request that sets these, or none.

        Raises:
            RequestError: there is no such adapter.
        """
        return self.current if scales is None else self.complete("lora", scales)

    def complete(self, name: str, scales: Scales) -> Scales:
        """Return the scales of all adapters: 0 for those that are not listed."""
        n, found = len(self.files), dict(scales)
        for id in found:
            if not 0 <= id < n:
                valid = f"must be 0 to {n - 1}" if n else "the server has no adapters"
                raise RequestError(f"{name}: there is no adapter {id}: {valid}")
        return tuple((id, found.get(id, 0.0)) for id in range(n))
