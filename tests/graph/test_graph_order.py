"""Graphs: the order of nodes and leafs is ggml's, use counts, names and identity."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from lamella.graph import INPUT, OUTPUT, GGMLType, Graph, Op, Tensor, ops
from lamella.graph.graph import Rewrites
from lamella.graph.tensor import view_tensor

GOLDEN = Path(__file__).parents[1] / "data" / "scheduler-cases.jsonl"


class RecursiveGraph:
    """ggml_visit_parents_graph of ggml.c, with its recursion."""

    def __init__(self) -> None:
        self.nodes: list[Tensor] = []
        self.leafs: list[Tensor] = []
        self.use_counts: dict[Tensor, int] = {}

    def visit(self, tensor: Tensor) -> None:
        if tensor in self.use_counts:
            return
        self.use_counts[tensor] = 0
        for src in tensor.src:
            self.visit(src)
            self.use_counts[src] += 1
        (self.leafs if tensor.op is Op.NONE else self.nodes).append(tensor)


def leaf(name: str = "") -> Tensor:
    return Tensor(GGMLType.F32, (4,), name=name)


def node(*src: Tensor, name: str = "") -> Tensor:
    """A node with any number of sources: the order does not depend on the op."""
    return Tensor(GGMLType.F32, (4,), op=Op.ADD, src=src, name=name)


def names(tensors: list[Tensor]) -> str:
    return " ".join(t.name for t in tensors)


def random_dag(rng: random.Random) -> list[Tensor]:
    """Nodes made of earlier tensors, with leafs in between. A source may occur twice."""
    tensors = [leaf("t0"), leaf("t1")]
    for i in range(2, rng.randint(5, 60)):
        if rng.random() < 0.2:
            tensors.append(leaf(f"t{i}"))
        else:
            src = [rng.choice(tensors) for _ in range(rng.randint(1, 4))]
            tensors.append(node(*src, name=f"t{i}"))
    return tensors


@pytest.mark.parametrize("seed", range(50))
def test_order_is_that_of_the_recursion(seed: int) -> None:
    rng = random.Random(seed)
    tensors = random_dag(rng)
    graph, want = Graph(), RecursiveGraph()
    for _ in range(rng.randint(1, 4)):
        tensor = rng.choice(tensors)
        graph.build_forward_expand(tensor)
        want.visit(tensor)
        assert names(graph.nodes) == names(want.nodes)
        assert names(graph.leafs) == names(want.leafs)
        assert graph.use_counts == want.use_counts


def golden_cases() -> list[dict[str, Any]]:
    return [json.loads(line) for line in GOLDEN.read_text().splitlines()]


def test_order_is_that_of_ggml() -> None:
    """On real graphs: their nodes and leafs as recorded from ggml's scheduler."""
    seen = 0
    for case in golden_cases():
        if "expect" not in case:
            continue
        by_name: dict[str, Tensor] = {}
        for t in case["tensors"]:
            src = [by_name[name] for name in t.get("src", [])]
            by_name[t["name"]] = Tensor(
                GGMLType[t["type"]], t["ne"], op=Op[t["op"]], src=src, name=t["name"]
            )
        graph = Graph(*(by_name[name] for name in case["expand"]))
        assert [t.name for t in graph.nodes] == [n["name"] for n in case["expect"]["nodes"]]
        assert [t.name for t in graph.leafs] == [n["name"] for n in case["expect"]["leafs"]]
        seen += 1
    assert seen > 100


def test_sources_come_first_left_to_right() -> None:
    a, b, c = leaf("a"), leaf("b"), leaf("c")
    left, right = node(b, a, name="left"), node(c, name="right")
    graph = Graph(node(left, right, name="out"))
    assert names(graph.nodes) == "left right out"
    assert names(graph.leafs) == "b a c"
    assert len(graph) == 3


def test_several_expands_keep_what_is_there() -> None:
    a = leaf("a")
    first, second = node(a, name="first"), node(a, name="second")
    graph = Graph(second, first)
    graph.build_forward_expand(node(first, second, name="out"))
    graph.build_forward_expand(first)
    assert names(graph.nodes) == "second first out"
    assert names(graph.leafs) == "a"


def test_an_expanded_leaf_is_a_leaf() -> None:
    graph = Graph(leaf("a"))
    assert (names(graph.nodes), names(graph.leafs)) == ("", "a")


def test_use_counts_count_each_edge() -> None:
    a, unused = leaf("a"), leaf("unused")
    twice = node(a, a)
    out = node(twice, a)
    graph = Graph(out)
    assert graph.use_counts == {a: 3, twice: 1, out: 0}
    assert unused not in graph.use_counts
    later = node(out)
    graph.build_forward_expand(later)
    graph.build_forward_expand(later)  # nothing new: nothing counted again
    assert graph.use_counts == {a: 3, twice: 1, out: 1, later: 0}


def test_a_view_source_alone_is_not_visited() -> None:
    owner = node(leaf("a"), name="owner")
    graph = Graph(node(view_tensor(owner), name="out"))
    assert names(graph.nodes) == "out"
    assert names(graph.leafs) == "owner (view)"


def test_a_deep_chain_does_not_overflow_the_stack() -> None:
    tensor = leaf("start")
    chain = [tensor := ops.sqr(tensor) for _ in range(5000)]
    graph = Graph(chain[-1])
    assert graph.nodes == chain
    assert names(graph.leafs) == "start"


def test_nameless_tensors_are_numbered_by_place() -> None:
    a, b = leaf(), leaf("b")
    c = leaf()
    first, second = node(a, b), node(c)
    graph = Graph(node(first, node(name="named"), second))
    assert names(graph.leafs) == "leaf_0 b leaf_2"
    assert names(graph.nodes) == "node_0 named node_2 node_3"


def test_names_stay_in_a_second_graph() -> None:
    first = node(leaf())
    Graph(node(leaf(), node(leaf())), first)
    name = first.name
    assert name == "node_2"
    assert Graph(first).nodes[0].name == name


def test_uid_is_unique_and_changes_with_every_expansion() -> None:
    a = node(leaf())
    graphs = [Graph(), Graph(a), Graph(a)]
    uids = [g.uid for g in graphs] + [g.view(0, len(g)).uid for g in graphs]
    for _ in range(2):  # the second time nothing is added
        graphs[0].build_forward_expand(a)
        uids.append(graphs[0].uid)
    assert len(set(uids)) == len(uids)


def test_view_shows_part_of_the_nodes() -> None:
    a = leaf("a")
    first = node(a, name="first")
    second = node(first, name="second")
    graph = Graph(node(second, first, name="third"))
    part = graph.view(1, 3)
    assert names(part.nodes) == "second third"
    assert len(part) == 2
    assert part.leafs == []
    assert part.use_counts[first] == 2  # the whole graph's, as in ggml
    assert names(graph.view(0, 0).nodes) == ""
    assert len(graph) == 3


def test_restore_takes_back_once() -> None:
    first, second = node(leaf(), name="first"), node(leaf(), name="second")
    graph, own = Graph(first, second), list(first.src)
    for _ in range(2):
        graph.rewrites = Rewrites(order=[first, second])
        graph.rewrites.sources += [(first, 0, own[0]), (first, 0, second)]
        graph.rewrites.flags += [(second, 0), (second, INPUT)]
        graph.rewrites.placed.append(first)
        graph.nodes = [second, first]
        first.src[:], second.flags, first.buffer, first.offset = [second], INPUT | OUTPUT, "B", 64
        graph.restore()
        assert (graph.nodes, first.src, second.flags) == ([first, second], own, 0)
        assert (first.buffer, first.offset) == (None, 0)
    first.flags = OUTPUT
    graph.restore()
    assert first.flags == OUTPUT


def test_printed_graph_has_a_line_for_each_tensor() -> None:
    a = leaf("a").set_input()
    out = node(a, a, name="out").set_output()
    graph = Graph(out)
    head, first, second = str(graph).splitlines()
    assert head == f"graph {graph.uid}: 1 nodes, 1 leafs"
    assert first.split() == ["0", "ADD", "[4]", "F32", "o", "out", "<-", "a,", "a"]
    assert second.split() == ["0", "leaf", "[4]", "F32", "i", "a"]
