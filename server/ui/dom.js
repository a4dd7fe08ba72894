// Makes elements. Texts become text nodes only; nothing here parses HTML.

export const $ = (id) => document.getElementById(id);

// el("button", { class: "quiet", text: "Copy", on: { click: copy }, type: "button" }, ...children)
export function el(tag, options = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "text") made.textContent = value;
    else if (name === "class") made.className = value;
    else if (name === "on") for (const [event, call] of Object.entries(value)) made.addEventListener(event, call);
    else if (name === "data") Object.assign(made.dataset, value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  add(made, children);
  return made;
}

// Append nodes, texts, and lists of them, which may be too long for the arguments of a call.
function add(place, children) {
  for (const child of children) {
    if (Array.isArray(child)) add(place, child);
    else if (child !== null && child !== undefined) place.append(child);
  }
}

// strokes on a grid of 24 x 24
const ICONS = {
  menu: "M4 7h16M4 12h16M4 17h16",
  plus: "M12 5v14M5 12h14",
  send: "M12 19V5M6 11l6-6 6 6",
  stop: "M7 7h10v10H7z",
  copy: "M9 9h10v11H9zM5 15V4h10",
  check: "M5 13l4 4L19 7",
  edit: "M4 20h4L19 9l-4-4L4 16zM13 7l4 4",
  again: "M19 12a7 7 0 1 1-2-5l2 2M19 4v5h-5",
  trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13",
  gear: "M4 7h9M17 7h3M4 17h3M11 17h9M15 5v4M9 15v4",
  clip: "M19 11l-7 7a4 4 0 0 1-6-6l8-8a3 3 0 0 1 4 4l-8 8a1 1 0 0 1-2-2l7-7",
  left: "M15 5l-7 7 7 7",
  right: "M9 5l7 7-7 7",
  down: "M12 5v14M6 13l6 6 6-6",
  close: "M6 6l12 12M18 6L6 18",
  more: "M5 12h.01M12 12h.01M19 12h.01",
  sun: "M12 8a4 4 0 1 0 0 8a4 4 0 1 0 0-8M12 2v2M12 20v2M2 12h2M20 12h2M5 5l1 1M18 18l1 1M5 19l1-1M18 6l1-1",
  pulse: "M3 12h4l3-8 4 16 3-8h4",
  next: "M5 12h14M13 6l6 6-6 6",
};

export function icon(name) {
  const ns = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(ns, "svg");
  for (const [key, value] of [["viewBox", "0 0 24 24"], ["class", "icon"], ["aria-hidden", "true"]]) {
    svg.setAttribute(key, value);
  }
  const path = document.createElementNS(ns, "path");
  path.setAttribute("d", ICONS[name]);
  svg.append(path);
  return svg;
}

// a button with an icon: the label is its tooltip, and what a screen reader says
export function iconButton(name, label, click, more = {}) {
  return el("button", { type: "button", class: "tool", title: label, "aria-label": label, on: { click }, ...more }, icon(name));
}

export function number(n) {
  return n.toLocaleString("en", { maximumFractionDigits: n < 10 ? 2 : n < 100 ? 1 : 0 });
}

export const count = (n, one, many = `${one}s`) => `${n.toLocaleString("en")} ${n === 1 ? one : many}`;

export function bytes(n) {
  for (const [unit, size] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
    if (n >= size) return `${(n / size).toFixed(n / size < 10 ? 2 : 1)} ${unit}`;
  }
  return `${n} B`;
}

export function short(n) {
  for (const [unit, size] of [["B", 1e9], ["M", 1e6], ["K", 1e3]]) {
    if (n >= size) return `${+(n / size).toPrecision(3)}${unit}`;
  }
  return `${n}`;
}

export async function copyText(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch { // without HTTPS there is no clipboard: select the text instead
    const box = el("textarea", { class: "offscreen", "aria-hidden": "true" });
    box.value = text;
    document.body.append(box);
    box.select();
    document.execCommand("copy");
    box.remove();
    button.focus();
  }
  const before = [...button.childNodes];
  button.replaceChildren(icon("check"));
  say("Copied");
  setTimeout(() => button.replaceChildren(...before), 1200);
}

// tell a screen reader
export function say(text) {
  $("announcer").textContent = text;
}
