"""Races of CUDA kernels, found on the emulated GPU: those of a toy, and that kernels have none.

`LAMELLA_TEST_RACES=1 scripts/test tests/kernels/test_cuda_attention.py` finds those of other tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import attention_run
import cpu_run
import cuda_run
import numpy as np
import pytest
from cuda_cases import supported_cases
from cuda_grid_compiler import RACES, finds_races
from cuda_run import run_kernel
from op_case import rows, weights
from quantized_run import copied
from reference_run import ids, leaf, normal

from lamella.base.errors import BackendError
from lamella.graph import GGMLType, Tensor, ops
from lamella.kernels.cuda.ops.attention import Division
from lamella.kernels.cuda.plan import CudaPlan

pytestmark = pytest.mark.skipif(not finds_races(), reason="finding races needs Linux and g++")

TOY: Final = str(Path(__file__).with_name("toy_races.cu"))
THREADS: Final = 64
WRITTEN: Final = "another value is written"
READ: Final = f"(it is read|{WRITTEN})"  # depends on the order of threads
COPIED: Final = "(it is read|a copy begins or ends)"
IN_FLIGHT: Final = "while a copy to it is in flight"

each_order = pytest.mark.parametrize("reverse", [False, True], ids=["", "reverse"])


@pytest.fixture(autouse=True)
def races(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(RACES, "1")
    cuda_run.forget()
    yield
    cuda_run.forget()


def run_toy(what: int, reverse: bool) -> None:
    arrays = [np.zeros(2 * THREADS, np.int32), np.zeros(4 * THREADS, np.int32)]
    run_kernel(
        TOY, "toy_race", arrays, [what], grid=(2, 1, 1), block=THREADS,
        shared_memory=16 * THREADS, reverse=reverse,
    )  # fmt: skip


RACES_OF_TOY: Final = {
    "other warps, no barrier": (1, READ),
    "other warps, a barrier of warps": (2, READ),
    "other lanes, an exchange": (4, READ),
    "a write after reads": (5, READ),
    "several values": (7, WRITTEN),
    "blocks write": (8, "another block"),
    "a block writes what another one does": (9, "another block"),
    "a copy in flight": (11, IN_FLIGHT),
    "a copy that another lane waited for": (12, COPIED),
    "a copy to what was just read": (14, COPIED),
}


@each_order
@pytest.mark.parametrize(("what", "message"), RACES_OF_TOY.values(), ids=RACES_OF_TOY)
def test_races_are_found(what: int, message: str, reverse: bool) -> None:
    with pytest.raises(BackendError, match=rf"toy_race: .*{message}.* \[toy_races.cu:\d+"):
        run_toy(what, reverse)


@each_order
@pytest.mark.parametrize("what", [0, 3, 6, 10, 13])
def test_what_is_ordered_or_writes_equal_values_is_no_race(what: int, reverse: bool) -> None:
    run_toy(what, reverse)


def products(n: int, k: int = 4096) -> Tensor:
    return ops.mul_mat(weights(GGMLType.Q4_K, 37, k), rows(range(n), k, n))


def products_of_experts(n: int) -> Tensor:
    chosen = np.argsort(np.random.default_rng(2).random((n, 6)))[:, :2]
    columns = leaf(normal(n, 1, 512))
    return ops.mul_mat_id(weights(GGMLType.Q4_K, 6, 7, 512), columns, ids(chosen))


def product_off_alignment() -> Tensor:
    """The last chunk of a batch ends where its stage does; the next batch is in flight."""
    w = copied(weights(GGMLType.IQ2_XXS, 3, 64 * 256), 14)
    return ops.mul_mat(w, rows([0], 64 * 256, 1))


# with more rounds than stages, partitions or turns: what is used again must be free
KERNELS: Final[dict[str, Callable[[], Tensor]]] = {
    "mul_mat_one": product_off_alignment,
    "mul_mat_few": lambda: products(3, k=64 * 256),
    "mul_mat_mma": lambda: products(40),
    "group_by_expert": lambda: products_of_experts(150),
    "mul_mat_id_tiles_32": lambda: named("mul_mat_id F16 40"),
    "gated_delta_net_f32": lambda: named("gated_delta_net 64"),
    "ssm_scan_heads_f32": lambda: named("ssm_scan heads"),
}


def named(name: str) -> Tensor:
    return next(case for case in supported_cases() if case.name == name).node()


def kernels_of(plan: CudaPlan) -> set[str]:
    return {step.call.kernel.name for step in plan.steps}


@pytest.mark.parametrize("kernel", KERNELS)
def test_kernels_have_no_races(kernel: str) -> None:
    node = KERNELS[kernel]()
    cpu_run.prepare(node)
    assert kernel in kernels_of(cuda_run.run_nodes(node))


@pytest.mark.parametrize(
    "way", [Division(1, split=8), Division(4), Division(4, 2, 64), Division(0)], ids=str
)
def test_attention_has_no_races(way: Division) -> None:
    with attention_run.division(way):
        cuda_run.compute(attention_run.build())
