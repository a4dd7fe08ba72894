// The side panel: lists of splits, nodes and copies, and details of the pinned item. Only rows in view
// exist in the document. Names are text, never markup.

function el(tag, options = {}, ...children) {
  const { cls, text, ...rest } = options;
  const node = Object.assign(document.createElement(tag), rest);
  if (cls) node.className = cls;
  if (text !== undefined) node.textContent = text;
  node.append(...children.filter((child) => child !== null));
  return node;
}

function swatch(cause) {
  const mark = el("span", { cls: "swatch" });
  mark.style.background = `var(${colorName(cause)})`;
  return mark;
}

// --- lists ---

// a split's reason takes two lines, or three
const ROW_HEIGHT = { node: 24, split: E.splits.some((s) => s.why.length > 98) ? 82 : 64, copy: 24 };
const list = $("list"), rows = $("rows");
let listKey = "", rowsKey = "";

function copiesShown() {
  if (!isFiltered()) return E.copies.map((copy) => copy.index);
  return E.copies.map((copy) => copy.index).filter(isCopyShown);
}

const splitsShown = () => E.splits.filter((split) => !isFiltered()
  || shown.some((i) => E.nodes[i].split === split.index)).map((split) => split.index);

function indexes() {
  if (state.tab === "node") return shown;
  return state.tab === "copy" ? copiesShown() : splitsShown();
}

function drawList() {
  const items = indexes(), height = ROW_HEIGHT[state.tab];
  const newKey = `${state.tab} ${state.pinned ? key(state.pinned.kind, state.pinned.index) : ""}`;
  rows.style.height = `${items.length * height}px`;
  if (newKey !== listKey) scrollToPinned(items, height);
  listKey = newKey;
  const first = Math.max(Math.floor(list.scrollTop / height) - 4, 0);
  const last = Math.min(first + Math.ceil(list.clientHeight / height) + 8, items.length);
  rows.dataset.items = items.length;
  const inView = items.slice(first, last), newRowsKey = `${newKey} ${first} ${inView}`;
  if (newRowsKey === rowsKey) return; // replacing a row during a click loses the click
  rowsKey = newRowsKey;
  rows.replaceChildren(...inView.map((i, j) => row(i, (first + j) * height, height)));
  if (!items.length) {
    const none = { node: "No node matches the filters.", split: "No split has nodes that match the filters." };
    rows.append(el("div", { cls: "empty", text: none[state.tab]
      || (E.copies.length ? "No matching node reads a copy." : "Nothing is copied.") }));
  }
}

function scrollToPinned(items, height) {
  if (!state.pinned || state.pinned.kind !== state.tab) return;
  const at = items.indexOf(state.pinned.index) * height;
  if (at >= 0 && (at < list.scrollTop || at + height > list.scrollTop + list.clientHeight)) {
    list.scrollTop = at - list.clientHeight / 2;
  }
}

function row(index, top, height) {
  const at = { kind: state.tab, index };
  const line = el("div", { cls: "row" }, ...ROWS[state.tab](thing(at)));
  line.classList.add(state.tab);
  if (same(at, state.pinned)) line.classList.add("pinned");
  if (state.tab === "node" && thing(at).is_view) line.classList.add("view");
  line.style.top = `${top}px`;
  line.style.height = `${height}px`;
  line.dataset.index = index;
  line.onclick = () => pin(at);
  line.onpointerenter = () => hover(at);
  line.onpointerleave = () => hover(null);
  return line;
}

const ROWS = {
  node: (n) => [el("div", {}, el("span", { cls: "n", text: n.index }), swatch(n.cause),
    el("span", { cls: "op", text: n.op }), el("span", { cls: "grow", text: n.name, title: n.name }),
    el("span", { cls: "side", text: n.device }))],
  copy: (c) => [el("div", {}, el("span", { cls: "n", text: `${c.split}` }), swatch("4.cpy"),
    el("span", { cls: "grow", text: c.source, title: c.source }),
    el("span", { cls: "side", text: `${c.kind === "experts" ? "≤ " : ""}${bytes(c.n_bytes)}` }),
    el("span", { cls: "side", text: `${c.from_device} → ${c.device}` }))],
  split: (s) => {
    const n = s.copies.reduce((sum, i) => sum + E.copies[i].n_bytes, 0);
    const copied = s.copies.length ? `${count(s.copies.length, "copy", "copies")}, ${bytes(n)}` : "";
    return [el("div", {}, el("span", { cls: "n", text: s.index }), el("b", { text: s.device }),
      el("span", { cls: "grow", text: count(s.n_computed, "node") }),
      el("span", { cls: "side", text: copied, style: "max-width:none" })),
    el("div", { cls: "why" }, el("span", { cls: "grow", text: s.why, title: s.why }))];
  },
};

function drawTabs() {
  const names = { split: [E.splits.length, "split"], node: [E.nodes.length, "node"],
    copy: [E.copies.length, "copy", "copies"] };
  for (const tab of document.querySelectorAll(".tabs button")) {
    tab.textContent = count(...names[tab.dataset.tab]);
    tab.setAttribute("aria-selected", tab.dataset.tab === state.tab);
  }
}

// --- details ---

function link(at, text) {
  return el("a", { cls: "go", text: text ?? nameOf(at), title: nameOf(at), onclick: () => pin(at) });
}

function facts(...pairs) {
  return el("dl", {}, ...pairs.filter((pair) => pair && pair[1] !== null).flatMap(([name, value]) =>
    [el("dt", { text: name }), el("dd", {}, ...(Array.isArray(value) ? value : [value]))]));
}

function placeFacts(kind, index, place) {
  if (!place) return [];
  const r = RECTANGLES.get(key(kind, index)), buffer = r && E.memory[r.buffer];
  const to = (at) => {
    const other = buffer.rectangles[at];
    return other.index === null ? other.name : link({ kind: other.kind, index: other.index }, other.name);
  };
  return [
    ["memory", `${place.buffer_type}${place.chunk === null ? "" : `, chunk ${place.chunk}`}, ${place.usage}`],
    ["offsets", `${place.offset.toLocaleString("en")} to ${(place.offset + place.size).toLocaleString("en")} (${bytes(place.size)})`],
    r ? ["lifetime", lifeOf(r)] : null,
    r && r.over !== null ? ["in place of", to(r.over)] : null,
    r && r.next !== null ? ["reused by", to(r.next)] : null,
  ];
}

const because = (cause, why) => el("div", { cls: "because" }, swatch(cause), el("b", { text: cause }), why);

function readersOf(kind, index) {
  const readers = READERS.get(key(kind, index)) || [];
  if (!readers.length) return [];
  const items = readers.slice(0, 40).map((i) => el("li", {},
    el("span", { cls: "grow" }, link({ kind: "node", index: i })), el("span", { cls: "side", text: E.nodes[i].op }),
    el("span", { cls: "side", text: E.nodes[i].device })));
  if (readers.length > 40) items.push(el("li", { text: `and ${readers.length - 40} more` }));
  return [el("h4", { text: "Read by" }), el("ul", {}, ...items)];
}

function sourceItem(s) {
  const copy = s.copy === null ? null : E.copies[s.copy];
  const mark = copy && el("a", { cls: "go copied", title: "The copy", text: `copy, ${bytes(copy.n_bytes)}`,
    onclick: () => pin({ kind: "copy", index: s.copy }) });
  const name = s.index === null ? el("span", { text: s.name }) : link({ kind: s.kind, index: s.index }, s.name);
  return el("li", {}, el("span", { cls: "grow" }, name), mark, el("span", { cls: "side", text: `${s.device} ${s.cause}` }));
}

const COPY_OF = { input: "copy of an input", weight: "copy of weights", experts: "copy of the experts in use",
  data: "copy of persistent data", activation: "copy of an activation" };

const DETAILS = {
  node: (n) => [
    el("h3", { text: n.name }),
    el("div", { cls: "under", text: `${n.op}${n.is_view ? ", a view: computes nothing" : ""}` }),
    because(n.cause, n.why),
    facts(["runs on", [n.device, ", ", link({ kind: "split", index: n.split })]],
      ["shape", `${shape(n)}, ${bytes(n.n_bytes)}`], ["order", `node ${n.index}, step ${n.step}`],
      ...placeFacts("node", n.index, n.place)),
    el("h4", { text: n.sources.length ? "Reads" : "Reads nothing" }),
    el("ul", {}, ...n.sources.map(sourceItem)),
    ...readersOf("node", n.index),
  ],
  copy: (c) => {
    const origin = originOf(c);
    return [
      el("h3", { text: c.source }),
      el("div", { cls: "under", text: COPY_OF[c.kind] }),
      because("4.cpy", `${c.source} is on ${c.from_device}; split ${c.split} on ${c.device} reads it`),
      facts(["from", origin ? [c.from_device, ", ", link(origin)] : c.from_device],
        ["to", [c.device, ", ", link({ kind: "split", index: c.split })]],
        ["bytes", `${c.kind === "experts" ? "at most " : ""}${bytes(c.n_bytes)}`],
        ["when", c.ahead ? "while the previous split computes" : "before the split computes"],
        ["order", `step ${c.step}`], ...placeFacts("copy", c.index, c.place)),
      ...readersOf("copy", c.index),
    ];
  },
  leaf: (l) => [
    el("h3", { text: l.name }), el("div", { cls: "under", text: l.kind }), because(l.cause, l.why),
    facts(["on", l.device], ["shape", `${shape(l)}, ${bytes(l.n_bytes)}`],
      ...placeFacts("leaf", l.index, l.place)),
    ...readersOf("leaf", l.index),
  ],
  split: (s) => [
    el("h3", { text: `split ${s.index} on ${s.device}` }),
    el("div", { cls: "under", text: `${count(s.n_computed, "node")} computed, ${count(s.last - s.first + 1 - s.n_computed, "view")}` }),
    el("div", { cls: "because", text: `Begins: ${s.why}` }),
    s.last < s.first ? null : facts(["nodes", [link({ kind: "node", index: s.first }), " to ", link({ kind: "node", index: s.last })]]),
    el("h4", { text: s.copies.length ? "Copies before it" : "No copies before it" }),
    el("ul", {}, ...s.copies.map((i) => el("li", {}, el("span", { cls: "grow" }, link({ kind: "copy", index: i })),
      el("span", { cls: "side", text: E.copies[i].kind }),
      el("span", { cls: "side", text: `${E.copies[i].kind === "experts" ? "≤ " : ""}${bytes(E.copies[i].n_bytes)}` })))),
  ],
};

// the copied tensor, as a source of a node that reads the copy; null for parts of a larger input
function originOf(copy) {
  for (const i of READERS.get(key("copy", copy.index)) || []) {
    const s = E.nodes[i].sources.find((t) => t.copy === copy.index && t.name === copy.source);
    if (s && s.index !== null) return { kind: s.kind, index: s.index };
  }
  return null;
}

let detailsKey = null;
function drawDetails() {
  const at = state.pinned, now = at ? key(at.kind, at.index) : "";
  if (now === detailsKey) return;
  detailsKey = now;
  const help = ["Point at an item to see what it is. Click to pin it here.",
    "/ searches, Esc clears the filters, the arrow keys move from node to node.",
    "Scroll to zoom the steps, with Shift the bytes. Drag to move. Double-click to show all."];
  $("details").replaceChildren(...(at ? DETAILS[at.kind](thing(at)).filter((node) => node !== null)
    : help.map((text) => el("p", { cls: "under", text }))));
  $("details").scrollTop = 0;
}
