// Draws messages: what was asked, and answers with their reasoning, calls and numbers.

import { runningIn } from "./chat.js";
import { copyText, count, el, icon, iconButton, number } from "./dom.js";
import { codeBlock, Markdown } from "./markdown.js";
import { siblings } from "./tree.js";

const LONG = 100_000; // characters of a question or a file that are shown

// `actions`: again, more, edit, remove, branch, results: functions of a message; hasSeveralModels
export function messageView(conversation, message, actions) {
  const Kind = { user: Question, assistant: AnswerView, tool: ToolResult }[message.role];
  return new Kind(conversation, message, actions);
}

class View {
  constructor(conversation, message, actions, label) {
    Object.assign(this, { conversation, message, actions });
    this.body = el("div", { class: "body" });
    this.foot = el("footer");
    this.element = el("article", { class: `message ${message.role}`, "aria-label": label, data: { id: message.id } }, this.body, this.foot);
  }

  // buttons for the branches of the message, if there are several
  branches() {
    const all = siblings(this.conversation, this.message);
    if (all.length < 2) return null;
    const at = all.indexOf(this.message);
    const go = (to) => () => this.actions.branch(all[to]);
    return el("span", { class: "branches", role: "group", "aria-label": "Versions" },
      iconButton("left", "Previous version", go(at - 1), { disabled: at === 0 }),
      el("span", { text: `${at + 1} / ${all.length}` }),
      iconButton("right", "Next version", go(at + 1), { disabled: at === all.length - 1 }));
  }

  copyButton(text) {
    const button = iconButton("copy", "Copy the text", () => copyText(text(), button));
    return button;
  }

  // Let the user change the text.
  edit(label, save) {
    const box = el("textarea", { "aria-label": label, rows: "3", dir: "auto" });
    box.value = this.message.content;
    const done = () => this.update();
    const send = () => {
      const text = box.value.trim();
      done();
      if (text) save(text);
    };
    box.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.stopPropagation();
        done();
        this.element.querySelector(".edit")?.focus();
      }
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) send();
    });
    this.body.replaceChildren(el("div", { class: "editing" }, box,
      el("div", { class: "row end" },
        el("button", { type: "button", text: "Cancel", on: { click: done } }),
        el("button", { type: "button", class: "main", text: label, on: { click: send } }))));
    this.foot.replaceChildren();
    box.focus();
  }
}

class Question extends View {
  constructor(conversation, message, actions) {
    super(conversation, message, actions, "You");
    this.update();
  }

  update() {
    const { message } = this;
    const files = (message.files ?? []).map((file) => el("details", { class: "file" },
      el("summary", {}, icon("clip"), ` ${file.name}`), el("pre", { tabindex: "0", text: file.text.slice(0, LONG) })));
    this.body.replaceChildren(...files, el("div", { class: "text", dir: "auto", text: message.content.slice(0, LONG) }));
    const editButton = iconButton("edit", "Edit and ask again", () => this.edit("Ask", (text) => this.actions.edit(message, text)));
    editButton.classList.add("edit");
    this.foot.replaceChildren(...[this.branches(), editButton, this.copyButton(() => message.content),
      iconButton("trash", "Delete from here on", () => this.actions.remove(message))].filter(Boolean));
  }
}

class ToolResult extends View {
  constructor(conversation, message, actions) {
    super(conversation, message, actions, "Result of a tool");
    this.update();
  }

  update() {
    const call = (this.conversation.messages[this.message.parent]?.calls ?? []).find(({ id }) => id === this.message.callId);
    this.body.replaceChildren(el("details", { class: "fold", open: this.message.content.length < 300 },
      el("summary", { text: `Result${call ? ` of ${call.name}` : ""}` }),
      el("pre", { class: "plain", tabindex: "0", text: this.message.content.slice(0, LONG) })));
    const branches = this.branches();
    this.foot.replaceChildren(...(branches ? [branches] : []));
  }
}

class AnswerView extends View {
  constructor(conversation, message, actions) {
    super(conversation, message, actions, "Answer");
    this.reasoningText = el("div", { class: "markdown" });
    this.reasoningTitle = el("span");
    this.skip = el("button", { type: "button", class: "small", text: "Answer now", on: { click: () => this.running()?.skipReasoning() } });
    this.reasoning = el("details", { class: "fold reasoning", hidden: true },
      el("summary", {}, this.reasoningTitle), this.reasoningText);
    this.text = el("div", { class: "markdown" });
    this.calls = el("div", { class: "calls" });
    this.state = el("div", { class: "state" });
    this.body.append(this.reasoning, this.text, this.calls, this.state);
    this.reasoningView = new Markdown(this.reasoningText);
    this.textView = new Markdown(this.text);
    this.cost = 0; // ms that the last drawing took, with the layout of the page
    this.update();
  }

  running() {
    const answer = runningIn(this.conversation.id);
    return answer?.message === this.message ? answer : undefined;
  }

  update() {
    const answer = this.running();
    if (!this.body.contains(this.text)) this.body.replaceChildren(this.reasoning, this.text, this.calls, this.state);
    this.element.classList.toggle("busy", Boolean(answer));
    this.drawReasoning(answer);
    if (this.message.isJson) this.text.replaceChildren(...(this.message.content ? [codeBlock(pretty(this.message.content), "json")] : []));
    else this.textView.update(this.message.content, !answer);
    this.drawCalls(answer);
    this.drawState(answer);
    this.drawFoot(answer);
  }

  drawReasoning(answer) {
    const { reasoning, stats } = this.message;
    this.reasoning.hidden = !reasoning;
    if (!reasoning) return;
    const isThinking = Boolean(answer?.isThinking);
    const n = stats?.reasoning ? ` · ${count(stats.reasoning, "token")}` : "";
    this.reasoningTitle.textContent = isThinking ? "Reasoning…" : `Reasoning${n}`;
    if (this.reasoning.open || !isThinking) this.reasoningView.update(reasoning, !isThinking);
    this.reasoning.ontoggle = () => this.reasoningView.update(this.message.reasoning, !this.running());
  }

  drawCalls(answer) {
    const calls = this.message.calls ?? [];
    const key = `${calls.length} ${calls.at(-1)?.arguments.length} ${Boolean(answer)} ${this.conversation.leaf}`;
    if (this.drawnCalls === key) return;
    this.drawnCalls = key;
    const isOpen = calls.length > 0 && !answer && this.conversation.leaf === this.message.id;
    const boxes = calls.map((call, i) => el("div", { class: "call" },
      el("div", { class: "name" }, icon("next"), el("b", { text: call.name }), " wants to be called with"),
      codeBlock(pretty(call.arguments), "json"),
      isOpen ? el("label", {}, `Result of ${call.name}`, el("textarea", { rows: "2", "data-call": String(i), dir: "auto" })) : null));
    const send = () => this.actions.results(this.message, [...this.calls.querySelectorAll("textarea")].map((box) => box.value));
    this.calls.replaceChildren(...boxes, ...(isOpen ? [el("button", { type: "button", class: "main", text: "Send the results", on: { click: send } })] : []));
  }

  drawState(answer) {
    const { message } = this;
    const shown = [];
    if (answer && !answer.first) {
      const { progress } = answer;
      const isKnown = progress && progress.total > 0;
      shown.push(el("span", { class: "dots", "aria-hidden": "true" }),
        el("span", { text: isKnown ? `Reading ${count(progress.total, "token")}, ${Math.round((100 * progress.done) / progress.total)}%` : "Waiting" }));
    } else if (answer?.isThinking) shown.push(this.skip);
    if (message.error) shown.push(el("p", { class: "error", role: "alert", text: message.error }));
    const ends = { length: "Cut off: the limit of tokens, or of the context, was reached.", stopped: "Stopped.", lost: "The connection ended before the answer did." };
    if (!answer && !message.error && (ends[message.finish] || !message.finish)) {
      shown.push(el("span", { class: "dim", text: ends[message.finish] ?? "Interrupted." }));
    }
    this.state.replaceChildren(...shown);
  }

  drawFoot(answer) {
    if (answer) {
      this.foot.replaceChildren();
      return;
    }
    const { message } = this;
    const canGoOn = ["length", "stopped", "lost"].includes(message.finish) && message.content && !message.calls?.length && !message.isJson;
    this.foot.replaceChildren(...[
      this.branches(),
      this.copyButton(() => message.content),
      iconButton("again", "Ask again", () => this.actions.again(message)),
      canGoOn ? el("button", { type: "button", class: "small", text: "Continue", on: { click: () => this.actions.more(message) } }) : null,
      el("span", { class: "stats" }, ...statTexts(message, this.actions.hasSeveralModels())),
    ].filter(Boolean));
  }
}

function statTexts({ stats, model }, isNamed) {
  const texts = [];
  if (model && isNamed) texts.push(["model", model, "the model that answered"]);
  if (stats?.predicted !== undefined) {
    texts.push(["", count(stats.predicted, "token"), "tokens of the answer"]);
    if (stats.speed) texts.push(["", `${number(stats.speed)} tokens/s`, "speed of the answer"]);
    const cached = stats.cached ? ` (${stats.cached.toLocaleString("en")} cached)` : "";
    texts.push(["", `prompt ${(stats.prompt + stats.cached).toLocaleString("en")}${cached}`, "tokens of the prompt"]);
    texts.push(["", `first token after ${number(stats.first / 1000)} s`, "time to the first token"]);
  }
  return texts.map(([name, text, title]) => el("span", { class: name, title, text }));
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text; // not complete yet
  }
}
