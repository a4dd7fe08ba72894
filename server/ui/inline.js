// The text of a block into parts: strong, emphasis, code, links.
//
// Takes linear time: delimiters are on a stack, each is pushed and popped once, a look back is
// bounded, and a search that failed is not repeated. Knows no elements.
//
//     inline("a *b*") = ["a ", { type: "em", parts: ["b"], depth: 1 }]

const DEPTH = 12; // of parts inside each other; deeper marks stay in the text
const BACK = 8; // openers that are compared with a closer
const URL_CHARS = 2048;
const PARENTHESES = 8; // inside each other, in an address
const NAMED = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0" };
const SCHEMES = ["http:", "https:", "mailto:"];
const WORD = /[\p{L}\p{N}]/u;
const PUNCTUATION = /[!-/:-@[-`{-~]/;

// The address of a link, or null if it is not one of a web page or a mailbox.
export function safeUrl(text) {
  try {
    const url = new URL(text);
    return SCHEMES.includes(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

export function inline(text) {
  return new Inline(text).parse();
}

class Inline {
  constructor(text) {
    this.text = text;
    this.out = []; // parts, and openers as objects with a `mark`
    this.open = []; // indexes in `out` of openers that may still be closed
    this.brackets = []; // the same of [
    this.plain = 0; // the begin of the text that is not in `out` yet
    this.at = 0;
    this.ticks = null; // positions of runs of backticks, by their length
    this.missing = new Set(); // ends that are not in the rest of the text
  }

  parse() {
    const { text } = this;
    while (this.at < text.length) {
      const step = STEPS[text[this.at]];
      if (!step || !step.call(this)) this.at++;
    }
    this.flush();
    return merged(this.out);
  }

  // Move the text before `at` to the parts, and go on `n` characters later.
  flush(n = 0) {
    if (this.plain < this.at) this.out.push(this.text.slice(this.plain, this.at));
    this.at += n;
    this.plain = this.at;
  }

  add(part, n) {
    this.flush(n);
    this.out.push(part);
    return true;
  }

  escape() {
    const next = this.text[this.at + 1];
    if (next === "(" || next === "[") return this.math(`\\${next}`, next === "(" ? "\\)" : "\\]");
    if (next === "\n") return this.add({ type: "br" }, 2);
    if (next === undefined || !PUNCTUATION.test(next)) return false;
    this.flush(1);
    this.at++; // the character itself is plain text
    return true;
  }

  math(begin, end) {
    const close = this.find(end, this.at + begin.length);
    if (close < 0) return false;
    const text = this.text.slice(this.at, close + end.length);
    return this.add({ type: "math", text }, text.length);
  }

  dollar() {
    return this.text[this.at + 1] === "$" && this.math("$$", "$$");
  }

  find(what, from) {
    if (this.missing.has(what)) return -1;
    const found = this.text.indexOf(what, from);
    if (found < 0) this.missing.add(what);
    return found;
  }

  code() {
    const n = run(this.text, this.at);
    this.ticks ??= tickRuns(this.text);
    const places = this.ticks.get(n);
    while (places.length && places.at(-1) <= this.at) places.pop(); // the places descend
    if (!places.length) {
      this.at += n;
      return true;
    }
    const close = places.at(-1);
    let text = this.text.slice(this.at + n, close).replaceAll("\n", " ");
    if (text.length > 2 && text.startsWith(" ") && text.endsWith(" ") && text.trim()) text = text.slice(1, -1);
    return this.add({ type: "code", text }, close + n - this.at);
  }

  delimiter() {
    const char = this.text[this.at];
    const n = run(this.text, this.at);
    const before = this.text[this.at - 1] ?? " ", after = this.text[this.at + n] ?? " ";
    let opens = /\S/.test(after), closes = /\S/.test(before);
    if (char === "_") {
      opens &&= !WORD.test(before);
      closes &&= !WORD.test(after);
    }
    if (char === "~" && n !== 2) opens = closes = false;
    this.flush(n);
    let left = n;
    if (closes) left = this.close(char, left, opens);
    if (left > 0 && opens) this.opener({ mark: char, n: left }, this.open);
    else if (left > 0) this.out.push(char.repeat(left));
    return true;
  }

  opener(part, stack) {
    stack.push(this.out.length);
    this.out.push(part);
  }

  // Close openers with `left` characters of a run. Return how many are left.
  close(char, left, opens) {
    while (left > 0) {
      const place = this.opening(char, left, opens);
      if (place < 0) break;
      const index = this.open[place];
      const opener = this.out[index];
      const parts = this.out.slice(index + 1);
      const depth = 1 + deepest(parts);
      if (depth > DEPTH) {
        this.open.length = 0; // so that these parts are not looked at again
        break;
      }
      this.open.length = place; // those in between stay in the text
      const used = opener.n >= 2 && left >= 2 ? 2 : 1;
      this.out.length = index;
      opener.n -= used;
      if (opener.n > 0) this.opener(opener, this.open);
      const type = char === "~" ? "del" : used === 2 ? "strong" : "em";
      this.out.push({ type, parts: merged(parts), depth });
      left -= used;
    }
    return left;
  }

  // The place of the opener for a closer, -1 if there is none near enough: one of the same length,
  // else the last, unless the closer could be an opener too.
  opening(char, n, opens) {
    let found = -1;
    const lowest = this.brackets.length ? this.brackets.at(-1) : -1;
    for (let i = this.open.length - 1; i >= Math.max(0, this.open.length - BACK); i--) {
      if (this.open[i] < lowest) break;
      const opener = this.out[this.open[i]];
      if (opener.mark !== char) continue;
      if (opener.n === n) return i;
      if (found < 0 && !opens) found = i;
    }
    return found;
  }

  bracket() {
    this.flush(1);
    this.opener({ mark: "[", n: 1 }, this.brackets);
    return true;
  }

  image() {
    if (this.text[this.at + 1] !== "[") return false;
    this.flush(2);
    this.opener({ mark: "![", n: 1 }, this.brackets);
    return true;
  }

  link() {
    if (!this.brackets.length) return false;
    this.flush(1);
    const index = this.brackets.pop();
    const target = this.target();
    if (target === null) {
      this.out.push("]");
      return true;
    }
    const url = safeUrl(target);
    const isImage = this.out[index].mark === "![";
    const parts = this.out.slice(index + 1);
    const depth = 1 + (isImage ? 0 : deepest(parts));
    if (!isImage) this.brackets.length = 0; // links have no links inside
    if (url === null || depth > DEPTH) {
      this.brackets.length = 0; // so that these parts are not looked at again
      this.out.push(`](${target})`);
      return true;
    }
    this.out.length = index;
    while (this.open.length && this.open.at(-1) >= index) this.open.pop();
    const shown = isImage ? [plainText(parts) || url] : merged(parts);
    this.out.push({ type: "link", url, parts: shown.length ? shown : [url], depth });
    return true;
  }

  // The address in (...) after a bracket; null if there is none.
  target() {
    if (this.text[this.at] !== "(" || this.find(")", this.at) < 0) return null;
    const end = Math.min(this.text.length, this.at + URL_CHARS);
    let depth = 0;
    for (let i = this.at; i < end; i++) {
      const char = this.text[i];
      if (char === "\n") return null;
      if (char === "\\") i++;
      else if (char === "(" && ++depth > PARENTHESES) return null;
      else if (char === ")" && --depth === 0) {
        const inner = this.text.slice(this.at + 1, i).trim();
        this.at = this.plain = i + 1;
        const address = /^<([^<>]*)>/.exec(inner);
        return address ? address[1] : inner.split(/\s/, 1)[0];
      }
    }
    return null;
  }

  angle() {
    const part = this.text.slice(this.at, this.at + URL_CHARS);
    const lineBreak = /^<br ?\/?>/i.exec(part);
    if (lineBreak) return this.add({ type: "br" }, lineBreak[0].length);
    const address = /^<((?:https?:\/\/|mailto:)[^\s<>]+)>/i.exec(part.slice(0, part.indexOf(">") + 1));
    const url = address && safeUrl(address[1]);
    return url ? this.add({ type: "link", url, parts: [address[1]], depth: 1 }, address[0].length) : false;
  }

  bare() {
    const { text, at } = this;
    if (!/^https?:\/\//.test(text.slice(at, at + 8)) || (at > 0 && WORD.test(text[at - 1]))) return false;
    if (this.brackets.length) return false; // links have no links inside
    let found = /^[^\s<>"`|]+/.exec(text.slice(at, at + URL_CHARS))[0];
    let open = 0; // parentheses that nothing closes
    for (const char of found) open += char === "(" ? 1 : char === ")" ? -1 : 0;
    let end = found.length;
    for (; end > 0 && /[.,;:!?'"*_~)\]}]/.test(found[end - 1]); end--) {
      if (found[end - 1] === ")" && open++ >= 0) break;
    }
    found = found.slice(0, end);
    const url = safeUrl(found);
    return this.add(url ? { type: "link", url, parts: [found], depth: 1 } : found, found.length);
  }

  entity() {
    const match = /^&(?:#(\d{1,6})|([a-z]{2,5}));/.exec(this.text.slice(this.at, this.at + 10));
    if (!match) return false;
    const char = match[2] ? NAMED[match[2]] : match[1] >= 32 && match[1] < 0xd800 ? String.fromCharCode(match[1]) : undefined;
    return char === undefined ? false : this.add(char, match[0].length);
  }

  newline() {
    let end = this.at;
    while (end > this.plain && this.text[end - 1] === " ") end--;
    if (this.plain < end) this.out.push(this.text.slice(this.plain, end));
    this.plain = this.at;
    this.out.push({ type: "br" });
    this.at++;
    this.plain = this.at;
    return true;
  }
}

const STEPS = {
  "\\": Inline.prototype.escape, "`": Inline.prototype.code, "*": Inline.prototype.delimiter,
  _: Inline.prototype.delimiter, "~": Inline.prototype.delimiter, "[": Inline.prototype.bracket,
  "!": Inline.prototype.image, "]": Inline.prototype.link, "<": Inline.prototype.angle,
  h: Inline.prototype.bare, "&": Inline.prototype.entity, "\n": Inline.prototype.newline,
  $: Inline.prototype.dollar,
};

function run(text, at) {
  let end = at + 1;
  while (text[end] === text[at]) end++;
  return end - at;
}

function tickRuns(text) {
  const found = new Map();
  for (const match of text.matchAll(/`+/g)) {
    if (!found.has(match[0].length)) found.set(match[0].length, []);
    found.get(match[0].length).push(match.index);
  }
  for (const places of found.values()) places.reverse();
  return found;
}

// Parts without openers that nothing closed: their marks are text.
function merged(parts) {
  const found = [];
  for (const part of parts) {
    const text = typeof part === "string" ? part : part.mark ? part.mark.repeat(part.n) : null;
    if (text === null) found.push(part);
    else if (typeof found.at(-1) === "string") found[found.length - 1] += text;
    else if (text) found.push(text);
  }
  return found;
}

function deepest(parts) {
  let depth = 0;
  for (const part of parts) depth = Math.max(depth, part.depth ?? 0);
  return depth;
}

function plainText(parts) {
  return merged(parts).map((part) => (typeof part === "string" ? part : part.text ?? plainText(part.parts ?? []))).join("");
}
