// The model's card: what runs here, where it runs, and links to more.

import { address, get } from "./api.js";
import { bytes, count, el, short } from "./dom.js";

const CARD = { name: "Name", organization: "By", author: "Author", license: "License", url: "Source", description: "Description", quantized_by: "Quantized by" };
export const USES = { weights: "weights", kv: "keys and values", compute: "graphs", work: "scratch" };

// `isOneOf`: the server has several models
export async function showAbout(model, props, isOneOf) {
  const one = (sign) => (isOneOf ? `${sign}model=${encodeURIComponent(model.id)}` : "");
  const content = el("div", { class: "stack" }, el("p", { class: "dim", text: "Asking the server" }));
  const dialog = el("dialog", { id: "about", "aria-label": "About the model" },
    el("h2", { text: model.id }), content,
    el("div", { class: "row end" }, el("button", { type: "button", class: "main", text: "Close", on: { click: () => dialog.close() } })));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  try {
    const status = await get(`status.json?since=999999999999${one("&")}`);
    content.replaceChildren(...parts(model, props, status, one("?")));
  } catch (error) {
    content.replaceChildren(...parts(model, props, null, one("?")), el("p", { class: "error", text: error.message }));
  }
}

function parts(model, props, status, query) {
  const isServed = status && status.model.name === model.id;
  const card = isServed ? status.model.card : {};
  const meta = model.meta ?? {};
  const facts = [
    ...Object.entries(CARD).filter(([name]) => card[name]).map(([name, label]) => [label, card[name]]),
    ["Architecture", card.architecture],
    ["Parameters", meta.n_params && `${short(meta.n_params)} (${meta.n_params.toLocaleString("en")})`],
    ["Size", meta.size && bytes(meta.size)],
    ["Context", meta.n_ctx && `${count(meta.n_ctx, "token")}${meta.n_ctx_train ? `, trained with ${meta.n_ctx_train.toLocaleString("en")}` : ""}`],
    ["Vocabulary", meta.n_vocab && count(meta.n_vocab, "token")],
    ["Server", status && `Lamella ${status.version}`],
  ].filter(([, value]) => value);
  const template = props?.chat_template;
  return [
    el("dl", { class: "facts" }, ...facts.flatMap(([label, value]) => [el("dt", { text: label }), el("dd", { text: value, dir: "auto" })])),
    ...(isServed ? [el("h3", { text: "Where it runs" }), ...status.devices.map(deviceBox)] : []),
    template ? el("details", {}, el("summary", { text: "Chat template" }), el("pre", { class: "plain", tabindex: "0", text: template })) : "",
    el("nav", { class: "links", "aria-label": "More about this server" },
      el("a", { href: address(`explain${query}`), text: "Placement of every part" }), el("a", { href: address(`status${query}`), text: "What the server does now" }),
      el("a", { href: address("?info"), text: "How to call it" })),
  ];
}

// A device: its layers, and a bar of its memory.
export function deviceBox(device) {
  const used = Object.entries(device.memory).filter(([, n]) => n > 0);
  const sum = used.reduce((total, [, n]) => total + n, 0);
  const all = Math.max(device.capacity ?? sum, sum, 1);
  const bar = el("div", { class: "bar-of-memory", "aria-hidden": "true" }, ...used.map(([use, n]) => {
    const part = el("span", { class: `use-${use}` });
    part.style.width = `${(100 * n) / all}%`;
    return part;
  }));
  const of = device.capacity ? ` of ${bytes(device.capacity)}` : "";
  return el("section", { class: "device" },
    el("div", { class: "row" }, el("b", { text: device.name }), el("span", { class: "dim grow", text: device.description }),
      el("span", { text: device.layers ? count(device.layers, "layer") : "" })),
    bar,
    el("p", { class: "legend" }, el("span", { text: `${bytes(sum)}${of}` }),
      ...used.map(([use, n]) => el("span", { class: `key use-${use}`, text: `${USES[use] ?? use} ${bytes(n)}` }))));
}
