"""SparseMixer's weights of experts, against a plain NumPy pass of transformers' formulas."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lamella.alloc import alloc_tensors, tensor_get, tensor_set
from lamella.graph import GGMLType, Graph, Tensor
from lamella.kernels.sim import SimDevice
from lamella.model.arch.phimoe import share
from lamella.sched import DeviceType, Scheduler

F32Array = npt.NDArray[np.float32]


def computed(candidates: F32Array, scores: F32Array, best: F32Array) -> F32Array:
    arrays = (candidates, scores, best)
    leaves = [Tensor(GGMLType.F32, array.shape[::-1]) for array in arrays]
    device = SimDevice("CPU", DeviceType.CPU)
    alloc_tensors(leaves, device.buffer_type)
    for leaf, array in zip(leaves, arrays, strict=True):
        tensor_set(leaf, array)
    result = share(*leaves).set_output()
    scheduler = Scheduler([device.init_backend()])
    scheduler.graph_compute(scheduler.alloc_graph(Graph(result)))
    found = tensor_get(result).view(np.float32)
    scheduler.free()
    return found


def expected(candidates: F32Array, scores: F32Array, best: F32Array) -> F32Array:
    is_far = (best - scores) / np.maximum(np.abs(scores), best) > 0.02
    e = np.exp(np.where(is_far, -np.inf, candidates - best))
    shares: F32Array = 1 / e.sum(axis=-1)
    return shares


def test_shares_of_the_experts_that_are_nearly_as_good() -> None:
    rng = np.random.default_rng(2)
    scores = rng.normal(0, 1, (64, 6)).astype(np.float32)
    scores[:, 3] = scores[:, 1] * 1.015  # near, whatever the sign
    scores[0] = 0.0
    order = np.argsort(-scores, axis=-1, kind="stable")
    rest = scores.copy()
    for candidates in (scores, rest):
        best = candidates.max(axis=-1, keepdims=True)
        with np.errstate(invalid="ignore"):
            wanted = expected(candidates, scores, best)
        wanted[0] = 1 / (candidates[0] == 0).sum()  # the ratio of zeros is no number
        found = computed(candidates, scores, best)
        assert 0.4 < found[1:].min() < 0.6 and found.max() == 1.0
        np.testing.assert_allclose(found, wanted, rtol=1e-5)
        np.put_along_axis(rest, order[:, :1], -np.inf, axis=-1)
