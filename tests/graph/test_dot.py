"""Graphs as DOT text: read back by a small parser, and by `dot` where it is installed."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from lamella.graph import GGMLType, Graph, Tensor, ops, to_dot

STRING = r'"((?:[^"\\]|\\.)*)"'
NODE = re.compile(rf"  (\w+) \[shape=(\w+), style={STRING}, fillcolor={STRING}, label={STRING}\];")
EDGE = re.compile(rf"  (\w+) -> (\w+) \[(?:style=dashed, )?label={STRING}\];")

ODD_NAMES = ['say "hi"', "back\\slash", 'end\\"', "two\nlines", "a]; b -> c [", "größe"]


class Dot:
    """Nodes by label and edges by label; every line must be one or the other."""

    def __init__(self, text: str) -> None:
        head, style, *body, foot = text.splitlines()
        assert (head, foot) == ("digraph lamella {", "}")
        assert re.fullmatch(rf"  node \[style=filled, fontname={STRING}\];", style)
        self.shapes: dict[str, tuple[str, str, str]] = {}
        self.edges: list[tuple[str, str, str]] = []
        labels: dict[str, str] = {}
        for line in body:
            if node := NODE.fullmatch(line):
                name, shape, style, fill, label = node.groups()
                assert name not in labels, line
                labels[name] = re.sub(r"\\(.)", unescape, label)
                self.shapes[labels[name]] = (shape, style, fill)
            else:
                edge = EDGE.fullmatch(line)
                assert edge is not None, line
                self.edges.append((labels[edge[1]], labels[edge[2]], edge[3]))


def unescape(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]


def attention_like() -> Graph:
    a = Tensor(GGMLType.Q4_0, (64, 8), name="w")
    x = Tensor(GGMLType.F32, (64, 4), name="x")
    y = ops.mul_mat(a, x).named("y")
    return Graph(ops.mul(ops.reshape(y, (4, 8)).named("r"), ops.reshape(y, (4, 8))).named("out"))


def test_every_tensor_and_edge_is_drawn() -> None:
    dot = Dot(to_dot(attention_like()))
    assert dot.shapes == {
        "w\n[64, 8] Q4_0": ("ellipse", "filled", "white"),
        "x\n[64, 4] F32": ("ellipse", "filled", "white"),
        "y\nMUL_MAT [8, 4] F32": ("box", "filled", "white"),
        "r\nRESHAPE [4, 8] F32": ("box", "filled,dashed", "white"),
        "node_2\nRESHAPE [4, 8] F32": ("box", "filled,dashed", "white"),
        "out\nMUL [4, 8] F32": ("box", "filled", "white"),
    }
    short = [(a.split("\n")[0], b.split("\n")[0], j) for a, b, j in dot.edges]
    assert short == [
        ("w", "y", "0"),
        ("x", "y", "1"),
        ("y", "r", "0"),
        ("y", "node_2", "0"),
        ("r", "out", "0"),
        ("node_2", "out", "1"),
    ]


def test_color_is_asked_for_every_tensor() -> None:
    graph = attention_like()
    dot = Dot(to_dot(graph, lambda t: "gold" if t.name == "y" else "gray"))
    fills = {label.split("\n")[0]: fill for label, (_, _, fill) in dot.shapes.items()}
    assert fills == {t.name: "gold" if t.name == "y" else "gray" for t in graph.leafs + graph.nodes}


@pytest.mark.parametrize("name", ODD_NAMES)
def test_names_are_escaped(name: str) -> None:
    a = Tensor(GGMLType.F32, (4,), name=name)
    dot = Dot(to_dot(Graph(ops.sqr(a).named("out"))))
    assert f"{name}\n[4] F32" in dot.shapes
    assert dot.edges == [(f"{name}\n[4] F32", "out\nSQR [4] F32", "0")]


def test_part_of_a_graph_draws_no_edge_to_missing_tensors() -> None:
    graph = attention_like()
    dot = Dot(to_dot(graph.view(1, 4)))
    assert len(dot.shapes) == 3
    assert len(dot.edges) == 2


def test_empty_graph() -> None:
    assert Dot(to_dot(Graph())).shapes == {}


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
def test_graphviz_reads_it() -> None:
    graph = attention_like()
    for tensor, name in zip(graph.nodes + graph.leafs, ODD_NAMES, strict=True):
        tensor.name = name
    run = subprocess.run(
        ["dot", "-Tplain"], input=to_dot(graph), capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("\nnode ") == 6
    assert run.stdout.count("\nedge ") == 6


def test_a_dashed_arrow_links_a_copy_to_its_source() -> None:
    x = Tensor(GGMLType.F32, (4,), name="x")
    copy = Tensor(GGMLType.F32, (4,), name="GPU#x#0")
    dot = Dot(to_dot(Graph(ops.sqr(copy).named("out"), x), copies={copy: x}))
    assert ("x\n[4] F32", "GPU#x#0\n[4] F32", "copy") in dot.edges
