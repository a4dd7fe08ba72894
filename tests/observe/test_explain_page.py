"""The page of an explanation: the content of the file, and its behavior in a browser."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from bench_sched import Model, machine
from page_browser import DOWN, ESCAPE, LEFT, RIGHT, UP, Browser, open_browser

from lamella.alloc import Usage, alloc_tensors
from lamella.graph import GGMLType, Graph, Tensor, ops
from lamella.observe.explain_page import page
from lamella.sched import DeviceType, NullBufferType, NullDevice, Scheduler
from lamella.sched.explain import explain
from lamella.sched.explain.record import Explanation

HOSTILE = (
    "</script></title><img src=x onerror=\"window.hacked='yes'\"><script>window.hacked=1</script>"
)
QUOTES = "a'b\"c`d\\e&amp;<b>${1}@DATA@"
LONG = "n" * 5000


@cache
def model_graph(n_layer: int, scattered: bool = False, parallel: bool = False) -> Explanation:
    """A graph like llama's over two GPUs and a CPU."""
    backends, bufts = machine()
    graph = Model(n_layer, bufts, scattered).graph()
    return explain(Scheduler(backends, parallel=parallel).alloc_graph(graph))


@cache
def small() -> Explanation:
    """Two devices, copies, a chain of in-place ops and hostile names."""
    gpu, host = NullBufferType("GPU0"), NullBufferType("HOST", is_host=True)
    devices = [
        NullDevice("GPU0", DeviceType.GPU, gpu),
        NullDevice("CPU", DeviceType.CPU, host),
    ]
    w, v = (Tensor(GGMLType.F32, (64, 64), name=name) for name in (HOSTILE, "v"))
    alloc_tensors([w], gpu, Usage.WEIGHTS)
    alloc_tensors([v], host, Usage.WEIGHTS)
    x = Tensor(GGMLType.F32, (64, 4), name="x").set_input()
    h = ops.mul_mat(w, x).named(QUOTES)
    act = ops.silu(h).named("act")
    both = ops.add(act, ops.sqr(act).named("squared")).named(LONG)
    view = ops.reshape(both, (4, 64)).named("seen otherwise")
    y = ops.mul_mat(v, ops.reshape(view, (64, 4)).named("back")).named(HOSTILE)
    graph = Graph(ops.silu(y).named("last").set_output())
    return explain(Scheduler([d.init_backend() for d in devices]).alloc_graph(graph))


@cache
def one_node() -> Explanation:
    device = NullDevice("CPU", DeviceType.CPU, NullBufferType("CPU", is_host=True))
    x = Tensor(GGMLType.F32, (8,), name="x").set_input()
    return explain(Scheduler([device.init_backend()]).alloc_graph(Graph(ops.sqr(x).named("y"))))


# --- the file ---


def test_the_page_is_one_file() -> None:
    text = page(small(), "model.gguf", "decode step")
    assert "<title>model.gguf: decode step</title>" in text
    outside = text.replace(json.dumps(HOSTILE)[1:-1], "")
    assert not re.search(r"https?://|<link[^>]+href=\"(?!data:)|@import|<img|\bfetch\(", outside)
    assert text.count("<script") == text.count("</script>") == 2
    for part in ("STYLE", "SCRIPT", "TITLE"):
        assert f"@{part}@" not in text


def test_the_page_contains_the_explanation() -> None:
    text = page(small(), HOSTILE, QUOTES)
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    data = json.loads(found[1])
    assert data["title"] == HOSTILE
    assert data["subtitle"] == QUOTES
    assert data["explanation"] == json.loads(json.dumps(small().as_json()))


# --- in a browser ---


@pytest.fixture(scope="module")
def tab() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


@pytest.fixture
def browser(tab: Browser) -> Iterator[Browser]:
    yield tab
    assert tab.complaints() == []
    assert tab.js("window.hacked") is None
    assert tab.js("performance.getEntriesByType('resource').length") == 0


def show(
    browser: Browser, folder: Path, explanation: Explanation, title: str = "model.gguf"
) -> Explanation:
    file = folder / "page.html"
    file.write_text(page(explanation, title, "decode step"), "utf-8")
    browser.open(file)
    return explanation


def drawn(browser: Browser) -> tuple[int, int]:
    """The numbers of drawn nodes and copies in the lanes."""
    data = browser.js("{...document.getElementById('lanes').dataset}")
    return int(data["nodes"]), int(data["copies"])


def n_listed(browser: Browser) -> int:
    return int(browser.js("document.getElementById('rows').dataset.items"))


def facts(browser: Browser) -> dict[str, str]:
    names, values = browser.texts("#details dt"), browser.texts("#details dd")
    return dict(zip(names, values, strict=True))


@pytest.mark.parametrize(
    "explanation",
    [
        pytest.param(one_node, id="one node"),
        pytest.param(small, id="small"),
        pytest.param(lambda: model_graph(10, scattered=True), id="many splits"),
        pytest.param(lambda: model_graph(3, scattered=True, parallel=True), id="pipeline"),
        pytest.param(lambda: model_graph(67), id="2,000 nodes"),
    ],
)
@pytest.mark.parametrize("width", [1440, 800])
def test_everything_is_drawn(
    browser: Browser, tmp_path: Path, explanation: Any, width: int
) -> None:
    browser.driver.set_window_size(width, 1000)
    try:
        e = show(browser, tmp_path, explanation())
        browser.settle()
        assert drawn(browser) == (e.n_nodes, e.n_copies)
        script = "[...document.querySelectorAll('#maps canvas')].map((c) => +c.dataset.rectangles)"
        assert browser.js(script) == [len(buffer.rectangles) for buffer in e.memory]
        assert browser.texts(".tabs button") == [
            f"{len(things):,} {one if len(things) == 1 else many}"
            for things, one, many in (
                (e.splits, "split", "splits"),
                (e.nodes, "node", "nodes"),
                (e.copies, "copy", "copies"),
            )
        ]
        assert browser.js("document.documentElement.scrollWidth <= innerWidth")
        # drawn: more than one color
        colors = browser.js(
            "new Set(document.getElementById('lanes').getContext('2d')"
            ".getImageData(0, 0, 1200, 60).data).size"
        )
        assert colors > 5
    finally:
        browser.driver.set_window_size(1440, 1000)


def test_the_first_view_shows_splits_and_their_reasons(browser: Browser, tmp_path: Path) -> None:
    e = show(browser, tmp_path, small())
    assert [row.strip() for row in browser.texts("#rows .why")] == [s.why for s in e.splits]
    assert browser.text("h1") == "model.gguf"
    header = browser.text("#facts")
    assert "2 splits" in re.sub(r"(\d)([a-z])", r"\1 \2", header)
    assert browser.texts("#causes b") == list(e.causes)


def test_hovering_and_clicking_show_a_node(browser: Browser, tmp_path: Path) -> None:
    e = show(browser, tmp_path, small())
    for n in e.nodes:
        browser.point(*browser.at(f"cell('node', {n.index})"))
        tip = browser.texts("#tip > *")
        assert tip[0] == n.name
        assert tip[2] == f"{n.cause}: {n.why}"
        browser.point(*browser.at(f"cell('node', {n.index})"), click=True)
        assert browser.text("#details h3") == n.name
        assert browser.text("#details .because") == f"{n.cause}{n.why}"
        found = facts(browser)
        assert found["runs on"] == f"{n.device}, split {n.split}"
        assert found["order"] == f"node {n.index}, step {n.step}"
        sources = browser.texts("#details ul:first-of-type li .grow")
        assert sources[: len(n.sources)] == [s.name for s in n.sources]


def test_sources_of_a_node_are_links(browser: Browser, tmp_path: Path) -> None:
    e = show(browser, tmp_path, small())
    last = next(n for n in e.nodes if n.name == "squared")
    browser.point(*browser.at(f"cell('node', {last.index})"), click=True)
    browser.click("#details ul a")
    assert browser.text("#details h3") == "act"
    reader = next(n for n in e.nodes if any(s.copy is not None for s in n.sources))
    browser.point(*browser.at(f"cell('node', {reader.index})"), click=True)
    browser.click("#details a.copied")
    copy = e.copies[next(s.copy for s in reader.sources if s.copy is not None)]
    assert browser.text("#details h3") == copy.source
    assert browser.texts("#details dd")[2] == f"{copy.n_bytes:,} B"
    assert facts(browser)["from"].startswith(copy.from_device)


def test_the_memory_map_shows_tensors(browser: Browser, tmp_path: Path) -> None:
    e = show(browser, tmp_path, small())
    act = next(n for n in e.nodes if n.name == "act")
    assert act.in_place_of == QUOTES
    browser.point(*browser.at(f"rectangle('node', {act.index})"))
    tip = browser.texts("#tip > *")
    assert tip[0] == "act"
    assert f"in place of {QUOTES}" in tip
    browser.point(*browser.at(f"rectangle('node', {act.index})"), click=True)
    assert browser.text("#details h3") == "act"
    assert facts(browser)["in place of"] == QUOTES
    rectangle = next(r for b in e.memory for r in b.rectangles if r.name == "act")
    assert facts(browser)["lifetime"] == f"from step {rectangle.first} to {rectangle.last}"


def test_search_and_filters_shorten_the_list(browser: Browser, tmp_path: Path) -> None:
    e = show(browser, tmp_path, model_graph(4))

    def check(n: int) -> None:
        assert 0 < n < e.n_nodes
        assert n_listed(browser) == n
        assert browser.text("#count") == f"{n} of {e.n_nodes} nodes"
        assert drawn(browser)[0] == e.n_nodes  # filtered nodes are drawn pale
        browser.click("#clear")
        assert browser.text("#count") == f"{e.n_nodes} nodes"

    def choose(id: str, value: str) -> None:
        browser.js(
            "(() => { const s = document.getElementById(arguments[0]); s.value = arguments[1];"
            "s.dispatchEvent(new Event('change')) }).apply(null, arguments)",
            id,
            value,
        )
        browser.settle()

    browser.click("#search")
    browser.press(*"blk.2.attn_q")
    check(sum("blk.2.attn_q" in n.why for n in e.nodes))
    browser.click("#search")
    browser.press(*"mul_mat gpu1")
    check(sum(n.op == "MUL_MAT" and "GPU1" in n.why for n in e.nodes))
    choose("op", "ROPE")
    check(sum(n.op == "ROPE" for n in e.nodes))
    choose("device", "GPU1")
    check(sum(n.device == "GPU1" for n in e.nodes))
    browser.click("#copied")
    check(sum(any(s.copy is not None for s in n.sources) for n in e.nodes))
    browser.click("#computed")
    check(sum(not n.is_view for n in e.nodes))
    browser.click('#causes [data-cause="2.sup"]')
    check(sum(n.cause == "2.sup" for n in e.nodes))
    browser.click("#search")
    browser.press(*"no such node")
    assert n_listed(browser) == 0
    assert browser.text("#rows") == "No node matches the filters."


@pytest.mark.parametrize("width", [1440, 320])
def test_the_search_box_shows_its_hint(browser: Browser, tmp_path: Path, width: int) -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        show(browser, tmp_path, small())
        needed, there, right = browser.js(
            """(() => {
            const box = document.getElementById("search");
            const canvas = document.createElement("canvas").getContext("2d");
            canvas.font = getComputedStyle(box).font;
            const text = canvas.measureText(box.placeholder).width;
            return [text, box.clientWidth, box.getBoundingClientRect().right];
            })()"""
        )
        assert needed + 40 <= there  # with the padding and the button that clears it
        assert right <= width
    finally:
        browser.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_lists_of_splits_and_copies_follow_the_filters(browser: Browser, tmp_path: Path) -> None:
    e = show(browser, tmp_path, model_graph(4))
    browser.click("#search")
    browser.press(*"token_embd")
    for tab_name, n in (("split", 1), ("copy", 0)):
        browser.click(f'[data-tab="{tab_name}"]')
        assert n_listed(browser) == n
    browser.click("#clear")
    reader = next(n for n in e.nodes if n.sources and n.sources[0].copy is not None)
    browser.click("#search")
    browser.press(*f"#{reader.index}")
    browser.click('[data-tab="copy"]')
    assert n_listed(browser) == sum(s.copy is not None for s in reader.sources)
    browser.click("#clear")
    browser.click('[data-tab="copy"]')
    assert n_listed(browser) == e.n_copies
    browser.click('#rows [data-index="1"]')
    assert browser.text("#details h3") == e.copies[1].source


def test_keys(browser: Browser, tmp_path: Path) -> None:
    e = show(browser, tmp_path, small())
    browser.press(RIGHT)
    assert browser.text("#details h3") == e.nodes[0].name
    browser.press(DOWN, RIGHT)
    assert browser.text("#details h3") == e.nodes[2].name
    browser.press(LEFT)
    assert browser.text("#details h3") == e.nodes[1].name
    browser.press("/")
    assert browser.js("document.activeElement.id") == "search"
    browser.press(*"silu")
    browser.press(*"/")
    assert browser.js("document.getElementById('search').value") == "silu/"
    browser.press(ESCAPE)
    assert browser.text("#count") == f"{e.n_nodes} nodes"
    assert browser.js("document.activeElement.id") != "search"
    browser.press("/", *"unary")
    shown = [n.name for n in e.nodes if n.op == "UNARY"]
    browser.press(UP, UP, UP, DOWN)
    assert browser.text("#details h3") == shown[1]
    browser.press(ESCAPE)
    assert browser.text("#details h3") == shown[1]  # the first Escape clears the filter
    browser.press(ESCAPE)
    assert browser.texts("#details h3") == []


def test_zooming_and_moving(browser: Browser, tmp_path: Path) -> None:
    e = show(browser, tmp_path, model_graph(4))
    x, y = browser.at("cell('node', 60)")
    for _ in range(3):
        browser.wheel(x, y, -250)
    n = drawn(browser)[0]
    assert 0 < n < e.n_nodes / 4
    # the point under the cursor stays; zooming magnifies half a pixel of error
    assert browser.at("cell('node', 60)") == pytest.approx((x, y), abs=16)
    browser.press(*"+")
    assert drawn(browser)[0] < n
    browser.press(*([LEFT] * 3))  # moves from the last node, and scrolls it into view
    cell = browser.at(f"cell('node', {e.n_nodes - 1})")
    assert 0 < cell[0] < 1100
    browser.click("#all")
    assert drawn(browser)[0] == e.n_nodes
    place = browser.js("lamella.rectangle('node', 60)")
    browser.wheel(place["x"], place["y"], -300, shift=True)
    larger = browser.js("lamella.rectangle('node', 60)")
    assert larger["h"] > 1.5 * place["h"]
    assert larger["w"] == pytest.approx(place["w"])
    assert drawn(browser)[0] == e.n_nodes


def test_only_the_rows_in_view_exist(browser: Browser, tmp_path: Path) -> None:
    e = show(browser, tmp_path, model_graph(67))
    assert e.n_nodes > 2000
    browser.click('[data-tab="node"]')
    assert n_listed(browser) == e.n_nodes
    assert len(browser.texts("#rows .row")) < 80
    browser.js("document.getElementById('list').scrollTop = 1e9")
    browser.wait(f"document.querySelector('#rows [data-index=\"{e.n_nodes - 1}\"]') !== null")
    assert len(browser.texts("#rows .row")) < 80
    browser.click(f'#rows [data-index="{e.n_nodes - 1}"]')
    assert browser.text("#details h3") == e.nodes[-1].name
    browser.click("#search")
    browser.press(*"blk.40.")
    assert n_listed(browser) == sum("blk.40." in n.why for n in e.nodes)


def test_rows_stay_while_other_items_are_hovered(browser: Browser, tmp_path: Path) -> None:
    """A click that begins on a row must end on it."""
    show(browser, tmp_path, small())
    browser.click('[data-tab="node"]')
    row = "document.querySelector('#rows [data-index=\"1\"]')"
    browser.js(f"void (window.kept = {row})")
    browser.js("hover({kind: 'node', index: 2})")
    browser.settle()
    assert browser.js(f"window.kept === {row}")
    browser.js("pin({kind: 'node', index: 1})")
    browser.settle()
    assert browser.js(f"{row}.classList.contains('pinned')")


def test_hostile_names_are_text(browser: Browser, tmp_path: Path) -> None:
    e = show(browser, tmp_path, small(), title=HOSTILE)
    assert browser.text("h1") == HOSTILE
    assert browser.js("document.title") == f"{HOSTILE}: decode step"
    browser.click('[data-tab="node"]')
    assert browser.texts("#rows .row .grow") == [n.name for n in e.nodes]
    for n in e.nodes:
        browser.point(*browser.at(f"cell('node', {n.index})"), click=True)
        assert browser.text("#details h3") == n.name
        assert browser.js("document.documentElement.scrollWidth <= innerWidth")
        assert browser.js("$('details').firstChild.scrollWidth <= $('details').clientWidth")
        box = browser.js("document.getElementById('tip').getBoundingClientRect().toJSON()")
        assert box["bottom"] <= browser.js("innerHeight")
    assert browser.js("document.querySelectorAll('img').length") == 0


def test_light_and_dark(browser: Browser, tmp_path: Path) -> None:
    def backs() -> tuple[str, list[int]]:
        """Background colors of the page and of a drawing."""
        canvas = "document.querySelector('#lanes').getContext('2d').getImageData(2, 2, 1, 1).data"
        return browser.js("getComputedStyle(document.body).backgroundColor"), browser.js(
            f"[...{canvas}]"
        )

    try:
        for scheme, colors in (
            ("light", ("rgb(246, 247, 248)", [255, 255, 255, 255])),
            ("dark", ("rgb(18, 20, 22)", [25, 28, 31, 255])),
        ):
            browser.prefer(scheme)
            show(browser, tmp_path, small())
            assert backs() == colors
        browser.prefer("light")  # while the page is open
        browser.settle()
        canvas = "document.querySelector('#maps canvas').getContext('2d')"
        assert browser.js(f"{canvas}.getImageData(2, 2, 1, 1).data[0]") == 255
    finally:
        browser.prefer("light")
