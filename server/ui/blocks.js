// Markdown into blocks: paragraphs, headings, code, quotes, lists, tables and lines.
//
// Takes linear time for any text: each line is looked at once for each container around it, and
// containers nest `DEPTH` deep at most. Knows no elements.
//
//     blocks("# a\n\nb") = [{ type: "heading", level: 1, text: "a", line: 0 }, { type: "text", ... }]

const DEPTH = 8; // of quotes and lists; deeper ones are plain text
const COLUMNS = 64; // of a table

const FENCE = /^ {0,3}(`{3,}|~{3,})([^\n]*)$/;
const RULE = /^ {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])(?:([ \t]+)|$)/;
const NESTED = /^ {2,}(?:[-*+]|\d{1,9}[.)])[ \t]/;
const QUOTE = /^ {0,3}> ?/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]|$)/;
const UNDERLINE = /^ {0,3}(=+|-+)[ \t]*$/;
const CELL = /^:?-+:?$/;

const isBlank = (line) => line.trim() === "";

function indent(line) {
  let n = 0;
  while (n < line.length && line[n] === " ") n++;
  return n;
}

export function blocks(text) {
  return parse(linesOf(text), 0);
}

// The lines, with spaces for tabs at their begin, but not in code.
function linesOf(text) {
  let fence = "";
  return text.split(/\r\n?|\n/).map((line) => {
    const mark = /^\s*(`{3,}|~{3,})/.exec(line)?.[1] ?? "";
    if (fence && !mark.startsWith(fence)) return line;
    if (mark) fence = fence ? "" : mark;
    const rest = line.trimStart();
    return line.slice(0, line.length - rest.length).replaceAll("\t", "    ") + rest;
  });
}

function parse(lines, depth) {
  const found = [];
  let at = 0;
  while (at < lines.length) {
    if (isBlank(lines[at])) {
      at++;
      continue;
    }
    const [block, next] = parseOne(lines, at, depth);
    block.line = at;
    found.push(block);
    at = next;
  }
  return found;
}

// The block that begins at a line, and the line after it.
function parseOne(lines, at, depth) {
  const line = lines[at];
  const fence = fenceOf(line);
  if (fence) return code(lines, at, fence);
  const heading = HEADING.exec(line);
  if (heading) {
    const text = line.slice(heading[0].length).trim();
    return [{ type: "heading", level: heading[1].length, text: withoutHashes(text) }, at + 1];
  }
  if (RULE.test(line)) return [{ type: "rule" }, at + 1];
  if (depth < DEPTH && QUOTE.test(line)) return quote(lines, at, depth);
  if (depth < DEPTH && ITEM.test(line)) return list(lines, at, depth);
  if (isTable(lines, at)) return table(lines, at);
  return paragraph(lines, at, depth);
}

function fenceOf(line) {
  const match = FENCE.exec(line);
  if (!match || (match[1][0] === "`" && match[2].includes("`"))) return null;
  return { mark: match[1], indent: indent(line), language: match[2].trim().split(/\s/, 1)[0] };
}

function withoutHashes(text) {
  let end = text.length;
  while (end > 0 && text[end - 1] === "#") end--;
  return end === text.length || (end > 0 && text[end - 1] !== " ") ? text : text.slice(0, end).trim();
}

function code(lines, at, { mark, indent: width, language }) {
  const body = [];
  let end = at + 1;
  for (; end < lines.length; end++) {
    const line = lines[end];
    const text = line.trim();
    if (text.length >= mark.length && indent(line) < 4 && isAll(text, mark[0])) break;
    body.push(line.slice(Math.min(indent(line), width)));
  }
  const closed = end < lines.length;
  return [{ type: "code", language, text: body.join("\n"), closed }, end + 1];
}

function isAll(text, char) {
  for (const each of text) if (each !== char) return false;
  return true;
}

// a line that ends a paragraph
function begins(lines, at, depth) {
  const line = lines[at];
  if (fenceOf(line) || HEADING.test(line) || RULE.test(line)) return true;
  if (depth >= DEPTH) return false;
  const item = ITEM.exec(line);
  return QUOTE.test(line) || (item !== null && item[3] !== undefined && (item[2].length === 1 || item[2].startsWith("1")));
}

function paragraph(lines, at, depth) {
  let end = at + 1;
  for (; end < lines.length && !isBlank(lines[end]); end++) {
    const under = UNDERLINE.exec(lines[end]);
    if (under && !ITEM.test(lines[at])) {
      const text = lines.slice(at, end).map((line) => line.trim()).join("\n");
      return [{ type: "heading", level: under[1][0] === "=" ? 1 : 2, text }, end + 1];
    }
    if (begins(lines, end, depth) || isTable(lines, end)) break;
  }
  const text = lines.slice(at, end).map((line) => line.trimStart()).join("\n").trimEnd();
  return [{ type: "text", text }, end];
}

function quote(lines, at, depth) {
  const inner = [];
  let end = at;
  for (; end < lines.length; end++) {
    const line = lines[end];
    if (QUOTE.test(line)) inner.push(line.replace(QUOTE, ""));
    else if (isBlank(line) || isBlank(inner.at(-1)) || begins(lines, end, depth)) break;
    else inner.push(line); // a paragraph goes on without the mark
  }
  return [{ type: "quote", blocks: parse(inner, depth + 1) }, end];
}

function list(lines, at, depth) {
  const first = ITEM.exec(lines[at]);
  const kind = first[2].at(-1);
  const items = [];
  let end = at;
  let loose = false;
  while (end < lines.length) {
    const mark = ITEM.exec(lines[end]);
    if (!mark || mark[2].at(-1) !== kind || RULE.test(lines[end])) break;
    const [inner, next, hasGap] = item(lines, end, mark, depth);
    items.push(task(inner, depth));
    end = next;
    while (next > at && end < lines.length && isBlank(lines[end])) end++;
    loose ||= hasGap || (end > next && end < lines.length && ITEM.test(lines[end]));
  }
  const start = kind === "." || kind === ")" ? parseInt(first[2], 10) : null;
  return [{ type: "list", start, items, loose }, end];
}

// The lines of an item, the line after it, and true if blank lines separate its blocks.
function item(lines, at, mark, depth) {
  const space = mark[3] === undefined || mark[3].length > 4 ? 1 : mark[3].length;
  const width = mark[1].length + mark[2].length + space;
  const inner = [lines[at].slice(width)];
  let end = at + 1;
  let n = 1; // lines up to the last one that is not blank
  let hasGap = false;
  for (; end < lines.length; end++) {
    const line = lines[end];
    if (isBlank(line)) {
      inner.push("");
      continue;
    }
    const isLast = inner.length === n; // no blank line before
    const isInside = indent(line) >= width || (NESTED.test(line) && indent(line) > mark[1].length + 1);
    if (!isInside && (!isLast || begins(lines, end, depth) || ITEM.test(line))) break;
    hasGap ||= !isLast && indent(line) < width + 2 && !NESTED.test(line);
    inner.push(line.slice(Math.min(indent(line), width)));
    n = inner.length;
  }
  return [inner.slice(0, n), at + n, hasGap];
}

// An item, and the mark of a task: "[ ] text" or "[x] text".
function task(inner, depth) {
  const mark = /^\[([ xX])\] /.exec(inner[0]);
  const lines = mark ? [inner[0].slice(4), ...inner.slice(1)] : inner;
  return { done: mark ? mark[1] !== " " : null, blocks: parse(lines, depth + 1) };
}

function isTable(lines, at) {
  if (at + 1 >= lines.length || !lines[at].includes("|")) return false;
  const line = lines[at + 1];
  if (!line.includes("-") || !/^[ |:-]+$/.test(line)) return false;
  const marks = cells(line);
  return marks.every((mark) => CELL.test(mark)) && marks.length === cells(lines[at]).length;
}

function table(lines, at) {
  const align = cells(lines[at + 1]).map((mark) =>
    mark.endsWith(":") ? (mark.startsWith(":") ? "center" : "right") : "left");
  const rows = [];
  let end = at + 2;
  for (; end < lines.length && lines[end].includes("|"); end++) {
    const row = cells(lines[end]).slice(0, align.length);
    while (row.length < align.length) row.push("");
    rows.push(row);
  }
  return [{ type: "table", align, head: cells(lines[at]), rows }, end];
}

// The cells of a row, at most `COLUMNS`; the last one then has the rest.
function cells(line) {
  let text = line.trim();
  if (text.startsWith("|")) text = text.slice(1);
  const found = [];
  let begin = 0;
  for (let i = 0; i < text.length && found.length < COLUMNS; i++) {
    if (text[i] === "\\") i++;
    else if (text[i] === "|") {
      found.push(text.slice(begin, i).trim().replaceAll("\\|", "|"));
      begin = i + 1;
    }
  }
  const last = text.slice(begin).trim();
  if (last !== "" || found.length === 0) found.push(last);
  return found;
}
