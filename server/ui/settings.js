// The settings of a conversation: the system prompt, sampling, JSON schema, tools.

import { fields } from "./chat.js";
import { el, say } from "./dom.js";

// name, label, step, help, the server's name of its default
const SAMPLING = [
  ["temperature", "Temperature", "0.05", "0: always the likeliest token. Higher: more varied.", "temperature"],
  ["top_k", "Top K", "1", "Only the K likeliest tokens. 0: all.", "top_k"],
  ["top_p", "Top P", "0.01", "Only the likeliest tokens that add up to P.", "top_p"],
  ["min_p", "Min P", "0.01", "Only tokens at least P times as likely as the likeliest.", "min_p"],
  ["repeat_penalty", "Repeat penalty", "0.01", "Above 1: fewer repetitions.", "repeat_penalty"],
  ["presence_penalty", "Presence penalty", "0.05", "", "presence_penalty"],
  ["frequency_penalty", "Frequency penalty", "0.05", "", "frequency_penalty"],
  ["max_tokens", "Most tokens", "1", "Of an answer. Empty: until the model ends it.", ""],
  ["seed", "Seed", "1", "The same seed and settings give the same answer.", ""],
];

const TEXTS = [
  ["schema", "JSON schema", 5, "Answers are JSON that matches it.", '{"type": "object", "properties": {"answer": {"type": "string"}}}'],
  ["tools", "Tools", 5, "A list of functions, as in OpenAI's API. You give the results of calls.", '[{"type": "function", "function": {"name": "get_time"}}]'],
  ["extra", "Other fields of the request", 3, "As JSON: any field of the server's chat API.", '{"samplers": ["top_k", "temperature"]}'],
];

// Show the settings. `save(settings, isDefault)` is called with the changed ones.
export function showSettings(settings, defaults, save) {
  const inputs = {};
  const field = (name, label, input, help) => {
    inputs[name] = input;
    input.id = `set-${name}`;
    if (help) input.setAttribute("aria-describedby", `help-${name}`);
    return el("div", { class: "field" }, el("label", { for: input.id, text: label }), input,
      help ? el("small", { id: `help-${name}`, text: help }) : null);
  };
  const area = (name, rows, placeholder) => {
    const box = el("textarea", { rows: String(rows), spellcheck: String(name === "system"), placeholder, dir: "auto" });
    box.value = settings[name] ?? "";
    return box;
  };
  const numeric = (name, step, known) => {
    const value = defaults?.[known];
    const input = el("input", { type: "number", step, placeholder: Number.isFinite(value) ? String(+value.toPrecision(6)) : "" });
    if (Number.isFinite(settings[name])) input.value = String(settings[name]);
    return input;
  };
  const thinking = el("select", {}, ...[["", "As the model does"], ["on", "On"], ["off", "Off"]].map(([value, text]) => el("option", { value, text })));
  thinking.value = settings.thinking ?? "";
  const error = el("p", { class: "error", role: "alert" });
  const form = el("form", { class: "stack" },
    el("h2", { text: "Settings of this conversation" }),
    field("system", "System prompt", area("system", 4, "You are a helpful assistant."), ""),
    el("div", { class: "grid" },
      ...SAMPLING.map(([name, label, step, help, known]) => field(name, label, numeric(name, step, known), help)),
      field("thinking", "Reasoning", thinking, "For models whose template has the switch.")),
    el("details", {}, el("summary", { text: "JSON schema, tools and other fields" }),
      ...TEXTS.map(([name, label, rows, help, placeholder]) => field(name, label, area(name, rows, placeholder), help))),
    error,
    el("label", { class: "check" }, el("input", { type: "checkbox", id: "set-default" }), " Also use them for new conversations"),
    el("div", { class: "row end" },
      el("button", { type: "button", text: "Reset", on: { click: () => Object.values(inputs).forEach((input) => { input.value = ""; }) } }),
      el("button", { type: "button", text: "Cancel", on: { click: () => dialog.close() } }),
      el("button", { class: "main", text: "Save" })));
  if (TEXTS.some(([name]) => settings[name])) form.querySelector("details").open = true;
  const dialog = el("dialog", { id: "settings", "aria-label": "Settings" }, form);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const found = read(inputs);
    try {
      fields(found);
    } catch (fault) {
      error.textContent = fault.message;
      form.querySelector("details").open = true;
      return;
    }
    dialog.close();
    save(found, form.querySelector("#set-default").checked);
    say("Settings saved");
  });
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

function read(inputs) {
  const found = {};
  for (const [name, input] of Object.entries(inputs)) {
    const text = input.value.trim();
    if (text) found[name] = input.type === "number" ? Number(text) : text;
  }
  return found;
}
