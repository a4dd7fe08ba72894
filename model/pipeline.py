"""The rules of pipeline parallelism: a ubatch may start while the one before it still runs.

The rules are llama.cpp's (llama-context.cpp, "enabling pipeline parallelism only when it makes
sense"). Tested by tests/model/test_pipeline.py.
"""

from __future__ import annotations

from typing import Final

from .loader import LoadedModel

ONE_DEVICE: Final = "there are fewer than two devices beside the CPU"


def why_no_pipeline(model: LoadedModel) -> str:
    """Return the reason that ubatches must run one after the other, or "" if they need not."""
    placement, gpus = model.placement, model.devices[:-1]
    n_gpu_layers = placement.params.n_gpu_layers
    n_all = model.hp.n_layer + 1
    if len(placement.devices) < 2:
        return ONE_DEVICE
    if n_gpu_layers is not None and 0 <= n_gpu_layers < n_all:
        return f"{n_gpu_layers} of {n_all} layers are on devices, not all"
    if not placement.params.kv_offload:
        return "keys and values are on the CPU"
    if placement.overrides:
        return "overrides put weights on other devices than their layers"
    for device in gpus:
        if not (device.caps.async_ and device.caps.events):
            return f"{device.name} does not compute asynchronously or has no events"
    return ""
