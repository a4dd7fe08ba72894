"""The self-test of devices: correct devices pass, and every fault is reported."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from cuda_grid import GridCompiler, GridDriver, needs_compiler

from lamella.alloc import Buffer
from lamella.alloc.buffer import Bytes
from lamella.base.errors import BackendError
from lamella.graph import GGMLType, Graph, Op, Tensor
from lamella.kernels.compute import Workspace
from lamella.kernels.cpu import CpuDevice
from lamella.kernels.cuda.registry import open_cuda
from lamella.kernels.reference.compute import ReferenceCompute, ReferenceProgram
from lamella.kernels.sim import SimDevice
from lamella.observe.self_test import CASES, N_MANY, Check, attention, norm, product, self_test
from lamella.sched.backend import Device

NAMES = [case.name for case in CASES]


def passed(device: Device) -> list[Check]:
    checks = list(self_test(device))
    assert [check.name for check in checks] == NAMES
    for check in checks:
        assert check.problem == ""
        assert check.error is not None and check.error <= check.limit
        assert check.seconds is not None and check.seconds > 0
    return checks


@pytest.mark.parametrize("repack", [True, False])
def test_the_cpu(repack: bool) -> None:
    device = CpuDevice(2, repack=repack)
    passed(device)
    assert [buft.used for buft in (device.buffer_type, *device.extra_buffer_types)] == (
        [0, 0] if repack else [0]
    )


def test_packed_weights_are_used_if_available(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device, sizes = CpuDevice(1), list[int]()
    (packed,) = device.extra_buffer_types
    alloc = packed.alloc_buffer

    def spy(size: int) -> Buffer:
        sizes.append(size)
        return alloc(size)

    monkeypatch.setattr(packed, "alloc_buffer", spy)
    assert [c.problem for c in self_test(device, (product(GGMLType.Q4_0, 1),))] == [""]
    assert max(sizes) > 0


@needs_compiler
def test_a_gpu() -> None:
    driver = GridDriver(n_gpus=1)
    (device,) = open_cuda(lambda: driver, GridCompiler).devices()
    few = (product(GGMLType.Q4_0, 1), product(GGMLType.Q4_0, N_MANY), norm())
    assert [check.problem for check in self_test(device, few)] == ["", "", ""]
    assert driver.grid_gpus[0].live["allocations"] == 0


# --- faults ---


class Spoiled(ReferenceProgram):
    """Runs a program, then spoils its result."""

    def __init__(self, right: ReferenceProgram, spoil: Callable[[], None]) -> None:
        super().__init__(())
        self.right = right
        self.spoil = spoil

    def __call__(self) -> None:
        self.right()
        self.spoil()


class Wrong(ReferenceCompute):
    """Applies `change` to the results of one op. `n_done` counts them."""

    def __init__(self, op: Op, change: Callable[[Bytes, int], None]) -> None:
        self.op = op
        self.change = change
        self.n_done = 0

    def compile(
        self,
        graph: Graph,
        memory_of: Callable[[Tensor, Tensor], Bytes],
        workspace: Workspace | None = None,
    ) -> ReferenceProgram:
        right = super().compile(graph, memory_of, workspace)

        def spoil() -> None:
            for node in graph.nodes:
                if node.op is self.op:
                    self.n_done += 1
                    memory = memory_of(node, node)
                    self.change(memory[node.offset : node.offset + node.nbytes], self.n_done)

        return Spoiled(right, spoil)


def problems(op: Op, change: Callable[[Bytes, int], None]) -> dict[str, str]:
    device = SimDevice("SIM0", compute=lambda: Wrong(op, change))
    return {check.name: check.problem for check in self_test(device, CASES[:1] + CASES[-3:])}


def add_a_little(result: Bytes, n_done: int) -> None:
    result.view(np.float32)[-1] += 0.1


def test_a_wrong_value_is_found() -> None:
    for op, wrong in (
        (Op.MUL_MAT, "Q4_0 product, 1 token"),
        (Op.FLASH_ATTN_EXT, "attention, 1 token"),
        (Op.MUL, "norm"),
    ):
        found = problems(op, add_a_little)
        assert re.fullmatch(r"error [\d.e+-]+ is above the limit [\d.e-]+", found[wrong]), found
        assert (found["norm"] == "") is (op is not Op.MUL)


def test_nan_is_found() -> None:
    def spoil(result: Bytes, n_done: int) -> None:
        result.view(np.float32)[5] = np.nan

    assert problems(Op.MUL, spoil)["norm"] == "error inf is above the limit 1e-05"


def test_runs_that_differ_are_found() -> None:
    def change_sometimes(result: Bytes, n_done: int) -> None:
        result[0] ^= n_done & 1  # one bit, far below the limit

    assert problems(Op.MUL, change_sometimes)["norm"] == "two runs gave different results"


def test_a_failing_case_does_not_end_the_test() -> None:
    def fail(result: Bytes, n_done: int) -> None:
        raise BackendError("the GPU has fallen off the bus")

    found = problems(Op.FLASH_ATTN_EXT, fail)
    assert "fallen off the bus" in found["attention, 1 token"]
    assert found["norm"] == ""


def test_a_missing_kernel_and_a_full_memory() -> None:
    weak = SimDevice("SIM0", ops=set(Op) - {Op.FLASH_ATTN_EXT})
    small = SimDevice("SIM1", memory=1000)
    (check,) = self_test(weak, (attention(1),))
    assert check == Check("attention, 1 token", None, 2e-3, None, "no kernel for FLASH_ATTN_EXT")
    (check,) = self_test(small, (norm(),))
    assert check.problem.startswith("out of memory: SIM1 cannot allocate ")
    assert small.buffer_type.used == 0
