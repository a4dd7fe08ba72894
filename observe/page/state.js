// The state of the view: filters, the pinned and the hovered item, and the steps in view.

const state = { pinned: null, hovered: null, tab: "split", x0: -1, x1: N_STEPS + 1 };
const filter = { text: "", op: "", device: "", copied: false, computed: false, causes: new Set() };
let shown = E.nodes.map((n) => n.index); // the nodes that match the filters
let isShown = new Uint8Array(E.nodes.length).fill(1);
const watchers = []; // called after changes, at most once per frame

function changed() {
  if (changed.waiting) return;
  changed.waiting = true;
  requestAnimationFrame(() => {
    changed.waiting = false;
    for (const watch of watchers) watch();
  });
}

function matches(node, words) {
  return (!filter.op || node.op === filter.op)
    && (!filter.device || node.device === filter.device)
    && (!filter.causes.size || filter.causes.has(rule(node.cause)))
    && (!filter.copied || node.copied)
    && (!filter.computed || !node.is_view)
    && words.every((word) => (/^#\d+$/.test(word) ? word === `#${node.index}` : node.text.includes(word)));
}

function applyFilter() {
  const words = filter.text.toLowerCase().split(/\s+/).filter(Boolean);
  shown = E.nodes.filter((n) => matches(n, words)).map((n) => n.index);
  isShown = new Uint8Array(E.nodes.length);
  for (const i of shown) isShown[i] = 1;
  changed();
}

// a copy is shown if a shown node reads it
const isCopyShown = (index) => (READERS.get(key("copy", index)) || []).some((i) => isShown[i]);
const isFiltered = () => shown.length < E.nodes.length;
const same = (a, b) => a !== null && b !== null && a.kind === b.kind && a.index === b.index;

function pin(at, bring = true) {
  state.pinned = at;
  if (at && bring) bringIntoView(at);
  changed();
}

function bringIntoView(at) {
  const step = stepOf(at);
  if (step === null || (step >= state.x0 && step + 1 <= state.x1)) return;
  const half = (state.x1 - state.x0) / 2;
  setView(step + 0.5 - half, step + 0.5 + half);
}

const ALL = N_STEPS + 2, FEW = Math.min(6, ALL); // most and fewest steps in view

function setView(x0, x1) {
  const width = Math.min(Math.max(x1 - x0, FEW), ALL);
  const middle = (x0 + x1) / 2;
  state.x0 = Math.min(Math.max(middle - width / 2, -1), N_STEPS + 1 - width);
  state.x1 = state.x0 + width;
  changed();
}

function zoom(factor, x = (state.x0 + state.x1) / 2) {
  const now = state.x1 - state.x0, by = Math.min(Math.max(now * factor, FEW), ALL) / now;
  setView(x - (x - state.x0) * by, x + (state.x1 - x) * by);
}

// pin the next or the previous shown node
function move(by) {
  if (!shown.length) return;
  let at = by > 0 ? 0 : shown.length - 1;
  if (state.pinned) {
    const step = stepOf(state.pinned) ?? -1;
    const next = shown.findIndex((i) => E.nodes[i].step > step);
    const after = next < 0 ? shown.length : next;
    const on = state.pinned.kind === "node" && isShown[state.pinned.index];
    at = by > 0 ? after : after - (on ? 2 : 1);
  }
  at = Math.min(Math.max(at, 0), shown.length - 1);
  state.tab = "node";
  pin({ kind: "node", index: shown[at] });
}
