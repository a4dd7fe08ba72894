"""Each pass alone, on null devices."""

from __future__ import annotations

import pytest
from null_machine import Null, convolution, inp, leaf, placed, weight

from lamella import SchedulingError
from lamella.alloc import Usage
from lamella.graph import Graph, Op, Tensor, ops
from lamella.graph.tensor import view_tensor
from lamella.sched.passes import (
    assign_backends,
    pass1_allocated,
    pass2_expand,
    pass3_best,
    pass4_remaining,
)

# --- pass 1 ---


def test_pass1_allocated_tensors_stay_where_they_are() -> None:
    null = Null()
    on_gpu = weight(null.gpu_bufts[0], 4, usage=Usage.ANY)
    view = ops.view(on_gpu, (2,))
    a = pass1_allocated(null.assignment(Graph(ops.sqr(view))))
    assert placed(a, on_gpu, view) == [("GPU0", "1.dst"), ("GPU0", "1.dst")]


def test_pass1_inputs_go_to_the_last_backend() -> None:
    null = Null(2)
    x = inp(4)
    a = pass1_allocated(null.assignment(Graph(ops.sqr(x))))
    assert placed(a, x, a.graph.nodes[0]) == [("CPU", "1.inp"), None]


def test_pass1_ops_follow_their_weights_with_the_index_of_the_source() -> None:
    null = Null(2)
    first = ops.mul_mat(weight(null.gpu_bufts[1], 4, 4), inp(4))
    second = ops.add(inp(4), weight(null.gpu_bufts[0], 4))
    a = pass1_allocated(null.assignment(Graph(first, second)))
    assert placed(a, first, second) == [("GPU1", "1.wgt0"), ("GPU0", "1.wgt1")]


def test_pass1_memory_that_is_no_weight_does_not_choose() -> None:
    null = Null()
    node = ops.mul_mat(weight(null.gpu_bufts[0], 4, 4, usage=Usage.ANY), inp(4))
    a = pass1_allocated(null.assignment(Graph(node)))
    assert placed(a, node) == [None]


def test_pass1_rope_factors_and_attention_do_not_choose() -> None:
    null = Null()
    factors = weight(null.gpu_bufts[0], 2, name="rope_freqs")
    pos = Tensor(ops.argsort(inp(3)).type, (3,), name="pos").set_input()
    roped = ops.rope(inp(4, 1, 3), pos, factors, n_dims=4)
    pool = weight(null.gpu_bufts[0], 4, 8)
    pages = Tensor(pos.type, (2, 1)).set_input()
    attn = ops.flash_attn_ext(roped, pool, pool, pages, pos, pos, pos, pos, page_size=4, scale=1)
    a = pass1_allocated(null.assignment(Graph(attn)))
    assert placed(a, roped, attn) == [None, None]


@pytest.mark.parametrize(
    ("op_offload", "home", "expected"),
    [
        (True, "host", ("GPU0", "1.off")),
        (False, "host", ("CPU", "1.wgt0")),
        (True, "gpu", ("GPU1", "1.wgt0")),
    ],
)
def test_pass1_offload(op_offload: bool, home: str, expected: tuple[str, str]) -> None:
    null = Null(2, offload=(Op.MUL_MAT,))
    buft = null.host if home == "host" else null.gpu_bufts[1]
    node = ops.mul_mat(weight(buft, 4, 4), inp(4))
    a = pass1_allocated(null.assignment(Graph(node), op_offload))
    assert placed(a, node) == [expected]


def test_pass1_offloads_from_host_memory_only() -> None:
    """The CPU's repacked layout is not host memory: no other device can read it."""
    null = Null(offload=(Op.MUL_MAT,))
    null.host.is_host = False
    node = ops.mul_mat(weight(null.host, 4, 4), inp(4))
    a = pass1_allocated(null.assignment(Graph(node)))
    assert placed(a, node) == [("CPU", "1.wgt0")]


def test_pass1_recurrences_stay_with_their_states() -> None:
    """A copy of the states would get what the node writes."""
    null = Null(2)
    node = convolution(weight(null.gpu_bufts[1], 4, 8, usage=Usage.ANY))
    a = pass1_allocated(null.assignment(Graph(ops.sqr(node))))
    assert placed(a, node, a.graph.nodes[-1]) == [("GPU1", "1.dst"), None]


def test_pass1_refuses_states_where_the_op_cannot_run() -> None:
    null = Null(ops=(Op.ADD,))
    states = weight(null.gpu_bufts[0], 4, 8, name="states", usage=Usage.ANY)
    with pytest.raises(SchedulingError, match=r"states\[4, 8\] F32 .*GPU0.*SSM_CONV"):
        pass1_allocated(null.assignment(Graph(convolution(states))))


def test_pass1_refuses_states_among_weights() -> None:
    null = Null()
    node = convolution(weight(null.gpu_bufts[0], 4, 8, name="states"))
    with pytest.raises(SchedulingError, match=r"SSM_CONV would write into weights states"):
        pass1_allocated(null.assignment(Graph(node)))


def test_pass1_refuses_memory_where_the_op_cannot_run() -> None:
    null = Null(ops=(Op.ADD,))
    cache = weight(null.gpu_bufts[0], 4, name="cache", usage=Usage.ANY)
    with pytest.raises(SchedulingError, match=r"cache_view.*GPU0.*CPY"):
        pass1_allocated(null.assignment(Graph(ops.cpy(inp(4), cache).named("cache_view"))))


def test_pass1_refuses_leafs_that_view_an_unplaced_tensor() -> None:
    """A leaf that is a view: nothing in the graph reaches its source, so it would have no data."""
    null = Null()
    node = ops.sqr(view_tensor(leaf(4, name="lost"), "looking"))
    with pytest.raises(SchedulingError, match=r"looking\[4\] F32 is a view of lost\[4\] F32"):
        pass1_allocated(null.assignment(Graph(node)))


def test_pass1_refuses_leafs_and_inputs_that_view_a_node() -> None:
    null = Null()
    computed = ops.sqr(leaf(4, name="x")).named("a")
    looking = view_tensor(computed, "looking")
    with pytest.raises(SchedulingError, match=r"looking\[4\] F32 is a view of a\[4\] F32"):
        pass1_allocated(null.assignment(Graph(computed, ops.sqr(looking))))
    view = ops.view(computed, (2,)).named("v").set_input()
    with pytest.raises(
        SchedulingError, match=r"v\[2\] F32 cannot be an input: it views a\[4\] F32"
    ):
        pass1_allocated(null.assignment(Graph(ops.sqr(view))))


def test_pass1_refuses_to_write_into_weights() -> None:
    """The scheduler never waits for weights, as they must not change."""
    null = Null()
    w = weight(null.gpu_bufts[0], 4, name="w")
    with pytest.raises(SchedulingError, match=r"CPY would write into weights w\[4\] F32"):
        pass1_allocated(null.assignment(Graph(ops.cpy(inp(4), w))))


def test_pass1_keeps_what_the_user_chose() -> None:
    null = Null()
    node = ops.mul_mat(weight(null.gpu_bufts[0], 4, 4), inp(4))
    a = pass1_allocated(null.assignment(Graph(node), user={node: 1}))
    assert placed(a, node) == [("CPU", "usr")]


# --- pass 2 ---


def chain(n: int) -> list[Tensor]:
    nodes = [ops.sqr(leaf(4))]
    for _ in range(n - 1):
        nodes.append(ops.sqr(nodes[-1]))
    return nodes


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        # a forward and a backward sweep: the CPU does not spread over GPU neighbors
        ("..0.2.0.", "00002000"),
        ("2......0", "20000000"),
        ("...2....", "22222222"),
        ("0..1", "0001"),
        ("1..0", "1110"),
        ("....", "...."),
    ],
)
def test_pass2_spreads_to_neighbors(given: str, expected: str) -> None:
    null = Null(2)
    nodes = chain(len(given))
    user = {n: int(c) for n, c in zip(nodes, given, strict=True) if c != "."}
    a = pass2_expand(null.assignment(Graph(nodes[-1]), user=user))
    assert "".join(str(a.ids.get(n, ".")) for n in nodes) == expected
    assert all(a.causes[n] == "2.sup" for n in nodes if n in a.ids and n not in user)


def test_pass2_skips_unsupported_nodes() -> None:
    null = Null(ops=(Op.SQR,))
    nodes = [ops.sqr(leaf(4))]
    nodes.append(ops.sqrt(nodes[-1]))
    nodes.append(ops.sqr(nodes[-1]))
    a = pass2_expand(null.assignment(Graph(nodes[-1]), user={nodes[0]: 0}))
    assert placed(a, *nodes[1:]) == [None, ("GPU0", "2.sup")]


def test_pass2_leaves_views_alone() -> None:
    null = Null()
    first = ops.sqr(leaf(4))
    view = ops.reshape(first, (2, 2))
    a = pass2_expand(null.assignment(Graph(ops.sqr(view)), user={first: 0}))
    assert placed(a, view, a.graph.nodes[-1]) == [None, ("GPU0", "2.sup")]


# --- pass 3 ---


def test_pass3_takes_the_backend_that_reads_most_sources() -> None:
    null = Null(2)
    x = weight(null.gpu_bufts[1], 4, usage=Usage.ANY)
    y = weight(null.gpu_bufts[1], 4, usage=Usage.ANY)
    node = ops.add(x, y)
    a = pass3_best(pass1_allocated(null.assignment(Graph(node))))
    assert placed(a, node) == [("GPU1", "3.best")]


def test_pass3_the_first_wins_a_tie_and_must_support_the_op() -> None:
    null = Null(2, ops=(Op.MUL,))
    added, multiplied = ops.add(leaf(4), leaf(4)), ops.mul(leaf(4), leaf(4))
    a = pass3_best(null.assignment(Graph(added, multiplied)))
    assert placed(a, added, multiplied) == [("CPU", "3.best"), ("GPU0", "3.best")]


def test_pass3_upgrades_over_the_same_memory() -> None:
    null = Null(1, accel=True)
    x = inp(4, 4)
    product, total = ops.mul_mat(x, x), ops.add(x, x)
    user = {product: 2, total: 2}
    a = pass3_best(pass1_allocated(null.assignment(Graph(product, total), user=user)))
    assert placed(a, product, total) == [("BLAS", "3.upg"), ("CPU", "usr")]


def test_pass3_does_not_upgrade_if_a_source_cannot_be_read() -> None:
    null = Null(1, accel=True)
    product = ops.mul_mat(weight(null.gpu_bufts[0], 4, 4), inp(4))
    a = pass3_best(pass1_allocated(null.assignment(Graph(product), user={product: 2})))
    assert placed(a, product) == [("CPU", "usr")]


# --- pass 4 ---


def test_pass4_views_follow_their_source_and_leafs_their_reader() -> None:
    null = Null(2)
    plain = leaf(4)
    node = ops.add(ops.sqr(leaf(4)), plain)
    view = ops.reshape(node, (2, 2))
    last = ops.sqr(view)
    a = pass4_remaining(null.assignment(Graph(last), user={node: 1, last: 0, node.src[0]: 1}))
    assert placed(a, plain, view) == [("GPU1", "4.cur"), ("GPU1", "4.vsrc")]


def test_pass4_gives_the_rest_to_the_first_that_supports_it() -> None:
    null = Null(2, ops=(Op.MUL,))
    node = ops.add(leaf(4), leaf(4))
    a = pass4_remaining(null.assignment(Graph(node)))
    assert placed(a, node) == [("CPU", "2.sup")]


def test_pass4_a_leaf_reached_through_views_goes_with_its_first_reader() -> None:
    """ggml aborts here."""
    null = Null(2)
    plain = leaf(4, name="plain")
    view = ops.view(plain, (2,))
    node = ops.sqr(view)
    a = assign_backends(null.assignment(Graph(node), user={node: 1}))
    assert placed(a, plain, view) == [("GPU1", "4.cur"), ("GPU1", "4.vsrc")]


def test_pass4_unread_leafs_go_to_the_cpu() -> None:
    null = Null()
    plain = leaf(4)
    graph = Graph(ops.view(leaf(4), (2,)), plain)
    a = assign_backends(null.assignment(graph))
    assert placed(a, plain) == [("CPU", "4.cur")]
    assert all(t in a.ids for t in (*graph.leafs, *graph.nodes))


def test_an_op_without_support_is_refused() -> None:
    null = Null(ops=(Op.ADD,), cpu_ops=(Op.ADD,))
    node = ops.mul_mat(weight(null.gpu_bufts[0], 4, 4, name="W"), inp(4)).named("product")
    with pytest.raises(
        SchedulingError, match=r"MUL_MAT.*product.*W\[4, 4\] F32 in GPU0.*GPU0, CPU"
    ):
        assign_backends(null.assignment(Graph(node)))
