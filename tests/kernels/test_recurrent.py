"""Recurrences: the bits of a sequence do not depend on batches, and every slot has its state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import cpu_run
import numpy as np
import pytest
import reference_run
from backends import CPU, CUDA, Backend, each_backend
from recurrent_cases import N_SLOTS, N_TOKENS, RECURRENCES, Make, conv, delta, states
from reference_run import Array, assert_close, data, values_of

from lamella.alloc import Usage, alloc_tensors, tensor_set
from lamella.alloc.host import read_array
from lamella.base.errors import BackendError
from lamella.graph import GGMLType, Graph, Op, Tensor
from lamella.kernels.cpu import CpuDevice
from lamella.kernels.cpu.compute import CpuCompute
from lamella.kernels.sim import SimDevice
from lamella.sched import Scheduler

each_recurrence = pytest.mark.parametrize("name", RECURRENCES)

Lives = Sequence[tuple[int, int, int]]  # of each token: its number, slot before, slot after

# three sequences in turns: 1 and 2 begin with zeros, 3 goes on; 2 leaves a checkpoint in slot 4
LIVES: Final[Lives] = (
    *((0, -1, 1), (1, 3, 3), (2, 1, 1), (3, 1, 1), (4, -1, 2), (5, 2, 4)),
    *((6, 4, 2), (7, 2, 2), (8, 3, 3), (9, 1, 1), (10, 3, 5), (11, 1, 1)),
)


def run(
    make: Make, lives: Lives, memory: Tensor, compute: Callable[[Tensor], Array]
) -> dict[int, bytes]:
    """The bits of tokens, computed in one batch with states in `memory`."""
    tokens = [t for t, _, _ in lives]
    node = make(tokens, memory, np.array([slots for _, *slots in lives]))
    result = np.moveaxis(compute(node), -2 if node.op is Op.SSM_CONV else -3, 0)
    return {t: row.tobytes() for t, row in zip(tokens, result, strict=True)}


def run_cut(
    make: Make, size: int, cuts: Sequence[int], compute: Callable[[Tensor], Array]
) -> tuple[dict[int, bytes], Tensor]:
    """The bits of all tokens, with batches cut after `cuts` tokens, and the states at the end."""
    memory, found = states(size), dict[int, bytes]()
    for begin, end in zip((0, *cuts), (*cuts, N_TOKENS), strict=True):
        found |= run(make, LIVES[begin:end], memory, compute)
    return found, memory


@each_recurrence
def test_results_and_states_are_those_of_the_reference(name: str) -> None:
    make, size = RECURRENCES[name]
    slots = np.array([slots for _, *slots in LIVES])
    expected, actual = states(size), states(size)
    reference = reference_run.run(make(range(N_TOKENS), expected, slots))
    node = make(range(N_TOKENS), actual, slots)
    CPU.compute(node)
    assert_close(values_of(node), reference, 1e-5)
    assert_close(values_of(actual), values_of(expected), 1e-5)


@each_backend
@each_recurrence
def test_bits_do_not_depend_on_the_cut(on: Backend, name: str) -> None:
    make, size = RECURRENCES[name]
    whole, at_end = run_cut(make, size, (), on.compute)
    random = np.random.default_rng(3)
    cuts = [list(range(1, N_TOKENS))]
    for _ in range(4 if on is CPU else 1):
        cuts.append(sorted(random.choice(np.arange(1, N_TOKENS), 3, replace=False).tolist()))
    for cut in cuts:
        found, memory = run_cut(make, size, cut, on.compute)
        assert found == whole, cut
        assert (data(memory) == data(at_end)).all(), cut


@pytest.mark.parametrize("n_threads", [2, 3, 8])
@each_recurrence
def test_bits_do_not_depend_on_threads(name: str, n_threads: int) -> None:
    make, size = RECURRENCES[name]
    whole, at_end = run_cut(make, size, (), CPU.compute)
    found, memory = run_cut(make, size, (5,), lambda node: cpu_run.compute(node, n_threads))
    assert found == whole
    assert (data(memory) == data(at_end)).all()


@each_backend
@each_recurrence
def test_a_sequence_alone_has_the_same_bits(on: Backend, name: str) -> None:
    make, size = RECURRENCES[name]
    whole, at_end = run_cut(make, size, (), on.compute)
    for slots in ({1}, {2, 4}, {3, 5}):
        memory = states(size)
        alone = run(make, [life for life in LIVES if life[2] in slots], memory, on.compute)
        assert alone == {t: whole[t] for t in alone}
        some = sorted(slots)
        assert (data(memory)[0, 0, some] == data(at_end)[0, 0, some]).all()


@each_backend
@each_recurrence
def test_a_slot_for_each_token_keeps_all_states(on: Backend, name: str) -> None:
    """As speculation needs them: each state is the one with which the sequence goes on."""
    make, size = RECURRENCES[name]
    lives = [(t, t if t else -1, t + 1) for t in range(N_SLOTS - 1)]
    memory = states(size)
    whole = run(make, lives, memory, on.compute)
    in_place = states(size)
    for t, _, after in lives:
        life = [(t, 2 if t else -1, 2)]
        assert run(make, life, in_place, on.compute) == {t: whole[t]}
        assert (data(in_place)[0, 0, 2] == data(memory)[0, 0, after]).all()


@each_backend
@each_recurrence
def test_a_begin_ignores_what_a_slot_has(on: Backend, name: str) -> None:
    make, size = RECURRENCES[name]
    lives = [(0, -1, 1), (1, 1, 1)]
    memory, poisoned = states(size), states(size)
    data(poisoned)[...] = np.nan
    found = run(make, lives, memory, on.compute)
    assert run(make, lives, poisoned, on.compute) == found
    assert (data(poisoned)[0, 0, 1] == data(memory)[0, 0, 1]).all()


@each_backend
@pytest.mark.parametrize("name", ["ssm_conv 2", "ssm_scan heads", "ssm_scan channels"])
@pytest.mark.parametrize(("before", "after", "wrong"), [(6, 1, 6), (1, 6, 6), (1, -1, -1)])
def test_a_wrong_slot_is_an_error(
    on: Backend, name: str, before: int, after: int, wrong: int
) -> None:
    make, size = RECURRENCES[name]
    memory = states(size)
    with pytest.raises(BackendError, match=f"index {wrong} must be at least 0 and below 6"):
        run(make, [(0, 1, 1), (1, before, after)], memory, on.compute)


@each_recurrence
def test_a_device_with_memory_of_its_own_keeps_the_states(name: str) -> None:
    """The scheduler runs the node where its states are, and never copies them."""
    make, size = RECURRENCES[name]
    slots = np.array([slots for _, *slots in LIVES])
    memory = states(size)
    expected = CPU.compute(make(range(N_TOKENS), memory, slots))
    device, cpu = SimDevice("GPU0", compute=partial(CpuCompute, 2)), CpuDevice(1)
    there = Tensor(memory.type, memory.ne, name="states")
    [buffer] = alloc_tensors([there], device.buffer_type, Usage.ANY)
    tensor_set(there, data(states(size)))
    node = make(range(N_TOKENS), there, slots)
    given = {src: data(src) for src in node.src if src is not there}
    for src in given:
        src.buffer, src.offset = None, 0
        src.set_input()
    backends = [d.init_backend() for d in (device, cpu)]
    scheduler = Scheduler(backends)
    scheduled = scheduler.alloc_graph(Graph(node.set_output()))
    for src, values in given.items():
        tensor_set(src, values)
    scheduler.graph_compute(scheduled)
    scheduler.synchronize()
    assert scheduled.backend_of(node).device is device
    assert (read_array(node) == expected).all()
    assert (read_array(there) == data(memory)).all()
    scheduler.free()
    for backend in backends:
        backend.free()
    buffer.free()


def test_a_gpu_has_kernels_for_states_that_fit_its_registers() -> None:
    slots = np.ones((1, 2))
    for d, fits in ((256, True), (257, False)):
        make = delta(d, 1, 1, interleaved=False, n=1)
        node = make([0], Tensor(GGMLType.F32, (d * d, 2)), slots)
        assert CPU.supports(node)
        assert CUDA.supports(node) == fits
    for n_taps, fits in ((8, True), (9, False)):
        make = conv(32, n_taps, bias=False, n=1)
        node = make([0], Tensor(GGMLType.F32, ((n_taps - 1) * 32, 2)), slots)
        assert CPU.supports(node)
        assert CUDA.supports(node) == fits
