"""Scheduled graphs as text and as a picture."""

from __future__ import annotations

import re

from null_machine import Null, inp, weight

from lamella.graph import Graph, ops
from lamella.sched import Scheduler, describe, draw


def test_text_and_picture_of_a_graph_over_two_devices() -> None:
    null = Null()
    w = weight(null.gpu_bufts[0], 8, 4, name="w")
    h = ops.mul_mat(w, ops.reshape(inp(8, name="x"), (8, 1)).named("r")).named("h")
    y = ops.sqr(h).named("y")
    scheduler = Scheduler(null.backends)
    scheduler.set_tensor_backend(y, null.backends[1])
    scheduled = scheduler.alloc_graph(Graph(y))
    assert describe(scheduled).splitlines()[1:] == [
        "  split 0: GPU0, nodes 0..1, copies r (32 bytes)",
        "      1 MUL_MAT        h [4] F32 [GPU0 1.wgt0] <- w [GPU0 1.dst], GPU0#r#0 [GPU0 4.cpy]",
        "  split 1: CPU, nodes 2..2, copies h (16 bytes)",
        "      2 SQR            y [4] F32 [CPU usr] <- CPU#h#0 [CPU 4.cpy]",
    ]
    picture = draw(scheduled)
    assert picture.count('label="copy"') == 2
    fills = re.findall(r'fillcolor="(#\w+)"', picture)
    on_gpu = sum(fill != "#c6dcf2" for fill in fills)
    assert (len(fills), on_gpu) == (7, 3)  # w, its product and the copy of its input
