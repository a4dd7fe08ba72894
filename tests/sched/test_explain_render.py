"""Scheduled graphs as text and as DOT."""

from __future__ import annotations

import logging
import re

import pytest
from machines import MACHINES, running
from null_machine import Null, inp, weight
from random_graphs import Model, RandomGraph

from lamella.base.settings import DEBUG
from lamella.graph import Graph, Op, Tensor, ops
from lamella.sched import ScheduledGraph, Scheduler
from lamella.sched.explain import describe, draw
from lamella.sched.explain.render import COLUMNS, size_text


def two_devices() -> ScheduledGraph:
    null = Null()
    w = weight(null.gpu_bufts[0], 8, 4, name="w")
    h = ops.mul_mat(w, ops.reshape(inp(8, name="x"), (8, 1)).named("r")).named("h")
    y = ops.sqr(h).named("y")
    scheduler = Scheduler(null.backends)
    scheduler.set_tensor_backend(y, null.backends[1])
    return scheduler.alloc_graph(Graph(ops.sqr(y).named("z")))


def test_text_of_a_graph_over_two_devices() -> None:
    assert describe(two_devices()).splitlines() == [
        "graph: 4 nodes, 2 splits, 2 copies of 48 bytes",
        "",
        "split 0: GPU0, nodes 0..1, 1 computed",
        "  begins: it is the first split",
        "  copies: r (input), 32 bytes from CPU",
        "   0 RESHAPE r [8] F32 CPU  4.vsrc it is a view of x on CPU",
        "   1 MUL_MAT h [4] F32 GPU0 1.wgt0 its weights w are on GPU0",
        "      <- w, r (copy)",
        "",
        "split 1: CPU, nodes 2..3, 2 computed",
        "  begins: y runs on CPU, the split before on GPU0: it was pinned",
        "  copies: h (activation), 16 bytes from GPU0",
        "   2 SQR     y [4] F32 CPU  usr    it was pinned",
        "      <- h (copy); in place of the copy of h",
        "   3 SQR     z [4] F32 CPU  2.sup  it follows y on CPU, which supports it",
        "      <- y; in place of y",
        "",
        "compute memory",
        "  GPU0 0: 128 bytes for 2 tensors of 48 bytes, 0 in place (128 bytes reserved)",
        "  HOST 0: 64 bytes for 4 tensors of 48 bytes, 2 in place (64 bytes reserved)",
    ]


def test_a_picture_of_a_graph_over_two_devices() -> None:
    picture = draw(two_devices())
    assert picture.count('label="copy"') == 2
    fills = re.findall(r'fillcolor="(#\w+)"', picture)
    on_gpu = sum(fill != "#c6dcf2" for fill in fills)
    assert (len(fills), on_gpu) == (8, 3)  # w, its product and the copy of its input


def test_copies_of_parts_of_experts_and_ahead() -> None:
    null = Null(offload=[Op.MUL_MAT_ID])
    both = inp(40, 3, name="both").set_bundle()
    x = ops.view(both, (32, 3), nb=(4, both.nb[1])).named("x")
    gate = weight(null.gpu_bufts[0], 32, 8, name="gate")
    ids = ops.argsort_top_k(ops.mul_mat(gate, ops.cont(x)), 2)
    experts = weight(null.host, 32, 16, 8, name="experts")
    y = ops.mul_mat_id(experts, ops.reshape(ops.cont(x), (32, 1, 3)), ids).named("y")
    scheduler = Scheduler(null.backends)
    scheduler.set_tensor_backend(ids.root, null.by_name["CPU"])
    text = describe(scheduler.alloc_graph(Graph(y)))
    assert "copies: experts (experts), at most 12.0 KiB from CPU" in text
    assert "<- x (copy of both)" in text


def test_no_line_is_too_long() -> None:
    for make in MACHINES:
        for seed in range(4):
            with running(make) as machine:
                scheduler = Scheduler(machine.backends)
                graph = RandomGraph(Model(seed, machine.homes), seed).graph
                for i, node in enumerate(graph.nodes):
                    node.named(f"blk.{i}.a_rather_long_name")
                text = describe(scheduler.alloc_graph(graph))
                assert max(map(len, text.splitlines())) <= COLUMNS
                assert text.count("\n      <- ") == sum(
                    node.op.name not in ("VIEW", "RESHAPE", "PERMUTE", "TRANSPOSE")
                    for node in graph.nodes
                )
                scheduler.free()


def test_a_name_longer_than_a_line_stays_whole() -> None:
    null, name = Null(n_gpus=0), "n" * 300
    text = describe(Scheduler(null.backends).alloc_graph(Graph(ops.sqr(inp(8)).named(name))))
    assert name in text


def test_names_cannot_control_a_terminal() -> None:
    null = Null(n_gpus=0)
    y = ops.sqr(inp(8, name="x\x1b[2J\n")).named("y\x1b]0;title\x07")
    text = describe(Scheduler(null.backends).alloc_graph(Graph(y)))
    assert "\x1b" not in text and "\x07" not in text
    assert "y?]0;title?" in text


def test_nodes_without_names_are_called_by_their_op() -> None:
    null = Null(n_gpus=0)
    x = Tensor(inp(8).type, (8,)).set_input()
    graph = Graph(ops.sqr(x))
    graph.nodes[0].name = ""
    assert " SQR sqr " in describe(Scheduler(null.backends).alloc_graph(graph))


def test_every_new_graph_is_logged_at_level_3(caplog: pytest.LogCaptureFixture) -> None:
    null = Null(n_gpus=0)
    with DEBUG.set(3), caplog.at_level(logging.DEBUG, "lamella"):
        scheduled = Scheduler(null.backends).alloc_graph(Graph(ops.sqr(inp(8)).named("y")))
    assert describe(scheduled) in caplog.messages


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (0, "0 bytes"),
        (10239, "10239 bytes"),
        (10240, "10.0 KiB"),
        (3 << 20, "3.0 MiB"),
        (5 << 30, "5.0 GiB"),
        (5 << 40, "5120.0 GiB"),
    ],
)
def test_sizes(n: int, text: str) -> None:
    assert size_text(n) == text
