// The memory map: one drawing per compute buffer, with tensors as rectangles over steps and bytes. An
// in-place result continues the rectangle of its source.

const maps = E.memory.map((buffer, b) => {
  const section = document.createElement("section");
  const title = document.createElement("h2");
  const apart = buffer.rectangles.reduce((sum, r) => sum + (r.over === null ? r.size : 0), 0);
  const inPlace = buffer.rectangles.filter((r) => r.over !== null).length;
  const hint = document.createElement("span");
  hint.className = "hint";
  hint.textContent = `${bytes(buffer.size)} for ${count(buffer.rectangles.length, "tensor")}`
    + ` of ${bytes(apart)}`
    + (inPlace ? `; ${inPlace} in place, joined by a bar` : "") + `; ${bytes(buffer.reserved)} reserved`;
  title.append(`Memory of ${buffer.buffer_type}${buffer.chunk ? `, chunk ${buffer.chunk}` : ""}`, hint);
  const canvas = document.createElement("canvas");
  canvas.setAttribute("aria-label", `Tensors in the compute buffer of ${buffer.buffer_type}`);
  const frame = document.createElement("div");
  frame.className = "map";
  frame.append(canvas);
  section.append(title, frame);
  $("maps").append(section);
  return { buffer, b, canvas, y0: 0, y1: Math.max(buffer.size, 1) };
});

const MAP = { top: 8, bottom: 8 };
const yOf = (map, offset, h) =>
  h - MAP.bottom - (offset - map.y0) / (map.y1 - map.y0) * (h - MAP.top - MAP.bottom);
const offsetAt = (map, y, h) =>
  map.y0 + (h - MAP.bottom - y) / (h - MAP.top - MAP.bottom) * (map.y1 - map.y0);

// a rectangle on the screen; at the step of an in-place op, source and result get half a step each
function box(map, r, w, h) {
  const next = r.next !== null, from = r.first + (r.over !== null ? 0.5 : 0);
  const x0 = xOf(from, w), x1 = xOf(r.last + (next ? 0.5 : 1), w);
  const y0 = yOf(map, r.offset + r.size, h), y1 = yOf(map, r.offset, h);
  return { x: x0, y: y0, w: Math.max(x1 - x0, 1), h: Math.max(y1 - y0, 1) };
}

function causeOf(r) {
  if (r.kind === "node") return E.nodes[r.index].cause;
  if (r.kind === "leaf") return E.leafs[r.index].cause;
  return "4.cpy";
}

const chainOf = (map, r) => {
  const chain = [];
  while (r.over !== null) r = map.buffer.rectangles[r.over];
  for (let i = r.at; i !== null; i = map.buffer.rectangles[i].next) chain.push(i);
  return chain;
};

function drawMap(map) {
  const { c, w, h } = prepare(map.canvas);
  c.save();
  c.beginPath();
  c.rect(GUTTER, 0, w - GUTTER, h);
  c.clip();
  c.fillStyle = ink("--band");
  const top = yOf(map, map.buffer.size, h);
  c.fillRect(xOf(-1, w), top, xOf(N_STEPS + 1, w) - xOf(-1, w), yOf(map, 0, h) - top);
  let drawn = 0;
  for (const r of map.buffer.rectangles) {
    if (r.last + 1 < state.x0 || r.first > state.x1) continue;
    drawRectangle(c, box(map, r, w, h), r);
    drawn++;
  }
  drawJoints(c, map, w, h);
  drawGuides(c, w, h);
  drawChosen(c, map, w, h);
  c.restore();
  drawOffsets(c, map, w, h);
  map.canvas.dataset.rectangles = drawn;
}

const isRectangleShown = (r) =>
  (r.kind === "node" ? isShown[r.index] : r.kind === "copy" && isCopyShown(r.index));

function drawRectangle(c, at, r) {
  const color = ink(colorName(causeOf(r)));
  const dim = isFiltered() && !isRectangleShown(r);
  c.globalAlpha = dim ? 0.12 : r.kind === "node" ? 0.85 : r.kind === "spare" ? 0.25 : 0.75;
  c.fillStyle = color;
  c.fillRect(at.x, at.y, at.w, at.h);
  c.globalAlpha = dim ? 0.25 : 1;
  if (at.w > 3 && at.h > 3) {
    c.strokeStyle = ink("--panel");
    c.lineWidth = 1;
    c.strokeRect(at.x + 0.5, at.y + 0.5, at.w - 1, at.h - 1);
  }
  if (at.w > 34 && at.h > 13 && !dim) {
    c.font = fonts.mono;
    c.fillStyle = readableOn(color);
    const x = Math.max(at.x + (r.over === null ? 0 : Math.min(9, at.w * 0.4)), GUTTER);
    const text = clipped(c, r.kind === "copy" ? E.copies[r.index].source : r.name, Math.min(at.x + at.w, c.canvas.clientWidth) - x - 8);
    if (text) c.fillText(text, x + 4, at.y + at.h / 2 + 0.5);
  }
  c.globalAlpha = 1;
}

// for in-place ops: a bar from the source into the result
function drawJoints(c, map, w, h) {
  for (const r of map.buffer.rectangles) {
    if (r.over === null || r.first + 1 < state.x0 || r.first > state.x1) continue;
    const at = box(map, r, w, h), dim = isFiltered() && !isRectangleShown(r);
    const from = box(map, map.buffer.rectangles[r.over], w, h);
    const reach = Math.max(Math.min(9, at.w * 0.4, from.w * 0.4), 1.5);
    const y = at.y + at.h / 2, thick = Math.min(Math.max(at.h * 0.3, 2), 4);
    c.globalAlpha = dim ? 0.2 : 1;
    c.fillStyle = ink("--mark");
    c.fillRect(at.x - reach, y - thick / 2, 2 * reach, thick);
    c.globalAlpha = 1;
  }
}

function drawChosen(c, map, w, h) {
  for (const [at, color, thick] of [[state.hovered, "--mark", 1.5], [state.pinned, "--mark", 2.5]]) {
    const found = at && RECTANGLES.get(key(at.kind, at.index));
    if (at && at.kind === "node" && at === state.pinned) drawSources(c, map, w, h, E.nodes[at.index]);
    if (!found || found.buffer !== map.b) continue;
    c.strokeStyle = ink("--accent");
    c.lineWidth = 1.5;
    for (const i of chainOf(map, found)) {
      if (i === found.at) continue;
      const b = box(map, map.buffer.rectangles[i], w, h);
      c.strokeRect(b.x, b.y, b.w, b.h);
    }
    const b = box(map, found, w, h);
    c.strokeStyle = ink(color);
    c.lineWidth = thick;
    c.strokeRect(b.x, b.y, b.w, b.h);
  }
}

function drawSources(c, map, w, h, node) {
  c.strokeStyle = ink("--accent");
  c.lineWidth = 1.5;
  c.setLineDash([3, 2]);
  for (const s of node.sources) {
    const r = RECTANGLES.get(s.copy === null ? key(s.kind, s.index) : key("copy", s.copy));
    if (!r || r.buffer !== map.b) continue;
    const b = box(map, r, w, h);
    c.strokeRect(b.x, b.y, b.w, b.h);
  }
  c.setLineDash([]);
}

function drawOffsets(c, map, w, h) {
  c.font = fonts.small;
  c.fillStyle = ink("--soft");
  c.textAlign = "right";
  const span = map.y1 - map.y0, n = Math.max(Math.floor(h / 34), 1);
  const every = 2 ** Math.ceil(Math.log2(Math.max(span / n, 1)));
  let last = 1e9;
  for (let o = Math.ceil(map.y0 / every) * every; o <= map.y1 + span * 1e-9; o += every) {
    const y = Math.min(Math.max(yOf(map, o, h), 8), h - 8);
    if (last - y < 14) continue;
    last = y;
    c.fillText(tick(o), GUTTER - 8, y);
  }
  c.textAlign = "left";
}

// an offset as text, in the largest unit that divides it
function tick(o) {
  const units = ["B", "KiB", "MiB", "GiB"];
  let i = 0;
  while (o && o % 1024 === 0 && i < units.length - 1) { o /= 1024; i++; }
  return `${o.toLocaleString("en")} ${units[i]}`;
}

function findInMap(map, x, y) {
  const w = map.canvas.clientWidth, h = map.canvas.clientHeight;
  if (x < GUTTER) return null;
  let best = null;
  for (const r of map.buffer.rectangles) {
    const b = box(map, r, w, h), slack = Math.max((3 - Math.min(b.w, b.h)) / 2, 0);
    const inside = x >= b.x - slack && x < b.x + b.w + slack && y >= b.y - slack && y < b.y + b.h + slack;
    if (inside && (best === null || b.w * b.h <= best.area)) best = { r, area: b.w * b.h };
  }
  if (best === null) return null;
  return { at: best.r.index === null ? null : { kind: best.r.kind, index: best.r.index },
    lines: rectangleLines(map, best.r) };
}

const lifeOf = (r) => `${r.first < 0 ? "from the start" : `from step ${r.first}`} `
  + `${r.last >= N_STEPS ? "to the end" : `to ${r.last}`}`;

function rectangleLines(map, r) {
  const at = r.index === null ? null : { kind: r.kind, index: r.index };
  const lines = at ? linesOf(at).slice(0, 2) : [["b", r.name], ["div", "used by other runs of the pipeline"]];
  lines.push(["div", `bytes ${r.offset.toLocaleString("en")} to ${(r.offset + r.size).toLocaleString("en")}`
    + ` (${bytes(r.size)}), ${lifeOf(r)}`]);
  if (r.over !== null) lines.push(["soft", `in place of ${map.buffer.rectangles[r.over].name}`]);
  if (r.next !== null) lines.push(["soft", `reused by ${map.buffer.rectangles[r.next].name}`]);
  return lines;
}

function setBytes(map, y0, y1) {
  const size = Math.max(map.buffer.size, 1), span = Math.min(Math.max(y1 - y0, Math.min(64, size)), size);
  const middle = (y0 + y1) / 2;
  map.y0 = Math.min(Math.max(middle - span / 2, 0), size - span);
  map.y1 = map.y0 + span;
  changed();
}

for (const map of maps) {
  explore(map.canvas, {
    find: (x, y) => findInMap(map, x, y),
    scaleY: (factor, y) => {
      const o = offsetAt(map, y, map.canvas.clientHeight);
      setBytes(map, o - (o - map.y0) * factor, o + (map.y1 - o) * factor);
    },
    moveY: (dy) => {
      const d = dy / map.canvas.clientHeight * (map.y1 - map.y0);
      setBytes(map, map.y0 + d, map.y1 + d);
    },
    reset: () => setBytes(map, 0, map.buffer.size),
  });
}
