"""Explanations: the reason of every placement, bytes of every copy, lifetime of every place."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from itertools import combinations
from pathlib import Path

import pytest
from machines import MACHINES, MakeDevices, gpu_cpu, running, shared_memory, two_gpus_cpu
from null_machine import Null, convolution, inp, leaf, weight
from random_graphs import Model, RandomGraph

from lamella.alloc import Usage
from lamella.graph import GGMLType, Graph, Op, Tensor, ops
from lamella.kernels.sim import SimDevice
from lamella.sched import DeviceType, ScheduledGraph, Scheduler
from lamella.sched.assignment import CAUSES
from lamella.sched.explain import explain, record
from lamella.sched.explain.record import VERSION, Explanation, NodeFacts, Rectangle


def node(e: Explanation, name: str) -> NodeFacts:
    (found,) = [n for n in e.nodes if n.name == name]
    return found


def why(e: Explanation, name: str) -> tuple[str, str]:
    """Cause and sentence of a node, or of a leaf."""
    found = {n.name: (n.cause, n.why) for n in e.nodes}
    found.update((leaf.name, (leaf.cause, leaf.why)) for leaf in e.leafs)
    return found[name]


@contextmanager
def random_graph(
    make: MakeDevices, seed: int, parallel: bool = False
) -> Iterator[tuple[ScheduledGraph, Explanation]]:
    with running(make) as machine:
        scheduler = Scheduler(machine.backends, parallel=parallel)
        graph = RandomGraph(Model(seed, machine.homes), seed).graph
        scheduled = scheduler.alloc_graph(graph)
        yield scheduled, explain(scheduled)
        scheduler.free()


# --- any graph, on any machine ---


@pytest.mark.parametrize("parallel", [False, True], ids=["one copy", "pipeline"])
@pytest.mark.parametrize("make", MACHINES, ids=lambda make: make.__name__)
def test_explanations_agree_with_decisions(make: MakeDevices, parallel: bool) -> None:
    for seed in range(8):
        with random_graph(make, seed, parallel) as (scheduled, e):
            tensors = scheduled.graph.nodes
            assert [n.name for n in e.nodes] == [t.name for t in tensors]
            assert [n.device for n in e.nodes] == [scheduled.backend_of(t).name for t in tensors]
            assert [n.cause for n in e.nodes] == [scheduled.causes[t] for t in tensors]
            assert all(n.why and n.place is not None for n in e.nodes)
            assert [(s.first, s.last + 1, s.device) for s in e.splits] == [
                (s.i_start, s.i_end, s.backend.name) for s in scheduled.splits
            ]
            transfers = [t for run in scheduled.runs for t in (*run.transfers, *run.ahead)]
            assert e.n_copies == len(e.copies) == len(transfers)
            assert sorted(c.name for c in e.copies) == sorted(t.dst.name for t in transfers)
            for split in e.splits:
                assert all(e.copies[i].split == split.index for i in split.copies)
                assert [n.split for n in e.nodes[split.first : split.last + 1]] == [split.index] * (
                    split.last + 1 - split.first
                )
            for facts, tensor in zip(e.nodes, tensors, strict=True):
                names = [source.name for source in facts.sources]
                assert all("#" not in name for name in names), "a copy instead of its source"
                copied = [source.copy is not None for source in facts.sources]
                assert copied == [src.name.startswith(f"{facts.device}#") for src in tensor.src]
                for source in facts.sources:
                    listed = e.nodes if source.kind == "node" else e.leafs
                    assert source.index is not None
                    assert listed[source.index].name == source.name
                    if source.copy is not None:
                        assert e.copies[source.copy].device == facts.device


@pytest.mark.parametrize("parallel", [False, True], ids=["one copy", "pipeline"])
@pytest.mark.parametrize("make", MACHINES, ids=lambda make: make.__name__)
def test_no_memory_is_used_twice_at_once(make: MakeDevices, parallel: bool) -> None:
    for seed in range(8):
        with random_graph(make, seed, parallel) as (_, e):
            for buffer in e.memory:
                for a, b in combinations(buffer.rectangles, 2):
                    assert not overlap(buffer.rectangles, a, b), f"{a} and {b}"
                assert max(r.offset + r.size for r in buffer.rectangles) <= buffer.size
                assert buffer.size <= buffer.reserved


def overlap(rectangles: Sequence[Rectangle], a: Rectangle, b: Rectangle) -> bool:
    """True if two share bytes at a step, except the step in which one takes over the other."""
    if a.offset >= b.offset + b.size or b.offset >= a.offset + a.size:
        return False
    steps = min(a.last, b.last) - max(a.first, b.first) + 1
    joined = any(x.over is not None and rectangles[x.over] is y for x, y in ((a, b), (b, a)))
    return steps > (1 if joined else 0)


@pytest.mark.parametrize("make", MACHINES, ids=lambda make: make.__name__)
def test_sources_are_alive_when_they_are_read(make: MakeDevices) -> None:
    for seed in range(8):
        with random_graph(make, seed) as (scheduled, e):
            lives = {(r.kind, r.index): (r.first, r.last) for b in e.memory for r in b.rectangles}
            n_read = 0
            for facts, tensor in zip(e.nodes, scheduled.graph.nodes, strict=True):
                for source, src in zip(facts.sources, tensor.src, strict=True):
                    at = (source.kind, source.index)
                    if src.root is not src or facts.is_view:
                        continue
                    life = lives.get(at if source.copy is None else ("copy", source.copy))
                    if life is not None:  # None: a weight, which is always alive
                        assert life[0] <= facts.step <= life[1]
                        n_read += 1
            assert n_read > 5


def test_the_steps_are_the_scheduler_s_order() -> None:
    with random_graph(two_gpus_cpu, 3) as (scheduled, e):
        assert len(e.steps) == len(scheduled.order.graph.nodes)
        assert {s.kind for s in e.steps} == {"node", "copy", "keep"}
        for i, step in enumerate(e.steps):
            if step.kind in ("node", "copy"):
                assert step.index is not None
                assert (e.nodes if step.kind == "node" else e.copies)[step.index].step == i


def test_every_cause_that_occurs_is_explained() -> None:
    seen: dict[str, str] = {}
    for make in MACHINES:
        for seed in range(6):
            with random_graph(make, seed) as (_, e):
                assert all(CAUSES[cause] == text for cause, text in e.causes.items())
                found = {n.cause for n in e.nodes} | {leaf.cause for leaf in e.leafs}
                rules = {"1.wgt" if c.startswith("1.wgt") else c for c in found}
                assert rules | ({"4.cpy"} if e.copies else set()) == set(e.causes)
                seen.update(e.causes)
    assert {"1.dst", "1.off", "1.wgt", "2.sup", "3.upg", "4.vsrc", "4.cpy"} <= set(seen)


def test_as_json() -> None:
    with random_graph(gpu_cpu, 1) as (_, e):
        found = json.loads(json.dumps(e.as_json()))
    assert found["version"] == VERSION == 1
    assert found["n_nodes"] == len(found["nodes"]) == e.n_nodes
    first = found["nodes"][0]
    assert first["name"] == e.nodes[0].name
    assert first["ne"] == list(e.nodes[0].ne)
    assert found["memory"][0]["rectangles"][0]["name"] == e.memory[0].rectangles[0].name


def test_every_field_is_documented() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "scheduling.md").read_text("utf-8")
    for cls in vars(record).values():
        if is_dataclass(cls):
            for field in fields(cls):
                assert f"`{field.name}`" in text, f"{cls} {field.name}"


# --- sentences ---


def test_sentences_name_what_decided() -> None:
    null = Null()
    w = weight(null.gpu_bufts[0], 8, 8, name="w")
    v = weight(null.host, 8, 8, name="v")
    x = inp(8, name="x")
    h = ops.mul_mat(w, x).named("h")
    act = ops.silu(ops.reshape(h, (4, 2)).named("halves")).named("act")
    y = ops.mul_mat(v, ops.reshape(act, (8,)).named("flat")).named("y")
    last = ops.sqr(y).named("last")
    scheduler = Scheduler(null.backends)
    scheduler.set_tensor_backend(last, null.by_name["GPU0"])
    e = explain(scheduler.alloc_graph(Graph(last)))
    assert why(e, "h") == ("1.wgt0", "its weights w are on GPU0")
    assert why(e, "y") == ("1.wgt0", "its weights v are in HOST")
    assert why(e, "act") == ("2.sup", "it follows h on GPU0, which supports it")
    assert why(e, "halves") == ("4.vsrc", "it is a view of h on GPU0")
    assert why(e, "last") == ("usr", "it was pinned")
    assert why(e, "w") == ("1.dst", "its data is on GPU0")
    assert why(e, "x") == ("1.inp", "it is an input of the graph, written by the host")
    assert [s.why for s in e.splits] == [
        "it is the first split",
        "y runs on CPU, the split before on GPU0: its weights v are in HOST",
        "last runs on GPU0, the split before on CPU: it was pinned",
    ]


def test_a_neighbor_below() -> None:
    null = Null()
    w = weight(null.gpu_bufts[0], 8, 8, name="w")
    square = ops.sqr(inp(8, name="x")).named("square")
    norm = ops.rms_norm(square, 1e-5).named("norm")
    e = explain(Scheduler(null.backends).alloc_graph(Graph(ops.mul_mat(w, norm).named("h"))))
    # the reason is h, not the nearest node, which is there for the same reason
    assert why(e, "square") == ("2.sup", "it comes before h on GPU0, which supports it")


def test_a_neighbor_further_away() -> None:
    """A device spreads over nodes that it cannot run."""
    null = Null(ops=[Op.MUL_MAT, Op.SQR])
    w = weight(null.gpu_bufts[0], 8, 8, name="w")
    h = ops.mul_mat(w, inp(8, name="x")).named("h")
    other = ops.silu(ops.sqr(h).named("near")).named("other")
    e = explain(Scheduler(null.backends).alloc_graph(Graph(ops.sqr(other).named("far"))))
    assert [n.device for n in e.nodes] == ["GPU0", "GPU0", "CPU", "GPU0"]
    assert why(e, "far") == ("2.sup", "it follows h on GPU0, which supports it")


def test_views() -> None:
    null = Null()
    x = weight(null.host, 8, name="x", usage=Usage.ANY)
    placed, free = ops.reshape(x, (4, 2)), ops.reshape(leaf(8, name="l"), (4, 2))
    y = ops.add(placed.named("placed"), free.named("free")).named("y")
    e = explain(Scheduler(null.backends).alloc_graph(Graph(y)))
    assert why(e, "placed") == ("1.dst", "it is a view of x, which is in HOST")
    assert why(e, "free") == ("4.vsrc", "it is a view of l on CPU")
    assert why(e, "l") == ("4.cur", "y, which reads it, is on CPU")


def test_nothing_near() -> None:
    null = Null()
    x = leaf(8, name="x")
    e = explain(Scheduler(null.backends).alloc_graph(Graph(ops.sqr(x).named("y"))))
    assert why(e, "y") == ("3.best", "GPU0 can read the most of its sources without a copy: x")
    assert why(e, "x") == ("4.cur", "y, which reads it, is on GPU0")


def test_a_cache_that_is_written_and_read() -> None:
    null = Null()
    cache = weight(null.gpu_bufts[0], 8, 4, name="cache", usage=Usage.ANY)
    rows = inp(8, 1, name="rows")
    at = Tensor(GGMLType.I32, (1,), name="at").set_input()
    written = ops.set_rows(cache, rows, at).named("written")
    read = ops.get_rows(written, at).named("read")
    scheduler = Scheduler(null.backends)
    scheduler.set_tensor_backend(read, null.by_name["GPU0"])
    e = explain(scheduler.alloc_graph(Graph(read)))
    assert why(e, "written") == ("1.dst", "it writes into cache, which is on GPU0")
    assert why(e, "read") == ("usr", "it was pinned to its data; cache is on GPU0")
    (facts,) = [leaf for leaf in e.leafs if leaf.name == "cache"]
    assert facts.kind == "data"
    assert facts.place is not None
    assert (facts.place.usage, facts.place.chunk) == ("any", None)


def test_a_split_that_begins_with_a_late_input() -> None:
    null = Null()
    y = ops.add(ops.sqr(inp(8, name="x")), inp(8, name="late").set_late()).named("y")
    for i, name in enumerate(("GPU0", "CPU")):  # with a copy, and without
        graph, scheduler = Graph(y), Scheduler(null.backends)
        for node in graph.nodes:
            scheduler.set_tensor_backend(node, null.backends[i])
        e = explain(scheduler.alloc_graph(graph))
        assert [split.device for split in e.splits] == [name, name]
        assert e.splits[1].why == "late is written while the split before computes"
        graph.restore()


def test_an_op_that_is_taken_over_from_the_host() -> None:
    null = Null(offload=[Op.MUL_MAT])
    w, w2 = (weight(null.host, 8, 8, name=name) for name in ("w", "w2"))
    h = ops.mul_mat(w, inp(8, name="x")).named("h")
    y = ops.mul_mat(w2, h).named("y")
    e = explain(Scheduler(null.backends).alloc_graph(Graph(y)))
    assert why(e, "h") == (
        "1.off",
        "its weights w are in host memory, and GPU0 takes over the op for a batch this large",
    )
    assert e.splits[1].why == (
        "w2 must be copied to GPU0; a new split can reuse the memory of earlier copies"
    )
    assert [(c.source, c.kind, c.n_bytes) for c in e.copies] == [
        ("w", "weight", 256),
        ("x", "input", 32),
        ("w2", "weight", 256),
    ]
    assert e.bytes_copied == 256 + 32 + 256


def test_two_devices_over_one_memory() -> None:
    for seed in range(40):
        with random_graph(shared_memory, seed) as (_, e):
            for n in e.nodes:
                if n.cause == "3.upg":
                    text = "uses the same memory as the assigned device, and has a higher priority"
                    assert n.why == f"{n.device} {text}"
                    return
    pytest.fail("no upgrade in 40 graphs")


# --- copies ---


def test_weights_that_are_copied_ahead() -> None:
    cpu = SimDevice("CPU", DeviceType.CPU)
    gpu = SimDevice("SIM0", offload_ops=[Op.MUL_MAT])
    backends = [gpu.init_backend(), cpu.init_backend()]
    y = inp(8, 4, name="x")
    for i in range(3):
        y = ops.mul_mat(weight(cpu.buffer_type, 8, 8, name=f"w{i}"), y).named(f"y{i}")
    scheduler = Scheduler(backends)
    e = explain(scheduler.alloc_graph(Graph(y)))
    assert [(c.source, c.split, c.ahead) for c in e.copies] == [
        ("w0", 0, False),
        ("x", 0, False),
        ("w1", 1, True),
        ("w2", 2, True),
    ]
    # in memory order they precede the split that computes during the copy
    assert e.copies[2].step < node(e, "y0").step < e.copies[3].step < node(e, "y1").step
    scheduler.free()
    for backend in backends:
        backend.free()


def test_a_copy_of_experts_counts_those_that_may_be_used() -> None:
    null = Null(offload=[Op.MUL_MAT_ID])
    gate = weight(null.gpu_bufts[0], 32, 8, name="gate")
    experts = weight(null.host, 32, 16, 8, name="experts")
    for n_tokens, n_used in ((1, 2), (3, 6), (64, 8)):
        x = inp(32, n_tokens, name="x")
        ids = ops.argsort_top_k(ops.mul_mat(gate, x), 2)
        y = ops.mul_mat_id(experts, ops.reshape(x, (32, 1, n_tokens)), ids).named("y")
        # an earlier split makes the choice
        scheduler = Scheduler(null.backends)
        scheduler.set_tensor_backend(ids.root, null.by_name["CPU"])
        scheduled = scheduler.alloc_graph(Graph(y))
        e = explain(scheduled)
        assert e.bytes_copied == sum(t.nbytes for run in scheduled.runs for t in run.transfers)
        (copy,) = [c for c in e.copies if c.source == "experts"]
        assert (copy.kind, copy.n_bytes) == ("experts", n_used * experts.nb[2])


def test_parts_of_inputs_that_are_copied_at_once() -> None:
    null = Null()
    both = inp(16, name="both").set_bundle()
    a, b = (ops.view(both, (8,), offset=32 * i).named("ab"[i]) for i in (0, 1))
    w = weight(null.gpu_bufts[0], 8, 8, name="w")
    y = ops.add(ops.mul_mat(w, a).named("m"), b).named("y")
    e = explain(Scheduler(null.backends).alloc_graph(Graph(y)))
    (copy,) = e.copies
    assert (copy.source, copy.kind, copy.n_bytes) == ("both", "input", 64)
    assert [(s.name, s.kind, s.copy) for s in node(e, "m").sources][1] == ("a", "node", 0)
    assert [(s.name, s.kind, s.copy) for s in node(e, "y").sources][1] == ("b", "node", 0)
    assert [step.kind for step in e.steps].count("part") == 2


# --- memory ---


def test_lives_and_what_is_computed_in_place() -> None:
    null = Null()
    x = inp(64, name="x")
    a = ops.cont(x).named("a")
    b = ops.silu(a).named("b")
    c = ops.sqr(b).named("c")
    d = ops.cont(c).named("d")
    end = ops.cont(d).named("end").set_output()
    scheduler = Scheduler(null.backends)
    for t in (a, b, c, d, end):
        scheduler.set_tensor_backend(t, null.by_name["CPU"])
    e = explain(scheduler.alloc_graph(Graph(end)))
    (buffer,) = e.memory
    assert (buffer.buffer_type, buffer.chunk, buffer.size) == ("HOST", 0, 512)
    found = {
        r.name: (
            r.first,
            r.last,
            r.offset,
            None if r.over is None else buffer.rectangles[r.over].name,
        )
        for r in buffer.rectangles
    }
    assert found == {
        "x": (-1, 0, 0, None),
        "a": (0, 1, 256, None),
        "b": (1, 2, 256, "a"),
        "c": (2, 3, 256, "b"),
        "d": (3, 4, 0, None),  # where x was
        "end": (4, 5, 256, None),  # where c was; never freed
    }
    assert [n.in_place_of for n in e.nodes] == [None, "a", "b", None, None]
    assert len(e.steps) == 5
    place = node(e, "c").place
    assert place is not None
    assert (place.buffer_type, place.usage, place.chunk, place.offset, place.size) == (
        "HOST",
        "compute",
        0,
        256,
        256,
    )


def test_a_graph_in_a_buffer_that_was_reserved_for_a_larger_one() -> None:
    null = Null(n_gpus=0)
    scheduler = Scheduler(null.backends)

    def graph(n: int) -> Graph:
        return Graph(ops.cont(ops.cont(inp(n, name="x")).named("a")).named("b"))

    scheduler.reserve(graph(1024))
    e = explain(scheduler.alloc_graph(graph(16)))
    (buffer,) = e.memory
    # it is placed by the plan of the larger one
    assert (buffer.size, buffer.reserved) == (2 * 4096, 2 * 4096)
    assert [(r.name, r.first, r.last) for r in buffer.rectangles] == [
        ("x", -1, 0),
        ("a", 0, 1),
        ("b", 1, 2),
    ]


def test_copies_of_a_pipeline_that_other_runs_use() -> None:
    null = Null()
    w = weight(null.gpu_bufts[0], 8, 8, name="w")
    y = ops.mul_mat(w, inp(8, name="x")).named("y")
    e = explain(Scheduler(null.backends, parallel=True).alloc_graph(Graph(y)))
    spare = [r for b in e.memory for r in b.rectangles if r.kind == "spare"]
    assert len(spare) == 6  # three of x on the CPU, three on the GPU
    assert all(r.index is None for r in spare)
    assert e.n_copies == 1


def test_a_graph_of_views_only() -> None:
    null = Null(n_gpus=0)
    y = ops.reshape(inp(8, name="x"), (4, 2)).named("y")
    e = explain(Scheduler(null.backends).alloc_graph(Graph(y)))
    assert (e.n_nodes, e.n_splits) == (1, 1)
    assert e.splits[0].n_computed == 0
    assert node(e, "y").is_view


def test_a_recurrence_is_explained_by_its_states() -> None:
    null = Null()
    node = convolution(weight(null.gpu_bufts[0], 4, 8, name="states", usage=Usage.ANY))
    e = explain(Scheduler(null.backends).alloc_graph(Graph(node.named("mixed"))))
    assert why(e, "mixed") == ("1.dst", "it writes into states, which is on GPU0")
