// What an empty conversation shows: which model answers, and questions to begin with.

import { bytes, el, short } from "./dom.js";

const QUESTIONS = [
  "Tell me a short story about a lighthouse.",
  "Explain what a hash table is, with an example in Python.",
  "Compare tea and coffee in a table.",
];

export function about(model, ask) {
  const meta = model?.meta ?? {};
  const facts = [
    meta.n_params && `${short(meta.n_params)} parameters`,
    meta.size && bytes(meta.size),
    meta.n_ctx && `${meta.n_ctx.toLocaleString("en")} tokens of context`,
  ].filter(Boolean);
  return [
    el("h2", { text: model ? model.id : "Lamella" }),
    el("p", { class: "dim", text: facts.join(" · ") }),
    el("p", { class: "dim", text: "Conversations stay in this browser." }),
    el("div", { class: "starters" }, ...QUESTIONS.map((text) =>
      el("button", { type: "button", text, disabled: !model, on: { click: () => ask(text) } }))),
  ];
}
