"""The cost of nodes and fused chains, compared with hand-counted bytes and FLOPs."""

from __future__ import annotations

from lamella.graph import GGMLType, Tensor, ops
from lamella.graph.cost import Cost, KnownUse, cost, data_bytes

F32, F16, I32, Q4_0, Q8_0 = (
    GGMLType.F32,
    GGMLType.F16,
    GGMLType.I32,
    GGMLType.Q4_0,
    GGMLType.Q8_0,
)
ROW = 64 // 32 * 18  # bytes of 64 values of Q4_0


def leaf(type: GGMLType, *ne: int) -> Tensor:
    return Tensor(type, ne)


def test_a_product_reads_its_weights_once() -> None:
    node = ops.mul_mat(leaf(Q4_0, 64, 96), leaf(F32, 64, 5))
    assert cost([node]) == Cost(96 * ROW + 4 * 64 * 5, 4 * 96 * 5, 64 * 96 * 5)
    assert cost([node]).n_bytes == 96 * ROW + 4 * 5 * (64 + 96)


def test_adapters_cost_as_if_all_tokens_used_all() -> None:
    a, x, y = leaf(F32, 64, 16), leaf(F32, 64, 5), leaf(F32, 96, 5)
    z = ops.lora_a(a, x, leaf(F32, 3, 5), leaf(I32, 16))
    assert cost([z]) == Cost(4 * (64 * 16 + 64 * 5 + 3 * 5 + 16), 4 * 16 * 5, 64 * 16 * 5)
    node = ops.lora_b(y, leaf(F32, 96, 16), z)
    assert cost([node]) == Cost(4 * (2 * 96 * 5 + 96 * 16 + 16 * 5) - 4 * 96 * 5, 4 * 96 * 5, 7680)


def test_a_source_that_is_read_twice_counts_once() -> None:
    x = leaf(F32, 10)
    assert cost([ops.add(x, x)]) == Cost(40, 40, 0)


def test_views_cost_nothing_and_gaps_do_not_count() -> None:
    x = leaf(F32, 8, 6)
    part = ops.view(x, (2, 6), (4, 32))
    assert data_bytes(part) == 48 < part.nbytes
    assert cost([part]) == Cost()
    assert cost([ops.cont(part)]) == Cost(48, 48, 0)
    assert cost([ops.cont(leaf(F32, 0, 3))]) == Cost()


def test_rows() -> None:
    ids = leaf(I32, 3)
    assert cost([ops.get_rows(leaf(Q4_0, 64, 1000), ids)]) == Cost(3 * ROW + 12, 3 * 4 * 64)
    written = ops.set_rows(leaf(F16, 64, 1000), leaf(F32, 64, 3), ids)
    assert cost([written]) == Cost(3 * 4 * 64 + 12, 3 * 2 * 64)
    assert cost([ops.cpy(leaf(F32, 64), leaf(F16, 64))]) == Cost(4 * 64, 2 * 64)


def test_only_experts_in_use_are_read() -> None:
    a, ids = leaf(Q4_0, 64, 32, 8), leaf(I32, 2, 3)
    node = ops.mul_mat_id(a, leaf(F32, 64, 1, 3), ids)
    rest, written = 4 * 64 * 3 + 24, 4 * 32 * 2 * 3
    assert cost([node], KnownUse(experts=4)) == Cost(4 * 32 * ROW + rest, written, 64 * 32 * 6)
    # usage unknown: one expert for each choice, but no more than exist
    assert cost([node]).n_read == 6 * 32 * ROW + rest
    many = ops.mul_mat_id(a, leaf(F32, 64, 1, 30), leaf(I32, 2, 30))
    assert cost([many]).n_read == 8 * 32 * ROW + 4 * 64 * 30 + 4 * 60


def test_only_rows_of_chosen_experts_are_read() -> None:
    for n_expert, n_read in ((4, 4), (50, 6)):
        node = ops.add_id(leaf(F32, 64, 2, 3), leaf(F16, 64, n_expert), leaf(I32, 2, 3))
        assert cost([node]) == Cost(4 * 64 * 6 + 2 * 64 * n_read + 4 * 6, 4 * 64 * 6)


def test_attention_reads_the_cells_it_attends_to() -> None:
    q, k, v = leaf(F32, 16, 4, 3), leaf(F16, 32, 640), leaf(Q8_0, 32, 640)
    pages, (seq, pos, begin, end) = leaf(I32, 20, 2), (leaf(I32, 3) for _ in range(4))
    args = (q, k, v, pages, seq, pos, begin, end)
    node = ops.flash_attn_ext(*args, page_size=32, scale=1.0)
    # tokens at 39 and 40 of one sequence, at 4 of another
    used = KnownUse(cells=41 + 5, pairs=40 + 41 + 5)
    read = 4 * 16 * 4 * 3 + 46 * (64 + 34) + 2 * 4 + 4 * 12
    assert cost([node], used) == Cost(read, 4 * 16 * 4 * 3, 86 * 4 * (16 + 16))
    assert cost([node]).n_mul_adds == 3 * 640 * 4 * 32
    window = ops.flash_attn_ext(*args, page_size=32, scale=1.0, n_swa=100)
    assert cost([window]).n_mul_adds == 3 * 100 * 4 * 32
    assert cost([window]).n_read == 4 * 16 * 4 * 3 + 300 * (64 + 34) + 10 * 4 + 4 * 12


def test_attention_reads_values_that_are_part_of_keys_once() -> None:
    q, k = leaf(F32, 48, 4, 1), leaf(F16, 48, 640)
    pages, (seq, pos, begin, end) = leaf(I32, 20, 2), (leaf(I32, 1) for _ in range(4))
    args = (pages, seq, pos, begin, end)
    node = ops.flash_attn_ext(q, k, ops.view(k, (32, 640), k.nb[:2]), *args, page_size=32, scale=1)
    read = 4 * 48 * 4 + 40 * 96 + 2 * 4 + 4 * 4
    assert cost([node], KnownUse(cells=40, pairs=40)) == Cost(read, 4 * 32 * 4, 40 * 4 * (48 + 32))


def test_values_passed_between_fused_nodes_are_free() -> None:
    x, a, b = leaf(F32, 64, 2), leaf(Q4_0, 64, 96), leaf(Q4_0, 64, 96)
    gate, up = ops.mul_mat(a, x), ops.mul_mat(b, x)
    glu = ops.swiglu(gate, up)
    chain = cost([gate, up, glu])
    assert chain == Cost(2 * 96 * ROW + 4 * 128, 4 * 96 * 2, 2 * 64 * 96 * 2)
    alone = [cost([node]).n_bytes for node in (gate, up, glu)]
    assert chain.n_bytes == sum(alone) - 4 * 128 - 2 * 2 * 4 * 96 * 2


def test_a_sum_that_others_read_is_written_too() -> None:
    x, y, w = leaf(F32, 64), leaf(F32, 64), leaf(F32, 64)
    add = ops.add(x, y)
    norm = ops.rms_norm(add, 1e-5)
    mul = ops.mul(norm, w)
    assert cost([add, norm, mul]) == Cost(3 * 256, 256)
    assert cost([add, norm, mul], kept=(mul, add)) == Cost(3 * 256, 2 * 256)


def test_views_between_fused_nodes_are_not_read() -> None:
    x, pos, ids = leaf(F32, 16, 4, 2), leaf(I32, 2), leaf(I32, 2)
    rope = ops.rope(x, pos, n_dims=16)
    rows = ops.reshape(rope, (64, 2))
    stored = ops.set_rows(leaf(F16, 64, 100), rows, ids)
    assert cost([rope, stored]) == Cost(4 * 128 + 8 + 8, 2 * 2 * 64)


def test_recurrences_read_and_write_the_states_in_use() -> None:
    x, states, slots = leaf(F32, 64, 3), leaf(F32, 192, 9), leaf(I32, 2, 3)
    node = ops.ssm_conv(x, leaf(F32, 4, 64), states, slots)
    rest, state = 4 * (64 * 3 + 4 * 64 + 6), 4 * 192
    assert cost([node]) == Cost(rest + 3 * state, 4 * 64 * 3 + 3 * state, 4 * 64 * 3)
    one = cost([node], KnownUse(states=1))
    assert one == Cost(rest + state, 4 * 64 * 3 + state, 4 * 64 * 3)
    few = ops.ssm_conv(x, leaf(F32, 4, 64), leaf(F32, 192, 2), slots)
    assert cost([few]).n_read == rest + 2 * state


def test_products_of_recurrences() -> None:
    slots, ab, bc = leaf(I32, 2, 3), leaf(F32, 4, 3), leaf(F32, 8, 1, 3)
    scan = ops.ssm_scan(
        leaf(F32, 16, 4, 3), ab, leaf(F32, 1, 4), bc, bc, leaf(F32, 8 * 16 * 4, 2), slots
    )
    assert cost([scan]).n_mul_adds == 2 * 8 * 16 * 4 * 3
    q, v = leaf(F32, 8, 2, 3), leaf(F32, 8, 4, 3)
    delta = ops.gated_delta_net(q, q, v, ab, ab, leaf(F32, 256, 2), slots, interleaved=True)
    assert cost([delta]).n_mul_adds == 3 * 8 * 8 * 4 * 3
