// The lanes: one row per device, with its splits in order, nodes colored by cause, and copies between
// devices as arrows.

const LANE = { head: 18, cells: 30, gap: 24, foot: 22 }; // pixels; labels of copies are in the gap below
const LANE_HEIGHT = LANE.head + LANE.cells + LANE.gap;
const laneTop = (lane) => 6 + lane * LANE_HEIGHT;
const cellTop = (lane) => laneTop(lane) + LANE.head;
const lanesCanvas = $("lanes");
lanesCanvas.style.height = `${6 + E.devices.length * LANE_HEIGHT - LANE.gap + 8 + LANE.foot}px`;

const N_ON = E.devices.map((d) => E.nodes.filter((n) => n.device === d.name && !n.is_view).length);

function drawLanes() {
  const { c, w, h } = prepare(lanesCanvas);
  const band = { first: Math.floor(state.x0), last: Math.ceil(state.x1) };
  c.save();
  c.beginPath();
  c.rect(GUTTER, 0, w - GUTTER, h);
  c.clip();
  E.devices.forEach((_, lane) => {
    c.fillStyle = ink("--band");
    c.fillRect(GUTTER, cellTop(lane) - 3, w, LANE.cells + 6);
  });
  drawSplits(c, w, band);
  const drawn = drawCells(c, w, band);
  drawLinks(c, w, band);
  drawMarks(c, w);
  drawGuides(c, w, h - LANE.foot);
  c.restore();
  drawLaneNames(c);
  drawSteps(c, w, h);
  lanesCanvas.dataset.nodes = drawn.nodes;
  lanesCanvas.dataset.copies = drawn.copies;
}

function drawLaneNames(c) {
  E.devices.forEach((device, lane) => {
    c.fillStyle = ink("--ink");
    c.font = fonts.label;
    c.fillText(clipped(c, device.name, GUTTER - 14), 2, cellTop(lane) + 8);
    c.fillStyle = ink("--soft");
    c.font = fonts.small;
    c.fillText(clipped(c, count(N_ON[lane], "node"), GUTTER - 14), 2, cellTop(lane) + 23);
  });
}

function drawSplits(c, w, band) {
  for (const split of E.splits) {
    if (split.last < split.first) continue;
    const from = E.nodes[split.first].step, to = E.nodes[split.last].step + 1;
    if (to < band.first || from > band.last) continue;
    const lane = LANES.get(split.device);
    const x = xOf(from, w), width = Math.max(xOf(to, w) - x, 1), y = cellTop(lane) - 3;
    const at = { kind: "split", index: split.index };
    const strong = same(state.pinned, at) || same(state.hovered, at);
    c.strokeStyle = ink(strong ? "--accent" : "--soft");
    c.lineWidth = strong ? 2 : 1;
    c.globalAlpha = strong || width > 5 ? 1 : 0.5;
    c.strokeRect(Math.round(x) + 0.5, y + 0.5, Math.max(Math.round(width) - 1, 1), LANE.cells + 5);
    c.globalAlpha = 1;
    c.font = fonts.small;
    c.fillStyle = ink(strong ? "--accent" : "--soft");
    const seen = Math.min(x + width, w) - Math.max(x, GUTTER);
    const long = `split ${split.index}: ${count(split.n_computed, "node")}`;
    const text = [long, `split ${split.index}`, `${split.index}`]
      .find((t) => c.measureText(t).width <= seen - 2);
    if (text) c.fillText(text, Math.max(x, GUTTER) + 1, y - 8);
  }
}

function drawCells(c, w, band) {
  const drawn = { nodes: 0, copies: 0 };
  const cell = (w - GUTTER - 8) / (state.x1 - state.x0);
  const gap = cell > 5 ? 1 : 0, dim = isFiltered();
  c.font = fonts.mono;
  for (let s = Math.max(band.first, 0); s < Math.min(band.last, N_STEPS); s++) {
    const { kind, index } = E.steps[s];
    if (kind !== "node" && kind !== "copy") continue;
    const t = LISTS[kind][index], x = xOf(s, w), y = cellTop(LANES.get(t.device));
    const width = Math.max(cell - gap, 1), inset = t.is_view ? 8 : 0;
    const isDim = dim && !(kind === "node" ? isShown[index] : isCopyShown(index));
    const color = ink(kind === "copy" ? "--c-copy" : colorName(t.cause));
    c.globalAlpha = isDim ? 0.13 : 1;
    c.fillStyle = color;
    if (kind === "copy") drawCopy(c, x, y, width);
    else c.fillRect(x, y + inset, width, LANE.cells - 2 * inset);
    if (width > 34 && !isDim) {
      c.fillStyle = kind === "copy" ? ink("--ink") : readableOn(color);
      c.fillText(clipped(c, kind === "copy" ? bytes(t.n_bytes) : t.name, width - 8), x + 4,
        y + LANE.cells / 2 + 0.5);
    }
    drawn[kind === "node" ? "nodes" : "copies"]++;
  }
  c.globalAlpha = 1;
  return drawn;
}

// hollow: a copy computes nothing
function drawCopy(c, x, y, width) {
  const alpha = c.globalAlpha;
  c.globalAlpha = alpha * 0.3;
  c.fillRect(x, y, width, LANE.cells);
  c.globalAlpha = alpha;
  c.fillRect(x, y, width, 3);
  c.fillRect(x, y + LANE.cells - 3, width, 3);
}

function linkEnds(link) {
  const from = LANES.get(link.from), to = LANES.get(link.to);
  if (from === to) return null;
  return from < to ? [cellTop(from) + LANE.cells + 3, cellTop(to) - 4]
    : [cellTop(from) - 4, cellTop(to) + LANE.cells + 4];
}

function drawLinks(c, w, band) {
  const free = new Map(), arrows = arrowsByGap(w); // end of the last label in each gap
  const dim = isFiltered(), inView = LINKS.filter((l) => l.step >= band.first - 1 && l.step <= band.last);
  const dense = (w - GUTTER) / inView.length < 7;
  c.font = fonts.small;
  for (const link of inView) {
    const ends = linkEnds(link);
    if (!ends) continue;
    const [y0, y1] = ends, x = Math.floor(xOf(link.step + 0.5, w)) + 0.5, down = y1 > y0 ? 1 : -1;
    const strong = link.copies.some((i) => same(state.hovered, { kind: "copy", index: i })
      || same(state.pinned, { kind: "copy", index: i }));
    const off = dim && !link.copies.some(isCopyShown);
    c.globalAlpha = off ? 0.15 : dense && !strong ? 0.4 : 1;
    c.strokeStyle = c.fillStyle = ink(strong ? "--accent" : "--ink");
    c.lineWidth = strong ? 2 : 1;
    c.setLineDash(link.ahead ? [4, 3] : []);
    c.beginPath();
    c.moveTo(x, y0);
    c.lineTo(x, y1 - 4 * down);
    c.stroke();
    c.setLineDash([]);
    const head = dense && !strong ? 2 : 3.5;
    c.beginPath();
    c.moveTo(x - head, y1 - 6 * down);
    c.lineTo(x + head, y1 - 6 * down);
    c.lineTo(x, y1);
    c.fill();
    const text = (link.copies.length > 1 ? `${link.copies.length} copies, ` : "")
      + (link.atMost ? "≤ " : "") + bytes(link.n_bytes);
    const gap = gapOf(link), y = cellTop(gap) + LANE.cells + 15, width = c.measureText(text).width;
    const others = arrows.get(gap), after = others[others.findIndex((o) => o > x + 1)] ?? w - 4;
    const before = others.findLast((o) => o < x - 1) ?? GUTTER, taken = free.get(gap) ?? GUTTER;
    const left = x + 5 + width < after - 3 ? x + 5
      : x - 6 - width > Math.max(before, taken) + 5 ? x - 6 - width : null;
    if (left !== null && !off) {
      c.fillStyle = ink(strong ? "--accent" : "--soft");
      c.fillText(text, left, y);
      free.set(gap, left + width);
    }
    c.globalAlpha = 1;
  }
}

// the gap (below this lane) for a link's label: the one next to its target
function gapOf(link) {
  const from = LANES.get(link.from), to = LANES.get(link.to);
  return from < to ? to - 1 : to;
}

// x of the arrows through each gap between lanes, ascending: labels must not cover arrows
function arrowsByGap(w) {
  const arrows = new Map(E.devices.map((_, lane) => [lane, []]));
  for (const link of LINKS) {
    const from = LANES.get(link.from), to = LANES.get(link.to);
    for (let gap = Math.min(from, to); gap < Math.max(from, to); gap++) {
      arrows.get(gap).push(xOf(link.step + 0.5, w));
    }
  }
  return arrows;
}

// bars below the nodes that the pinned node reads, and above the nodes that read it
function drawMarks(c, w) {
  const bar = (step, lane, y, color) => {
    const x = xOf(step, w), width = Math.max(xOf(step + 1, w) - x - 1, 3);
    c.fillStyle = ink(color);
    c.fillRect(x, cellTop(lane) + y, width, 3);
  };
  const at = state.pinned || state.hovered;
  if (at && at.kind === "node") {
    const node = thing(at);
    for (const s of node.sources) {
      const t = s.copy !== null ? E.copies[s.copy] : s.kind === "node" ? E.nodes[s.index] : null;
      if (t) bar(t.step, LANES.get(t.device), LANE.cells, "--accent");
    }
    for (const i of READERS.get(key("node", at.index)) || []) {
      bar(E.nodes[i].step, LANES.get(E.nodes[i].device), -3, "--accent");
    }
  }
  for (const [it, thick] of [[state.hovered, 1.5], [state.pinned, 2.5]]) {
    if (!it || (it.kind !== "node" && it.kind !== "copy")) continue;
    const t = thing(it), x = xOf(t.step, w), width = Math.max(xOf(t.step + 1, w) - x - 1, 2);
    c.strokeStyle = ink("--mark");
    c.lineWidth = thick;
    c.strokeRect(x, cellTop(LANES.get(t.device)), width, LANE.cells);
  }
}

function drawSteps(c, w, h) {
  c.font = fonts.small;
  c.fillStyle = ink("--soft");
  c.fillText("step", 2, h - 9);
  const span = state.x1 - state.x0, rough = span / Math.max((w - GUTTER) / 90, 1);
  const power = 10 ** Math.floor(Math.log10(Math.max(rough, 1)));
  const every = Math.max([1, 2, 5, 10].map((m) => m * power).find((m) => m >= rough), 1);
  for (let s = Math.max(Math.ceil(state.x0 / every) * every, 0); s <= Math.min(state.x1, N_STEPS); s += every) {
    const x = xOf(s + 0.5, w);
    if (x > w - 26) break;
    c.textAlign = "center";
    c.fillText(s.toLocaleString("en"), x, h - 9);
    c.textAlign = "left";
  }
}

function findInLanes(x, y) {
  const w = lanesCanvas.clientWidth;
  if (x < GUTTER) return null;
  const link = LINKS.find((l) => {
    const ends = linkEnds(l);
    return ends && Math.abs(xOf(l.step + 0.5, w) - x) < 4
      && y > Math.min(...ends) && y < Math.max(...ends) && !inCells(y);
  });
  if (link) return { at: { kind: "copy", index: link.copies[0] }, lines: linkLines(link) };
  const lane = Math.floor((y - 6) / LANE_HEIGHT);
  if (lane < 0 || lane >= E.devices.length || y > cellTop(lane) + LANE.cells + 3) return null;
  const s = Math.floor(stepAt(x, w)), name = E.devices[lane].name;
  if (y >= cellTop(lane) && s >= 0 && s < N_STEPS) {
    const { kind, index } = E.steps[s];
    if ((kind === "node" || kind === "copy") && LISTS[kind][index].device === name) {
      return { at: { kind, index }, lines: linesOf({ kind, index }) };
    }
  }
  const split = E.splits.find((p) => p.device === name && p.last >= p.first
    && s >= E.nodes[p.first].step && s <= E.nodes[p.last].step);
  const at = split && { kind: "split", index: split.index };
  return at ? { at, lines: linesOf(at) } : null;
}

const inCells = (y) => E.devices.some((_, lane) => y > cellTop(lane) && y < cellTop(lane) + LANE.cells);

function linkLines(link) {
  const lines = [
    ["b", `${count(link.copies.length, "copy", "copies")}, ${link.atMost ? "at most " : ""}${bytes(link.n_bytes)}`],
    ["div", `${link.from} to ${link.to}, for split ${link.split}${link.ahead ? ", while the previous split computes" : ""}`],
  ];
  for (const i of link.copies.slice(0, 6)) {
    lines.push(["soft", `${E.copies[i].source} (${E.copies[i].kind}), ${bytes(E.copies[i].n_bytes)}`]);
  }
  if (link.copies.length > 6) lines.push(["soft", `and ${link.copies.length - 6} more`]);
  return lines;
}

function linesOf(at) {
  const t = thing(at);
  if (at.kind === "node") {
    return [["b", t.name], ["div", `${t.op}  ${shape(t)}  on ${t.device}`],
      ["div", `${t.cause}: ${t.why}`],
      ["soft", `node ${t.index}, step ${t.step}, split ${t.split}${t.is_view ? ", a view" : ""}`]];
  }
  if (at.kind === "copy") {
    return [["b", t.source], ["div", `copy of ${t.kind === "experts" ? "at most " : ""}${bytes(t.n_bytes)} (${t.kind}), ${t.from_device} to ${t.device}`],
      ["soft", `step ${t.step}, for split ${t.split}${t.ahead ? ", while the previous split computes" : ""}`]];
  }
  if (at.kind === "split") {
    return [["b", `split ${t.index} on ${t.device}`], ["div", `begins: ${t.why}`],
      ["soft", `${count(t.n_computed, "node")}, ${count(t.copies.length, "copy", "copies")}`]];
  }
  return [["b", t.name], ["div", `${t.kind}  ${shape(t)}  on ${t.device}`], ["div", `${t.cause}: ${t.why}`]];
}

explore(lanesCanvas, { find: findInLanes });
