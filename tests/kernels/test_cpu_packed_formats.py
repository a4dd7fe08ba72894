"""Packed weights: their layout, unpacking, and rows by index."""

from __future__ import annotations

import cpu_run
import numpy as np
import pytest
from packed_run import buffer_of, bytes_of, packed, packed_bytes, random_bytes, random_weights
from reference_run import GUARD, data, each_type, ids, leaf

from lamella.base.errors import BackendError
from lamella.graph import GGMLType, Tensor, ops
from lamella.kernels.cpu.kernel_set import KERNELS
from lamella.kernels.cpu.packed.formats import FORMATS
from lamella.kernels.quants import WEIGHT_TYPES

ROWS = (1, 15, 16, 17, 40)


def test_the_usual_types_are_packed() -> None:
    assert set(WEIGHT_TYPES) <= set(FORMATS)


def widths_of(type: GGMLType) -> tuple[int, ...]:
    """Lengths of rows: several counts of blocks, and floats that do not fill 16 bytes."""
    blocks = (1, 7, 8, 9, 12, 100) if not type.is_quantized else (1, 2, 3, 9)
    return tuple(n * type.block_size for n in blocks)


@each_type(FORMATS)
def test_packing_follows_the_format_and_is_reversible(type: GGMLType) -> None:
    form = FORMATS[type]
    for k in widths_of(type):
        for n in ROWS:
            t, raw = Tensor(type, (k, n)), bytes_of(random_bytes(type, n, k))
            buffer = buffer_of(t)
            buffer.set_tensor(t, raw)
            size = form.bytes_of(k, n)
            assert size == -(-n // 16) * 16 * type.row_size(k)
            assert (buffer.memory[:size] == packed_bytes(type, raw, k)).all(), (k, n)
            assert (buffer.memory[size:] == GUARD).all(), (k, n)
            assert (buffer.get_tensor(t) == raw).all(), (k, n)


@each_type(FORMATS)
def test_missing_rows_are_zeros(type: GGMLType) -> None:
    k = 8 * type.block_size
    t = Tensor(type, (k, 17))
    buffer = buffer_of(t)
    buffer.set_tensor(t, np.full(t.nbytes, 0xFF, np.uint8))
    groups = buffer.memory[: FORMATS[type].bytes_of(k, 17)].reshape(2, -1)
    assert (groups[0] == 0xFF).all()
    # one row of 16
    assert np.count_nonzero(groups[1]) == type.row_size(k)


def test_a_group_of_floats() -> None:
    t = packed(leaf(np.arange(64).reshape(16, 4)))
    assert (data(t) == t.buffer.view(np.float32).reshape(4, 16).T).all()


def test_a_group_of_blocks() -> None:
    # 16 rows of one block of Q4_0: scales side by side, then the first 4 bytes of each row, ...
    t = random_bytes(GGMLType.Q4_0, 16, 32)
    rows, memory = bytes_of(t).reshape(16, 18), packed(t).buffer
    assert (memory[:32].reshape(16, 2) == rows[:, :2]).all()
    for i in range(4):
        part = memory[32 + 64 * i :][:64].reshape(16, 4)
        assert (part == rows[:, 2 + 4 * i :][:, :4]).all()


def test_a_group_of_single_bits() -> None:
    # a Q5_0 block's fifth bits: bit 4 * j + b is bit j of byte b
    raw = np.zeros((16, 22), np.uint8)
    raw[3, 2:6] = [0, 0b00100000, 0, 0]  # bit 13 of row 3: j = 3, b = 1
    t = Tensor(GGMLType.Q5_0, (32, 16))
    buffer = buffer_of(t)
    buffer.set_tensor(t, raw)
    [at] = np.flatnonzero(buffer.memory[: t.nbytes])
    assert at == 16 * 2 + 4 * 3 + 1
    assert buffer.memory[at] == 1 << 3


# --- rows by index ---


@each_type(FORMATS)
def test_rows_have_the_bits_of_decoded_ones(type: GGMLType) -> None:
    for k in widths_of(type):
        for n in ROWS:
            plain = random_bytes(type, n, k, seed=k)
            weights = packed(plain)
            some = np.random.default_rng(n).integers(0, n, 23)
            some[:2] = 0, n - 1
            expected = cpu_run.compute(ops.get_rows(plain, ids(some))).tobytes()
            for n_threads in (1, 3):
                node = ops.get_rows(weights, ids(some))
                assert cpu_run.compute(node, n_threads).tobytes() == expected, (k, n)


def test_rows_by_indices_with_gaps() -> None:
    plain = random_weights(GGMLType.Q6_K, 40, 256)
    table = np.random.default_rng(0).integers(0, 40, (6, 4))
    column = ops.view(ops.transpose(ids(table)), (6,), nb=(16,), offset=8)
    assert column.nb[0] == 16
    found = cpu_run.compute(ops.get_rows(packed(plain), column))
    assert (found == cpu_run.compute(ops.get_rows(plain, ids(table[:, 2])))).all()


@pytest.mark.parametrize("bad", [-1, 17, 31, 2**31 - 1, -(2**31)])
def test_indices_out_of_range_are_refused(bad: int) -> None:
    weights = packed(random_weights(GGMLType.Q4_0, 17, 64))
    with pytest.raises(BackendError, match=f"index {bad} must be at least 0 and below 17"):
        cpu_run.compute(ops.get_rows(weights, ids([3, bad, 16])))
    assert np.isfinite(cpu_run.compute(ops.get_rows(weights, ids([3, 0, 16])))).all()


def test_rows_of_experts_have_no_kernel() -> None:
    weights = packed(random_weights(GGMLType.Q4_0, 2, 17, 64))
    node = ops.get_rows(weights, ids([[3], [1]]))
    assert not KERNELS.supports(node)
