// Conversations as trees: editing a message or asking again adds a sibling, and `leaf` says which
// path is shown. Pure functions over plain objects; knows no page and no storage.
//
// A conversation: { id, title, created, updated, leaf, settings, messages: { ID: message } }.
// A message: { id, parent, role, content, created } and, depending on its role, `files`,
// `reasoning`, `calls`, `callId`, `isJson`, `model`, `stats`, `finish`, `error`.

export const LIMITS = { messages: 5000, chars: 8_000_000, title: 200, files: 20 };
// settings: numbers are fields of the request
export const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "repeat_penalty", "presence_penalty", "frequency_penalty", "seed", "max_tokens"];
const TEXTS = ["system", "thinking", "schema", "tools", "extra"];
const ROLES = ["user", "assistant", "tool"];
const FORMAT = "lamella-conversations";

// what this tab has changed in a conversation since it was stored: names of fields, and messages that
// were added (true), written or removed (false)
const changes = new WeakMap();

function change(conversation, name, isNew) {
  if (!changes.has(conversation)) changes.set(conversation, new Map());
  const found = changes.get(conversation);
  found.set(name, found.get(name) || isNew);
}

export function touch(conversation, ...names) {
  for (const name of names) change(conversation, name, false);
}

const newId = () => `${Date.now().toString(36)}-${[...crypto.getRandomValues(new Uint8Array(8))].map((n) => n.toString(36)).join("")}`;

export function newConversation(settings = {}) {
  const now = Date.now();
  return { id: newId(), title: "", created: now, updated: now, leaf: null, settings: structuredClone(settings), messages: {} };
}

export function addMessage(conversation, parent, role, fields = {}) {
  const message = { id: newId(), parent, role, content: "", created: Date.now(), ...fields };
  conversation.messages[message.id] = message;
  conversation.leaf = message.id;
  conversation.updated = message.created;
  change(conversation, message.id, true);
  return message;
}

// Take over what another tab has stored since, but for what this tab has changed. A message that the
// other tab has removed is gone, also if this one has written it.
export function merge(conversation, stored) {
  const touched = changes.get(conversation) ?? new Map();
  const { messages } = conversation;
  for (const name of ["title", "settings"]) if (!touched.has(name)) conversation[name] = stored[name];
  const kept = new Set(); // the changed messages, and those that they answer
  for (const [id, isNew] of touched) {
    if (isNew || stored.messages[id]) for (let at = messages[id]; at && !kept.has(at.id); at = messages[at.parent]) kept.add(at.id);
  }
  for (const id of Object.keys(messages)) if (!kept.has(id) && !stored.messages[id]) delete messages[id];
  for (const other of Object.values(stored.messages).sort((a, b) => a.created - b.created)) {
    if (touched.has(other.id)) continue;
    const known = messages[other.id];
    if (known) {
      for (const name of Object.keys(known)) delete known[name];
      Object.assign(known, other);
    } else if (other.parent === null || messages[other.parent]) messages[other.id] = other;
  }
  if (!messages[conversation.leaf]) conversation.leaf = messages[stored.leaf] ? stored.leaf : null;
}

// The changes, which are forgotten.
export function taken(conversation) {
  const found = changes.get(conversation) ?? new Map();
  changes.delete(conversation);
  return found;
}

// Changes that were taken and could not be stored.
export function putBack(conversation, taken) {
  for (const [name, isNew] of taken) change(conversation, name, isNew);
}

// The messages from the first one to a leaf.
export function path(conversation, leaf = conversation.leaf) {
  const found = [];
  for (let at = conversation.messages[leaf]; at; at = conversation.messages[at.parent]) found.push(at);
  return found.reverse();
}

// The messages that answer the same one as this message, in order, itself included.
export function siblings(conversation, message) {
  return Object.values(conversation.messages)
    .filter((other) => other.parent === message.parent)
    .sort((a, b) => a.created - b.created || (a.id < b.id ? -1 : 1));
}

// Show the branch of a message: from it on, the newest message of each.
export function showBranch(conversation, message) {
  const children = new Map();
  for (const each of Object.values(conversation.messages)) {
    const newest = children.get(each.parent);
    if (!newest || each.created >= newest.created) children.set(each.parent, each);
  }
  let at = message;
  while (children.has(at.id)) at = children.get(at.id);
  conversation.leaf = at.id;
}

// Remove a message and all that follow it, in all branches.
export function removeMessage(conversation, message) {
  const gone = new Set([message.id]);
  const inOrder = Object.values(conversation.messages).sort((a, b) => a.created - b.created);
  for (let n = -1; n !== gone.size;) {
    n = gone.size;
    for (const each of inOrder) if (gone.has(each.parent)) gone.add(each.id);
  }
  const others = siblings(conversation, message).filter((other) => other !== message);
  for (const id of gone) delete conversation.messages[id];
  touch(conversation, ...gone);
  if (others.length) showBranch(conversation, others.at(-1));
  else conversation.leaf = message.parent;
}

export function titleOf(text) {
  const line = text.trim().split("\n", 1)[0];
  const characters = Array.from(line.slice(0, 122)); // no half of one
  return characters.length > 60 ? `${characters.slice(0, 59).join("").trimEnd()}…` : line;
}

// What the model gets: the file's texts are part of the user's message.
export function request(conversation, leaf = conversation.leaf) {
  const shown = path(conversation, leaf);
  const lastUser = shown.findLastIndex((message) => message.role === "user");
  const system = conversation.settings.system?.trim();
  const messages = shown.map((message, i) => asMessage(message, i > lastUser)).filter(Boolean);
  return system ? [{ role: "system", content: system }, ...messages] : messages;
}

function asMessage(message, isOfThisTurn) {
  if (message.role === "user") return { role: "user", content: withFiles(message) };
  if (message.role === "tool") return { role: "tool", tool_call_id: message.callId, content: message.content };
  const calls = message.calls ?? [];
  if (!message.content && !calls.length && !message.reasoning) return null; // it failed
  const found = { role: "assistant", content: message.content };
  if (message.reasoning && isOfThisTurn) found.reasoning_content = message.reasoning;
  if (calls.length) found.tool_calls = calls.map(({ id, name, arguments: text }) => ({ id, type: "function", function: { name, arguments: text } }));
  return found;
}

function withFiles({ content, files = [] }) {
  const texts = files.map(({ name, text }) => {
    let fence = "```";
    while (text.includes(fence)) fence += "`";
    return `File ${JSON.stringify(name)}:\n${fence}\n${text}${text.endsWith("\n") ? "" : "\n"}${fence}`;
  });
  return [...texts, content].filter(Boolean).join("\n\n");
}

// --- export and import ---

export function exported(conversations) {
  return JSON.stringify({ format: FORMAT, version: 1, conversations }, null, 1);
}

export function asMarkdown(conversation) {
  const names = { user: "You", assistant: "Model", tool: "Tool" };
  const parts = path(conversation).map((message) => {
    const calls = (message.calls ?? []).map((call) => `\`${call.name}(${call.arguments})\``);
    return [`## ${names[message.role]}`, ...(message.files ?? []).map((file) => `(file: ${file.name})`), message.content, ...calls].filter(Boolean).join("\n\n");
  });
  return [`# ${conversation.title || "Conversation"}`, ...parts].join("\n\n") + "\n";
}

// The conversations of an exported file. Throws an Error that says what is wrong.
export function imported(text) {
  let data;
  try {
    data = JSON.parse(text);
  } catch {
    throw new Error("The file is not JSON.");
  }
  if (data?.format !== FORMAT || data.version !== 1 || !Array.isArray(data.conversations)) {
    throw new Error("The file has no conversations of this page.");
  }
  return data.conversations.map((each, i) => checked(each, `Conversation ${i + 1}`));
}

// A copy with new names, and with the known fields only.
function checked(from, where) {
  const fail = (what) => { throw new Error(`${where}: ${what}.`); };
  const given = from?.messages;
  if (typeof given !== "object" || given === null) fail("it has no messages");
  const list = Object.values(given);
  if (list.length > LIMITS.messages) fail(`it has more than ${LIMITS.messages} messages`);
  const ids = new Map(list.map((message) => [message?.id, newId()]));
  const made = newConversation(settingsFrom(from.settings));
  made.title = text(from.title).slice(0, LIMITS.title);
  made.created = time(from.created);
  made.updated = time(from.updated);
  let n = 0;
  for (const message of list) {
    if (!ROLES.includes(message?.role)) fail(`a message has the role ${JSON.stringify(message?.role)}`);
    const copy = messageFrom(message, ids);
    n += copy.content.length + (copy.reasoning?.length ?? 0) + (copy.files ?? []).reduce((sum, file) => sum + file.text.length, 0);
    if (n > LIMITS.chars) fail(`it has more than ${LIMITS.chars} characters`);
    made.messages[copy.id] = copy;
  }
  for (const message of Object.values(made.messages)) checkRoot(made, message, fail);
  made.leaf = ids.get(from.leaf) ?? null;
  if (made.leaf === null && list.length) showBranch(made, Object.values(made.messages)[0]);
  return made;
}

function checkRoot(conversation, message, fail) {
  let n = 0;
  for (let at = message; at; at = conversation.messages[at.parent]) {
    if (++n > LIMITS.messages) fail("its messages answer each other in a circle");
  }
}

const text = (value) => (typeof value === "string" ? value : "");
const time = (value) => (Number.isFinite(value) && value > 0 ? value : Date.now());

function settingsFrom(given) {
  const found = {};
  for (const [name, value] of Object.entries(given ?? {}).slice(0, 40)) {
    if (TEXTS.includes(name) ? typeof value === "string" : NUMBERS.includes(name) && Number.isFinite(value)) found[name] = value;
  }
  return found;
}

function messageFrom(message, ids) {
  const copy = {
    id: ids.get(message.id), parent: ids.get(message.parent) ?? null, role: message.role,
    content: text(message.content), created: time(message.created),
  };
  for (const name of ["reasoning", "callId", "model", "finish", "error"]) {
    if (typeof message[name] === "string") copy[name] = message[name];
  }
  if (message.isJson === true) copy.isJson = true;
  if (Array.isArray(message.files)) copy.files = message.files.slice(0, LIMITS.files).map((file) => ({ name: text(file?.name), text: text(file?.text) }));
  if (Array.isArray(message.calls)) {
    copy.calls = message.calls.slice(0, 100).map((call) => ({ id: text(call?.id), name: text(call?.name), arguments: text(call?.arguments) }));
  }
  if (typeof message.stats === "object" && message.stats !== null) {
    copy.stats = Object.fromEntries(Object.entries(message.stats).slice(0, 20).filter(([, value]) => Number.isFinite(value)));
  }
  return copy;
}
