// The chat page: one conversation at a time, the list of the others, and what the model answers.

import { about } from "./welcome.js";
import { showAbout } from "./about.js";
import { get, status } from "./api.js";
import { Answer, runningIn } from "./chat.js";
import { $, count, icon, say } from "./dom.js";
import { Attachments } from "./files.js";
import { showSettings } from "./settings.js";
import { confirm, Sidebar } from "./sidebar.js";
import * as store from "./store.js";
import * as tree from "./tree.js";
import { messageView } from "./view.js";

const NEAR = 80; // pixels from the end, within which the page follows an answer

let conversation = null;
let views = new Map(); // of the shown messages, by their ids
let models = [];
let model = null;
let props = null;
let follows = true;
let drawn = null; // the answer that a frame or a timer will draw

const complain = (text) => status(text);
const files = new Attachments($("files"), complain);
const sidebar = new Sidebar({ open: openConversation, renamed, removed, complain });

// --- conversations ---

const freshSettings = () => store.remembered("settings", {});

function newConversation() {
  if (conversation && !conversation.leaf && conversation.title === "") conversation.settings = freshSettings();
  else show(tree.newConversation(freshSettings()));
  closeMenu();
  $("question").focus();
}

async function openConversation(id) {
  closeMenu();
  const found = runningIn(id)?.conversation ?? (await store.load(id));
  if (found) show(found);
}

function show(found) {
  conversation = found;
  if (found.leaf) history.replaceState(null, "", `#${found.id}`);
  else history.replaceState(null, "", location.pathname + location.search);
  sidebar.select(found.id);
  status("");
  draw();
  scrollToEnd(true);
}

async function save(changed = conversation) {
  if (!changed.leaf) return;
  changed.updated = Math.max(changed.updated, changed.messages[changed.leaf].created);
  try {
    await store.save(changed);
  } catch {
    complain("This browser could not store the conversation. Export it if you want to keep it.");
  }
  await sidebar.refresh();
}

async function renamed(id, title) {
  const changed = conversation.id === id ? conversation : runningIn(id)?.conversation ?? (await store.load(id));
  changed.title = title;
  tree.touch(changed, "title");
  await store.save(changed);
  drawTitle();
}

function removed(id) {
  runningIn(id)?.drop();
  if (conversation.id === id) show(tree.newConversation(freshSettings()));
}

// --- asking ---

function send() {
  const text = $("question").value.trim();
  if (runningIn(conversation.id) || (!text && !files.files.length)) return;
  const attached = files.take();
  $("question").value = "";
  grow();
  ask(conversation.leaf, text, attached);
}

function ask(parent, content, attached = []) {
  const question = tree.addMessage(conversation, parent, "user", { content, ...(attached.length ? { files: attached } : {}) });
  if (!conversation.title) {
    conversation.title = tree.titleOf(content || attached[0].name);
    tree.touch(conversation, "title");
  }
  answer(question.id);
}

// Let the model answer a message.
function answer(parent) {
  const isJson = Boolean(conversation.settings.schema?.trim());
  const message = tree.addMessage(conversation, parent, "assistant", { model: model?.id ?? "", ...(isJson ? { isJson } : {}) });
  run(message);
}

async function run(message, isMore = false) {
  const asked = conversation;
  if (runningIn(asked.id)) return;
  follows = true;
  const answering = new Answer(asked, message, {
    model: models.length > 1 ? model?.id : "", isMore, save: () => kept(asked, message),
    changed: () => { if (conversation === asked) drawSoon(message); },
  });
  history.replaceState(null, "", `#${asked.id}`);
  sidebar.select(asked.id);
  draw();
  scrollToEnd(true);
  say("The model is answering");
  await save(asked);
  if (conversation === asked) draw(); // with what other tabs have stored
  await answering.run();
  say(message.error ? "The answer failed" : `The answer is complete${message.stats ? `: ${count(message.stats.predicted, "token")}` : ""}`);
}

// Store a conversation while it changes, unless it was deleted meanwhile, perhaps in another tab. The
// answer to a question that was deleted ends.
async function kept(asked, message) {
  if (!sidebar.items.some(({ id }) => id === asked.id)) return;
  tree.touch(asked, message.id);
  await save(asked);
  if (asked.messages[message.id]) return;
  runningIn(asked.id)?.drop();
  if (conversation === asked) draw();
}

const actions = {
  hasSeveralModels: () => models.length > 1,
  again: (message) => { if (!runningIn(conversation.id)) answer(message.parent); },
  more: (message) => run(message, true),
  edit: (message, text) => { if (!runningIn(conversation.id)) ask(message.parent, text, message.files); },
  branch(message) {
    if (runningIn(conversation.id)) return;
    tree.showBranch(conversation, message);
    draw();
    save();
    views.get(message.id)?.element.querySelector(".branches button:not(:disabled)")?.focus();
  },
  remove(message) {
    if (runningIn(conversation.id)) return;
    confirm("Delete this message and all that follow it?", "Delete", async () => {
      tree.removeMessage(conversation, message);
      draw();
      if (conversation.leaf) await save();
      else {
        await store.remove(conversation.id);
        newConversation();
        await sidebar.refresh();
      }
    });
  },
  results(message, texts) {
    let parent = message.id;
    message.calls.forEach((call, i) => {
      parent = tree.addMessage(conversation, parent, "tool", { callId: call.id, content: texts[i] ?? "" }).id;
    });
    answer(parent);
  },
};

// --- drawing ---

function draw() {
  const shown = tree.path(conversation);
  const before = views;
  views = new Map();
  for (const message of shown) {
    const known = before.get(message.id);
    const view = known?.message === message ? known : messageView(conversation, message, actions);
    if (known === view) view.update();
    views.set(message.id, view);
  }
  $("messages").replaceChildren(...[...views.values()].map(({ element }) => element));
  $("welcome").hidden = shown.length > 0;
  if (!shown.length) $("welcome").replaceChildren(...about(model, (text) => {
    $("question").value = text;
    send();
  }));
  drawTitle();
  drawState();
}

function drawTitle() {
  const title = conversation.title || "New conversation";
  $("title").textContent = title;
  document.title = conversation.title ? `${title} - Lamella` : "Lamella";
}

function drawState() {
  const answering = runningIn(conversation.id);
  $("messages").setAttribute("aria-busy", String(Boolean(answering)));
  const button = $("send");
  const label = answering ? "Stop" : "Send";
  if (button.title !== label) {
    button.replaceChildren(icon(answering ? "stop" : "send"));
    button.title = label;
    button.setAttribute("aria-label", label);
  }
  button.disabled = !answering && !$("question").value.trim() && !files.files.length;
  const last = tree.path(conversation).findLast((message) => message.stats?.predicted !== undefined);
  const used = last ? last.stats.prompt + last.stats.cached + last.stats.predicted : 0;
  const size = model?.meta?.n_ctx;
  $("context").textContent = used && size ? `${used.toLocaleString("en")} of ${size.toLocaleString("en")} tokens` : "";
}

// Draw an answer at the next frame, or later if drawing takes long.
function drawSoon(message) {
  const isWaiting = drawn !== null;
  drawn = message; // the one that is shown now
  if (isWaiting) return;
  const now = () => {
    const view = views.get(drawn.id);
    drawn = null;
    if (!runningIn(conversation.id)) drawState();
    if (!view) return; // it was deleted
    const begin = performance.now();
    view.update();
    if (follows) scrollToEnd(); // which lays the page out
    view.cost = performance.now() - begin;
  };
  const wait = Math.min(4 * (views.get(message.id)?.cost ?? 0), 1000);
  if (document.hidden || wait > 16) setTimeout(now, wait);
  else requestAnimationFrame(now);
}

function scrollToEnd(isForced = false) {
  const place = $("scroller");
  if (isForced) follows = true;
  place.scrollTop = place.scrollHeight;
}

function grow() {
  const box = $("question");
  box.style.height = "auto";
  box.style.height = `${Math.min(box.scrollHeight, innerHeight * 0.4)}px`;
  drawState();
}

// --- the frame of the page ---

function closeMenu() {
  document.body.classList.remove("menu-open");
  $("menu").setAttribute("aria-expanded", "false");
}

function openMenu() {
  document.body.classList.add("menu-open");
  $("menu").setAttribute("aria-expanded", "true");
  $("new").focus();
}

function nextTheme() {
  const themes = ["", "light", "dark"];
  const next = themes[(themes.indexOf(window.lamellaTheme.get()) + 1) % themes.length];
  window.lamellaTheme.set(next);
  say(`Theme: ${next || "as the system"}`);
  drawTheme();
}

function drawTheme() {
  const label = `Theme: ${window.lamellaTheme.get() || "as the system"}`;
  $("theme").title = label;
  $("theme").setAttribute("aria-label", label);
}

function settings() {
  const defaults = props?.default_generation_settings?.params;
  showSettings(conversation.settings, defaults, (found, isDefault) => {
    conversation.settings = found;
    tree.touch(conversation, "settings");
    if (isDefault) store.remember("settings", found);
    save();
  });
}

function chooseModel(id) {
  model = models.find((each) => each.id === id) ?? models[0] ?? null;
  if (model) store.remember("model", model.id);
  props = null;
  const isLoaded = (model?.status?.value ?? "loaded") === "loaded"; // to ask for the properties would load it
  if (isLoaded) {
    get(models.length > 1 ? `props?model=${encodeURIComponent(model.id)}` : "props").then((found) => { props = found; }, () => {});
  }
  draw();
}

async function loadModels() {
  models = (await get("v1/models")).data ?? [];
  const select = $("models");
  select.replaceChildren(...models.map(({ id }) => new Option(id, id)));
  select.hidden = models.length < 2;
  $("model").hidden = models.length >= 2;
  const wanted = store.remembered("model", "");
  const id = (models.find((each) => each.id === wanted) ?? models[0])?.id ?? "";
  select.value = id;
  $("model-name").textContent = id;
  chooseModel(id);
}

function onKey(event) {
  if (document.querySelector("dialog[open]")) return;
  const typing = /^(TEXTAREA|INPUT|SELECT)$/.test(event.target.tagName);
  const isPlain = !event.ctrlKey && !event.metaKey && !event.altKey;
  if (event.key === "Escape" && document.body.classList.contains("menu-open")) {
    closeMenu();
    $("menu").focus();
  } else if (event.key === "Escape") runningIn(conversation.id)?.stop();
  else if (event.key === "/" && isPlain && !typing) $("question").focus();
  else if (event.key.toLowerCase() === "o" && event.shiftKey && (event.ctrlKey || event.metaKey)) newConversation();
  else return;
  event.preventDefault();
}

function listen() {
  const question = $("question");
  question.addEventListener("input", grow);
  question.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  });
  question.addEventListener("paste", (event) => {
    const pasted = [...event.clipboardData.files];
    if (!pasted.length) return;
    event.preventDefault();
    files.add(pasted).then(drawState);
  });
  $("send").addEventListener("click", () => {
    const answering = runningIn(conversation.id);
    if (answering) answering.stop();
    else send();
  });
  $("attach").addEventListener("click", () => $("file").click());
  $("file").addEventListener("change", async () => {
    await files.add($("file").files);
    $("file").value = "";
    drawState();
  });
  addEventListener("dragover", (event) => event.preventDefault());
  addEventListener("drop", (event) => {
    event.preventDefault();
    files.add([...event.dataTransfer.files]).then(drawState);
  });
  $("new").addEventListener("click", newConversation);
  $("menu").addEventListener("click", () => (document.body.classList.contains("menu-open") ? closeMenu() : openMenu()));
  $("shade").addEventListener("click", closeMenu);
  $("theme").addEventListener("click", nextTheme);
  $("settings-button").addEventListener("click", settings);
  $("models").addEventListener("change", () => chooseModel($("models").value));
  for (const id of ["model", "about-button"]) $(id).addEventListener("click", () => { if (model) showAbout(model, props, models.length > 1); });
  $("scroller").addEventListener("scroll", () => {
    const place = $("scroller");
    follows = place.scrollHeight - place.scrollTop - place.clientHeight < NEAR;
    $("to-end").hidden = follows;
  }, { passive: true });
  $("to-end").addEventListener("click", () => scrollToEnd(true));
  document.addEventListener("keydown", onKey);
  addEventListener("hashchange", () => openConversation(location.hash.slice(1)));
  for (const place of document.querySelectorAll("[data-icon]")) place.prepend(icon(place.dataset.icon));
}

async function start() {
  listen();
  drawTheme();
  await sidebar.refresh();
  const asked = location.hash ? await store.load(location.hash.slice(1)) : null;
  show(asked ?? tree.newConversation(freshSettings()));
  $("question").focus();
  if (!store.isKept) complain("This browser stores nothing for this page: conversations end with it.");
  for (;;) {
    try {
      await loadModels();
      return;
    } catch (error) {
      complain(error.message);
      await new Promise((resolve) => setTimeout(resolve, 2000));
    }
  }
}

start();
