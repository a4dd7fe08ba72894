"""Single ops on a GPU, through its backend: right, within their memory, with the same bits each
time and in every batch. Failing ones leave the device usable.

--cuda runs all op cases, and others of real models' sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import device_run
import numpy as np
import pytest
import reference_run
from cuda_cases import limit_of, parts_of, supported_cases
from device_cases import large_cases
from gpus import Gpus, emulated_gpus
from op_case import OpCase, rows
from op_cases import op_cases
from reference_run import Array, ids, relative_error, values_of

from lamella.base.errors import BackendError
from lamella.graph import GGMLType, Op, Tensor, ops
from lamella.kernels.cuda.backend import CudaBackend
from lamella.kernels.cuda.table import OPS, CudaCall, CudaKernel, CudaSource
from lamella.kernels.plan.op_table import Implementation

SAMPLE = 12  # without --cuda, one case of 12: tests/kernels/test_ops.py has them all


def cases(is_real: bool) -> Sequence[OpCase]:
    if not is_real:
        return supported_cases()[::SAMPLE]
    timed = [case for case in op_cases() if case.timed and " packed " not in case.name]
    return [*supported_cases(), *timed, *large_cases()]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    is_real = metafunc.config.getoption("--cuda")
    if "case" in metafunc.fixturenames:
        metafunc.parametrize("case", cases(is_real), ids=str)
    if "token_case" in metafunc.fixturenames:
        of_tokens = [case for case in cases(is_real) if case.axis is not None]
        metafunc.parametrize("token_case", of_tokens, ids=str)


@pytest.fixture(scope="module")
def backend(gpus: Gpus) -> Iterator[CudaBackend]:
    backend = gpus.first.init_backend()
    yield backend
    backend.free()


def token_bits(backend: CudaBackend, case: OpCase, tokens: Sequence[int]) -> Array:
    """The result's bytes; the first axis is the tokens."""
    assert case.axis is not None
    array = device_run.compute(backend, case.node(tokens))
    return np.moveaxis(array, array.ndim - 1 - case.axis, 0).copy().view(np.uint8)


# --- results and bits ---


def test_the_result_is_the_reference_s_each_time(
    backend: CudaBackend, gpus: Gpus, case: OpCase
) -> None:
    expected = reference_run.run(case.node())
    node = case.node()
    bits = device_run.compute(backend, node).tobytes()
    assert relative_error(values_of(node), expected) <= limit_of(case)
    for shift in gpus.pick((0, 0, 4, 36), (4,)):
        assert device_run.compute(backend, case.node(), shift).tobytes() == bits, shift


def test_bits_do_not_depend_on_the_batch(backend: CudaBackend, token_case: OpCase) -> None:
    case = token_case
    whole = token_bits(backend, case, list(range(case.n_tokens)))
    for part in parts_of(case.n_tokens):
        if max(part) < case.n_tokens:
            assert (token_bits(backend, case, part) == whole[part]).all(), part


def test_bits_do_not_depend_on_the_order_of_threads(gpus: Gpus, backend: CudaBackend) -> None:
    if gpus.is_real:
        pytest.skip("a real device has its own order")
    with emulated_gpus(n_gpus=1, reverse=True) as others:
        other = others.first.init_backend()
        for case in cases(False)[:20]:
            first = device_run.compute(backend, case.node())
            assert device_run.compute(other, case.node()).tobytes() == first.tobytes(), case
        other.free()


# --- errors ---


def test_a_bad_index_is_an_error_and_the_device_goes_on(backend: CudaBackend) -> None:
    table, good = reference_run.leaf(np.arange(40).reshape(10, 4)), [3, 9, 0]
    for bad in (10, -1, 2**31 - 1):
        node = ops.get_rows(table, ids([1, bad, 2]))
        with pytest.raises(BackendError, match=rf"get_rows .*: index {bad} must be .* below 10"):
            device_run.compute(backend, node)
        again = device_run.compute(backend, ops.get_rows(table, ids(good)))
        assert (again.reshape(-1, 4) == np.arange(40).reshape(10, 4)[good]).all()


@pytest.mark.parametrize(
    "text",
    ["this is no kernel", '#include "device.cuh"\nKERNEL(other, 32, 1) {}\n'],
    ids=["broken", "another one"],
)
def test_a_kernel_that_does_not_compile_leaves_the_device_usable(
    backend: CudaBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    path = tmp_path / "odd.cu"
    path.write_text(text)
    kernel = CudaKernel(CudaSource(str(path)), "odd")
    odd = Implementation(lambda node: True, lambda node: [CudaCall(kernel, (1, 1, 1), 32)])
    with monkeypatch.context() as patched:
        patched.setitem(OPS.entries, Op.SCALE, odd)
        with pytest.raises(BackendError, match=r"odd\.cu|NOT_FOUND"):
            device_run.compute(backend, scaled())
    assert_works(backend)


def test_a_launch_that_is_refused_leaves_the_device_usable(
    backend: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block of more threads than any device has."""
    known = OPS.entries[Op.SCALE]

    def calls(node: object) -> list[CudaCall]:
        return [call._replace(block=4096) for call in known.calls(node)]  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setitem(OPS.entries, Op.SCALE, Implementation(known.supports, calls))
        with pytest.raises(BackendError, match="CUDA_ERROR_"):
            device_run.compute(backend, scaled())
    assert_works(backend)


def scaled() -> Tensor:
    return ops.scale(rows([0, 1], 64), 2.0)


def assert_works(backend: CudaBackend) -> None:
    node = scaled()
    device_run.compute(backend, node)
    np.testing.assert_allclose(values_of(node), 2 * values_of(rows([0, 1], 64)))


def test_all_common_weight_types_are_supported(gpus: Gpus) -> None:
    x = rows([0, 1], 256)
    types = "Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 MXFP4 Q4_K Q5_K Q6_K F32 F16 BF16"
    for type in types.split():
        weights = reference_run.leaf(np.ones((4, 256)), GGMLType[type])
        assert gpus.first.supports_op(ops.mul_mat(weights, x)), type
