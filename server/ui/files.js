// Text files that are part of a question.

import { el, icon, iconButton, bytes, say } from "./dom.js";
import { LIMITS } from "./tree.js";

const MOST = 2_000_000; // bytes of a file

// A text. Throws an Error that says why it is none.
async function read(file) {
  if (file.size > MOST) throw new Error(`${file.name} has ${bytes(file.size)}: at most ${bytes(MOST)}`);
  const raw = await file.arrayBuffer();
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(raw);
    if (!text.includes("\0")) return text;
  } catch { /* not UTF-8 */ }
  throw new Error(`${file.name} is not a text file in UTF-8`);
}

export class Attachments {
  constructor(place, complain) {
    Object.assign(this, { place, complain, files: [] });
  }

  async add(chosen) {
    for (const file of chosen) {
      try {
        if (this.files.length >= LIMITS.files) throw new Error(`A question has at most ${LIMITS.files} files`);
        this.files.push({ name: file.name, text: await read(file) });
        say(`${file.name} attached`);
      } catch (error) {
        this.complain(error.message);
      }
    }
    this.draw();
  }

  take() {
    const { files } = this;
    this.files = [];
    this.draw();
    return files;
  }

  draw() {
    this.place.replaceChildren(...this.files.map((file, i) => el("span", { class: "chip" }, icon("clip"),
      el("span", { text: file.name }), el("span", { class: "dim", text: `${file.text.length.toLocaleString("en")} characters` }),
      iconButton("close", `Remove ${file.name}`, () => {
        this.files.splice(i, 1);
        this.draw();
      }))));
  }
}
