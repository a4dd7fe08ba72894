"""CuPy takes a result from a GPU's memory, without a copy. Needs a GPU and CuPy."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from gpus import Gpus

import lamella
from lamella.model.shipped import shipped_model

IDS = list(range(1, 41))


def test_cupy_takes_logits_without_a_copy(gpus: Gpus) -> None:
    if not gpus.is_real:
        pytest.skip("CuPy needs a real GPU: --cuda")
    cupy = pytest.importorskip("cupy", reason="needs CuPy: pip install 'lamella[cupy]'")
    with lamella.load(shipped_model(), n_ctx=64, n_gpu_layers=99) as model:
        expected, array = model.logits(IDS), model.logits(IDS, device=True)
    address = array.__cuda_array_interface__["data"][0]
    for taken in (cupy.from_dlpack(array), cupy.asarray(array)):
        assert taken.data.ptr == address
        assert cupy.asnumpy(taken).tobytes() == expected.tobytes()
        largest = cupy.argmax(taken, axis=1)
        assert (cupy.asnumpy(largest) == np.argmax(expected, axis=1)).all()
    kept = cupy.from_dlpack(array)
    del array, taken
    gc.collect()
    assert cupy.asnumpy(kept).tobytes() == expected.tobytes()
