// The list of conversations: open, rename, delete, export, import, search.

import { $, el, icon, iconButton, say } from "./dom.js";
import * as store from "./store.js";
import { asMarkdown, exported, imported } from "./tree.js";

const SHOWN = 300;

export class Sidebar {
  // `open(id)`, `renamed(id, title)`, `removed(id)`, `complain(text)`
  constructor(actions) {
    Object.assign(this, { actions, items: [], current: null, isRenaming: false });
    $("search").addEventListener("input", () => this.draw());
    $("import").addEventListener("change", () => this.import());
    $("export-all").addEventListener("click", () => this.exportAll());
    store.onChange(() => this.refresh());
  }

  async refresh() {
    this.items = await store.list();
    this.draw();
  }

  select(id) {
    this.current = id;
    this.draw();
  }

  draw() {
    if (this.isRenaming) return; // the end of that draws
    const words = $("search").value.trim().toLowerCase();
    const shown = this.items.filter((item) => item.title.toLowerCase().includes(words));
    const groups = Map.groupBy ? Map.groupBy(shown.slice(0, SHOWN), ({ updated }) => age(updated)) : new Map([["", shown.slice(0, SHOWN)]]);
    $("conversations").replaceChildren(...[...groups].flatMap(([name, items]) => [
      name ? el("li", { class: "group", text: name }) : "", ...items.map((item) => this.row(item))]));
    $("none").hidden = shown.length > 0;
    $("none").textContent = words ? "No title has this." : "Nothing here yet.";
    $("export-all").disabled = this.items.length === 0;
  }

  row(item) {
    const name = item.title || "New conversation";
    const open = el("button", { type: "button", class: "open", title: name, on: { click: () => this.actions.open(item.id) } },
      el("span", { text: name, dir: "auto" }));
    if (item.id === this.current) open.setAttribute("aria-current", "page");
    const menu = iconButton("more", `Actions for ${name}`, () => this.menu(item, menu), { "aria-haspopup": "menu" });
    return el("li", { data: { id: item.id } }, open, menu);
  }

  menu(item, button) {
    const choose = (call) => () => {
      dialog.close();
      call();
    };
    const entry = (name, label, call) => el("button", { type: "button", on: { click: choose(call) } }, icon(name), label);
    const dialog = el("dialog", { class: "menu", "aria-label": `Actions for ${item.title || "New conversation"}` },
      entry("edit", "Rename", () => this.rename(item)),
      entry("copy", "Copy as Markdown", () => this.copy(item)),
      entry("down", "Export", () => this.export(item)),
      entry("trash", "Delete", () => this.remove(item)));
    dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
    dialog.addEventListener("close", () => {
      dialog.remove();
      button.focus();
    });
    document.body.append(dialog);
    dialog.showModal();
    const box = button.getBoundingClientRect();
    dialog.style.left = `${Math.min(box.left, innerWidth - dialog.offsetWidth - 8)}px`;
    dialog.style.top = `${Math.min(box.bottom, innerHeight - dialog.offsetHeight - 8)}px`;
  }

  rename(item) {
    const row = $("conversations").querySelector(`[data-id="${item.id}"]`);
    if (!row) return;
    const input = el("input", { type: "text", "aria-label": "Title", maxlength: "200", dir: "auto" });
    input.value = item.title;
    let isOver = false;
    const end = async (isKept) => {
      if (isOver) return;
      isOver = true;
      this.isRenaming = false;
      const title = input.value.trim();
      if (isKept && title && title !== item.title) await this.actions.renamed(item.id, title);
      await this.refresh();
      $("conversations").querySelector(`[data-id="${item.id}"] .open`)?.focus();
    };
    input.addEventListener("keydown", (event) => {
      if (event.key === "Enter") end(true);
      if (event.key === "Escape") {
        event.stopPropagation();
        end(false);
      }
    });
    input.addEventListener("blur", () => end(true));
    row.replaceChildren(input);
    this.isRenaming = true;
    input.select();
  }

  async copy(item) {
    const conversation = await store.load(item.id);
    try {
      await navigator.clipboard.writeText(asMarkdown(conversation));
      say("Copied");
    } catch {
      download(asMarkdown(conversation), "conversation.md", "text/markdown");
    }
  }

  async export(item) {
    download(exported([await store.load(item.id)]), fileName(item.title));
  }

  async exportAll() {
    download(exported(await store.all()), fileName("conversations"));
  }

  async import() {
    const input = $("import");
    try {
      let last = null;
      for (const file of input.files) {
        for (const conversation of imported(await file.text())) {
          await store.save(conversation);
          last = conversation;
        }
      }
      await this.refresh();
      if (last) this.actions.open(last.id);
      say("Imported");
    } catch (error) {
      this.actions.complain(`Import failed. ${error.message}`);
    }
    input.value = "";
  }

  remove(item) {
    confirm(`Delete “${item.title || "New conversation"}”?`, "Delete", async () => {
      this.actions.removed(item.id); // first: what it stores later would stay
      await store.remove(item.id);
      await this.refresh();
      say("Deleted");
    });
  }
}

// Ask before something is lost.
export function confirm(question, label, call) {
  const dialog = el("dialog", { class: "ask", "aria-label": question },
    el("p", { text: question }),
    el("div", { class: "row end" },
      el("button", { type: "button", text: "Cancel", on: { click: () => dialog.close() } }),
      el("button", { type: "button", class: "main danger", text: label, on: { click: () => {
        dialog.close();
        call();
      } } })));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

function age(time) {
  const days = (new Date().setHours(0, 0, 0, 0) - new Date(time).setHours(0, 0, 0, 0)) / 86_400_000;
  return days < 1 ? "Today" : days < 2 ? "Yesterday" : days < 7 ? "Last 7 days" : days < 31 ? "Last month" : "Older";
}

const fileName = (title) => `${title.replace(/[^\p{L}\p{N} _-]+/gu, "").trim().slice(0, 60) || "conversation"}.json`;

function download(text, name, type = "application/json") {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const link = el("a", { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
