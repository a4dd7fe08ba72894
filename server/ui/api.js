// Calls the server: paths are relative to the page, and the API key is kept for this tab only.

import { $, el } from "./dom.js";

const BASE = new URL("../", import.meta.url); // the server may have a prefix
const KEY = "lamella-key";

export const address = (path) => new URL(path, BASE).href;

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

function headers(more = {}) {
  const key = sessionStorage.getItem(KEY);
  return key ? { Authorization: `Bearer ${key}`, ...more } : more;
}

async function errorOf(response) {
  let message = `The server answered with status ${response.status}.`;
  try {
    message = (await response.json()).error.message || message;
  } catch { /* not one of the server's errors */ }
  return new ApiError(response.status, message);
}

// The response. Asks for an API key if the server wants one.
export async function call(path, options = {}) {
  for (;;) {
    let response;
    try {
      response = await fetch(new URL(path, BASE), { ...options, headers: headers(options.headers) });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError(0, "The server cannot be reached.");
    }
    if (response.ok) return response;
    if (response.status !== 401) throw await errorOf(response);
    await askForKey(sessionStorage.getItem(KEY) !== null);
  }
}

export const get = async (path, options) => (await call(path, options)).json();

export const post = (path, body, options = {}) =>
  call(path, { method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" }, ...options });

// Yields the data of each event of a stream.
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      if (!part.startsWith("data: ")) continue; // a ping
      const data = part.slice(6);
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new ApiError(event.error.code, event.error.message);
      yield event;
    }
  }
}

let asking = null; // all calls wait for one dialog

function askForKey(wasWrong) {
  asking ??= new Promise((resolve) => {
    const input = el("input", { type: "text", class: "secret", id: "api-key", autocomplete: "off", required: true, spellcheck: "false" });
    const form = el("form", { class: "stack" },
      el("h2", { text: "API key" }),
      el("p", { text: wasWrong ? "The server does not accept this key." : "This server asks for an API key. It is kept until you close this tab." }),
      el("label", { for: "api-key", text: "Key" }), input,
      el("div", { class: "row end" }, el("button", { class: "main", text: "Use this key" })));
    const dialog = el("dialog", { id: "key-dialog", "aria-label": "API key" }, form);
    dialog.addEventListener("cancel", (event) => event.preventDefault());
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      sessionStorage.setItem(KEY, input.value.trim());
      dialog.close();
      dialog.remove();
      const back = document.activeElement; // Chromium writes nothing into it until it gets the focus anew
      back.blur();
      back.focus();
      asking = null;
      resolve();
    });
    document.body.append(dialog);
    dialog.showModal();
  });
  return asking;
}

export function status(text) {
  const place = $("notice");
  place.textContent = text;
  place.hidden = !text;
}
