// The data of the page: the explanation, and lookup tables for it.

const DATA = JSON.parse(document.getElementById("data").textContent);
const E = DATA.explanation;
const N_STEPS = E.steps.length;

const $ = (id) => document.getElementById(id);
const count = (n, one, many) => `${n.toLocaleString("en")} ${n === 1 ? one : many || one + "s"}`;
const rule = (cause) => (cause.startsWith("1.wgt") ? "1.wgt" : cause);

// names of the colors in explain.css
const COLORS = {
  "1.wgt": "weights", "1.dst": "data", "1.vsrc": "data", "1.inp": "input", "1.off": "offload",
  "2.sup": "near", "3.best": "best", "3.upg": "upgrade", usr: "hand", "4.vsrc": "view",
  "4.cur": "reader", "4.cpy": "copy", "6.cpy": "copy",
};
// short names of the causes; E.causes has whole sentences
const SHORT = {
  usr: "pinned", "1.dst": "its data", "1.vsrc": "its view source", "1.inp": "input", "1.off": "offload",
  "1.wgt": "its weights", "2.sup": "neighbors", "3.best": "most sources", "3.upg": "upgrade",
  "4.vsrc": "view", "4.cur": "its reader", "4.cpy": "copy", "6.cpy": "pipeline copy",
};
const colorName = (cause) => `--c-${COLORS[rule(cause)] || "reader"}`;

function bytes(n) {
  if (n < 10240) return `${n.toLocaleString("en")} B`;
  const units = ["KiB", "MiB", "GiB", "TiB"];
  let i = -1;
  do { n /= 1024; i++; } while (n >= 1024 && i < units.length - 1);
  return `${n.toFixed(n < 10 ? 2 : 1)} ${units[i]}`;
}

function shape(t) {
  let n = 4;
  while (n > 1 && t.ne[n - 1] === 1) n--;
  return `[${t.ne.slice(0, n).join(", ")}] ${t.type}`;
}

// an item of the page is a kind ("node", "copy", "leaf" or "split") and an index
const key = (kind, index) => `${kind} ${index}`;
const LISTS = { node: E.nodes, copy: E.copies, leaf: E.leafs, split: E.splits };
const thing = (at) => LISTS[at.kind][at.index];
const nameOf = (at) => (at.kind === "split" ? `split ${at.index}`
  : at.kind === "copy" ? thing(at).source : thing(at).name);

const LANES = new Map(E.devices.map((d, i) => [d.name, i]));
const READERS = new Map(); // the nodes that read a node, leaf or copy
for (const node of E.nodes) {
  node.text = `${node.op} ${node.name} ${node.type} ${node.why}`.toLowerCase();
  node.copied = false;
  for (const s of node.sources) {
    node.text += ` ${s.name.toLowerCase()}`;
    const seen = s.copy === null ? [key(s.kind, s.index)] : [key(s.kind, s.index), key("copy", s.copy)];
    for (const k of seen) {
      if (!READERS.has(k)) READERS.set(k, []);
      if (READERS.get(k).at(-1) !== node.index) READERS.get(k).push(node.index);
    }
    node.copied ||= s.copy !== null;
  }
}

const RECTANGLES = new Map(); // the buffer and rectangle of a node, copy or leaf
E.memory.forEach((buffer, b) => buffer.rectangles.forEach((r, i) => {
  r.buffer = b;
  r.at = i;
  r.next = null; // the rectangle that reuses its memory in place
  if (r.over !== null) buffer.rectangles[r.over].next = i;
  if (r.index !== null) RECTANGLES.set(key(r.kind, r.index), r);
}));

const usedNames = (list) => [...new Set(list)].sort();
const OPS = usedNames(E.nodes.map((n) => n.op));
const CAUSES = Object.keys(E.causes);
const N_BY_CAUSE = new Map();
for (const n of E.nodes) N_BY_CAUSE.set(rule(n.cause), (N_BY_CAUSE.get(rule(n.cause)) || 0) + 1);

function stepOf(at) {
  if (at.kind === "split") return E.nodes[E.splits[at.index].first].step;
  if (at.kind === "leaf") {
    const r = RECTANGLES.get(key("leaf", at.index));
    return r ? r.first : null;
  }
  return thing(at).step;
}

// all copies from one device into a split are one line between two lanes
const LINKS = [];
for (const split of E.splits) {
  const groups = new Map();
  for (const c of split.copies) {
    const copy = E.copies[c];
    const k = `${copy.from_device}\n${copy.ahead}`;
    if (!groups.has(k)) {
      groups.set(k, { split: split.index, from: copy.from_device, to: copy.device,
        ahead: copy.ahead, copies: [], n_bytes: 0, atMost: false });
    }
    const link = groups.get(k);
    link.copies.push(c);
    link.n_bytes += copy.n_bytes;
    link.atMost ||= copy.kind === "experts";
  }
  LINKS.push(...groups.values());
}
for (const link of LINKS) link.step = Math.min(...link.copies.map((c) => E.copies[c].step));
LINKS.sort((a, b) => a.step - b.step);
