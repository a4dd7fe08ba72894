// Draws markdown that a model wrote. It is untrusted: only the elements and attributes that are
// made here can appear, texts become text nodes, and nothing is loaded.
//
//     const view = new Markdown(element);
//     view.update(text);        // again and again: only the last blocks are drawn again
//     view.update(text, true);  // the text is complete

import { blocks } from "./blocks.js";
import { copyText, el, icon } from "./dom.js";
import { highlight } from "./highlight.js";
import { inline } from "./inline.js";

const ELEMENTS = 20_000; // of one text; what is left is shown as plain text
// controls of the direction of text, and other controls: they could make a text look like another
const CONTROLS = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]/;
const CONTROL_RUNS = /([\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069])/;

export class Markdown {
  constructor(element) {
    this.element = element;
    this.reset();
  }

  reset() {
    this.text = "";
    this.from = 0; // the begin of the last blocks: all before them is final
    this.last = []; // their nodes
    this.budget = { left: ELEMENTS };
    this.spent = 0; // of the budget, by the last blocks
    this.element.replaceChildren();
  }

  update(text, isWhole = false) {
    if (!text.startsWith(this.text.slice(0, this.from))) this.reset();
    this.text = text;
    for (const node of this.last) node.remove();
    this.budget.left += this.spent;
    this.spent = 0;
    this.last = [];
    const rest = text.slice(this.from);
    const found = blocks(rest);
    const lines = lineStarts(rest);
    const open = firstOpen(found, lines.length);
    let left = 0; // of the budget, before the first block that may change
    for (const [i, block] of found.entries()) {
      const isLast = i === found.length - 1;
      const before = this.budget.left;
      const node = before <= 0 ? plain(rest.slice(lines[block.line])) : draw(block, this.budget, !isLast || isWhole);
      this.element.append(node);
      if (i < open && before > 0) continue;
      if (!this.last.length) {
        this.from += lines[block.line];
        left = before;
      }
      this.last.push(node);
      this.spent = left - this.budget.left;
      if (before <= 0) break; // without elements left, all the rest is plain text
    }
  }
}

// The index of the first block that more text may change: the last one, and the one before if a line
// that may go on divides them.
function firstOpen(found, nLines) {
  const last = found.length - 1;
  return last > 0 && found[last].line === nLines - 1 ? last - 1 : last;
}

// where each line begins
function lineStarts(text) {
  const found = [0];
  for (const match of text.matchAll(/\r\n?|\n/g)) found.push(match.index + match[0].length);
  return found;
}

function make(budget, tag, options = {}, ...children) {
  budget.left--;
  const made = el(tag, options, children);
  made.dir = "auto"; // last: the browser looks for it again with each child
  return made;
}

function plain(text) {
  return el("pre", { class: "plain", tabindex: "0" }, visible(text));
}

// Text nodes, with the names of controls instead of the controls.
function visible(text) {
  if (!CONTROLS.test(text)) return [text];
  return text.split(CONTROL_RUNS).slice(0, 4000).map((part, i) => (i % 2 === 0 ? part
    : el("span", { class: "control", text: `U+${part.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}` })));
}

const DRAWN = {
  text: (block, budget) => make(budget, "p", {}, parts(block.text, budget)),
  // the page has headings of its own
  heading: (block, budget) => make(budget, `h${Math.min(block.level + 2, 6)}`, {}, parts(block.text, budget)),
  rule: () => el("hr"),
  quote: (block, budget, isWhole) => make(budget, "blockquote", {}, all(block.blocks, budget, isWhole)),
  code: (block, budget, isWhole) => codeBlock(block.text, block.language, budget, isWhole || block.closed),
  list: drawList,
  table: drawTable,
};

const draw = (block, budget, isWhole) => DRAWN[block.type](block, budget, isWhole);

function all(list, budget, isWhole) {
  return list.map((block) => (budget.left > 0 ? draw(block, budget, isWhole) : ""));
}

function drawList(block, budget, isWhole) {
  const tag = block.start === null ? "ul" : "ol";
  const start = block.start !== null && block.start !== 1 ? String(block.start) : null;
  const list = make(budget, tag, { start, class: block.loose ? "loose" : null });
  for (const item of block.items) {
    if (budget.left <= 0) break;
    const isTask = item.done !== null;
    const box = isTask ? [el("span", { class: "box", role: "img", "aria-label": item.done ? "done" : "to do", text: item.done ? "☑" : "☐" })] : [];
    const inner = item.blocks.flatMap((each, i) => (i === 0 && each.type === "text" && !block.loose
      ? parts(each.text, budget) : budget.left > 0 ? [draw(each, budget, isWhole)] : []));
    list.append(make(budget, "li", { class: isTask ? "task" : null }, box, inner));
  }
  return list;
}

function drawTable(block, budget) {
  const cell = (tag, text, i) => make(budget, tag, { class: block.align[i], scope: tag === "th" ? "col" : null }, parts(text, budget));
  const row = (tag, texts) => {
    budget.left--;
    return el("tr", {}, texts.map((text, i) => cell(tag, text, i)));
  };
  const body = el("tbody");
  let i = 0;
  for (; i < block.rows.length && budget.left > 0; i++) body.append(row("td", block.rows[i]));
  const rest = block.rows.slice(i).map((texts) => texts.join(" | ")).join("\n");
  const table = el("table", {}, el("thead", {}, row("th", block.head)), body);
  return el("div", { class: "table", role: "region", "aria-label": "Table", tabindex: "0" }, table, rest ? plain(rest) : null);
}

export function codeBlock(text, language, budget = { left: ELEMENTS }, isWhole = true) {
  const pieces = isWhole && budget.left > 0 ? highlight(text, language) : [text];
  const nodes = pieces.flatMap((piece) => {
    if (typeof piece === "string" || budget.left <= 0) return visible(typeof piece === "string" ? piece : piece[1]);
    budget.left--;
    return [el("span", { class: `hl-${piece[0]}` }, visible(piece[1]))];
  });
  budget.left -= 4;
  const copy = el("button", { type: "button", class: "tool", title: "Copy", "aria-label": "Copy the code", on: { click: () => copyText(text, copy) } }, icon("copy"));
  return el("div", { class: "code", dir: "ltr" },
    el("div", { class: "bar" }, el("span", {}, ...visible(language.slice(0, 30) || "text")), copy),
    el("pre", { tabindex: "0" }, el("code", {}, nodes)));
}

function parts(text, budget) {
  return inline(text).flatMap((part) => drawPart(part, budget));
}

function drawPart(part, budget, isInLink = false) {
  if (typeof part === "string") return visible(part);
  if (budget.left <= 0) return visible(part.text ?? (part.parts ? part.parts.map(flat).join("") : "\n"));
  budget.left--;
  switch (part.type) {
    case "br": return [el("br")];
    case "code": return [el("code", {}, visible(part.text))];
    case "math": return [el("span", { class: "math" }, visible(part.text))];
    case "link": return isInLink ? inside(part, budget, true) : [el("a", { href: part.url, title: part.url, target: "_blank", rel: "noopener noreferrer nofollow" },
      inside(part, budget, true))];
    default: return [el(part.type, {}, inside(part, budget, isInLink))]; // em, strong, del
  }
}

const inside = (part, budget, isInLink) => part.parts.flatMap((each) => drawPart(each, budget, isInLink));
const flat = (part) => (typeof part === "string" ? part : part.text ?? (part.parts ?? []).map(flat).join(""));
