// Keeps conversations in this browser (IndexedDB), or in memory where that is not allowed.

import { merge, putBack, taken } from "./tree.js";

const NAME = "conversations";
const memory = new Map();
let opened = null;

export let isKept = true; // false: conversations are gone when the page is closed

function open() {
  opened ??= new Promise((resolve) => {
    const fail = () => {
      isKept = false;
      resolve(null);
    };
    try {
      const asked = indexedDB.open("lamella", 1);
      asked.onupgradeneeded = () => {
        // titles are read from the index, without the messages
        asked.result.createObjectStore(NAME, { keyPath: "id" }).createIndex("list", ["updated", "title"]);
      };
      asked.onsuccess = () => resolve(asked.result);
      asked.onerror = asked.onblocked = fail;
    } catch {
      fail();
    }
  });
  return opened;
}

async function using(mode, work) {
  const db = await open();
  if (!db) return undefined;
  return new Promise((resolve, reject) => {
    const transaction = db.transaction(NAME, mode);
    let result;
    transaction.oncomplete = () => resolve(result);
    transaction.onerror = transaction.onabort = () => reject(transaction.error ?? new Error("the browser's storage failed"));
    work(transaction.objectStore(NAME), (value) => { result = value; });
  });
}

// { id, title, updated } of each conversation, the newest first
export async function list() {
  const found = [];
  await using("readonly", (store) => {
    store.index("list").openKeyCursor(null, "prev").onsuccess = ({ target: { result: cursor } }) => {
      if (!cursor) return;
      const [updated, title] = cursor.key;
      found.push({ id: cursor.primaryKey, title, updated });
      cursor.continue();
    };
  });
  if (isKept) return found;
  return [...memory.values()].map(({ id, title, updated }) => ({ id, title, updated })).sort((a, b) => b.updated - a.updated);
}

export async function load(id) {
  const found = await using("readonly", (store, done) => {
    store.get(id).onsuccess = ({ target }) => done(target.result);
  });
  return found ?? memory.get(id);
}

export async function all() {
  const found = await using("readonly", (store, done) => {
    store.getAll().onsuccess = ({ target }) => done(target.result);
  });
  return found ?? [...memory.values()];
}

// What another tab has changed meanwhile is kept, and becomes part of `conversation`.
export async function save(conversation) {
  let changes = new Map();
  try {
    await using("readwrite", (store) => {
      store.get(conversation.id).onsuccess = ({ target }) => {
        if (target.result) merge(conversation, target.result);
        store.put(conversation);
        changes = taken(conversation);
      };
    });
  } catch (error) {
    putBack(conversation, changes);
    throw error;
  }
  if (!isKept) memory.set(conversation.id, conversation);
  changed();
}

export async function remove(id) {
  await using("readwrite", (store) => store.delete(id));
  memory.delete(id);
  changed();
}

// --- other tabs ---

const channel = "BroadcastChannel" in window ? new BroadcastChannel("lamella") : null;
const changed = () => channel?.postMessage("changed");

export function onChange(call) {
  if (channel) channel.onmessage = call;
}

// --- small values ---

export function remembered(name, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(`lamella-${name}`)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

export function remember(name, value) {
  try {
    localStorage.setItem(`lamella-${name}`, JSON.stringify(value));
  } catch { /* no storage */ }
}
