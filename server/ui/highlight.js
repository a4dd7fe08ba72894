// Simple highlighting: comments, strings, numbers and keywords of common languages.
//
//     highlight("x = 1  # one", "python") = ["x = ", ["number", "1"], "  ", ["comment", "# one"]]

const MOST = 60_000; // characters; longer code is shown plain

const words = (text) => new Set(text.split(" "));
const C_WORDS = "auto break case char const continue default do double else enum extern false float for goto if inline int long nullptr return short signed sizeof static struct switch true typedef union unsigned void volatile while bool class namespace new private protected public template this throw try catch using virtual override constexpr";
const JS_WORDS = "async await break case catch class const continue default delete do else export extends false finally for from function if import in instanceof interface let new null of return static super switch this throw true try type typeof undefined var void while yield implements enum readonly as";
const STRINGS = String.raw`"(?:[^"\\\n]|\\.)*"?|'(?:[^'\\\n]|\\.)*'?`;
const BLOCK = String.raw`\/\*[^]*?(?:\*\/|$)`;
const SLASHES = String.raw`\/\/[^\n]*`;
const HASH = String.raw`#[^\n]*`;

const like = (comment, string, keywords, ignoreCase = false) => ({ comment, string, keywords: words(keywords), ignoreCase });
const C = like(`${SLASHES}|${BLOCK}`, STRINGS, C_WORDS);
const JS = like(`${SLASHES}|${BLOCK}`, `${STRINGS}|${String.raw`\`(?:[^\`\\]|\\[^])*\`?`}`, JS_WORDS);
const PYTHON = like(HASH, String.raw`"""[^]*?(?:"""|$)|'''[^]*?(?:'''|$)|${STRINGS}`,
  "and as assert async await break case class continue def del elif else except False finally for from global if import in is lambda match None nonlocal not or pass raise return self True try while with yield");
const SHELL = like(String.raw`(?<![^\s;])#[^\n]*`, STRINGS,
  "case cd do done echo elif else esac exit export fi for function if in local read return set source sudo then unset until while");
const GO = like(`${SLASHES}|${BLOCK}`, `${STRINGS}|${String.raw`\`[^\`]*\`?`}`,
  "break case chan const continue default defer else fallthrough false for func go goto if import interface map nil package range return select string struct switch true type var int bool error byte");
const RUST = like(`${SLASHES}|${BLOCK}`, String.raw`"(?:[^"\\]|\\[^])*"?`,
  "as async await break const continue crate dyn else enum extern false fn for if impl in let loop match mod move mut pub ref return self Self static struct super trait true type unsafe use where while u8 u16 u32 u64 usize i8 i16 i32 i64 isize f32 f64 bool str String Vec Option Result");
const JAVA = like(`${SLASHES}|${BLOCK}`, STRINGS,
  "abstract assert boolean break byte case catch char class const continue default do double else enum extends false final finally float for fun if implements import in instanceof int interface internal is let long namespace new null object open override package private protected public return short static string super switch this throw throws true try using val var void when while func guard struct self nil protocol extension");
const SQL = like(String.raw`--[^\n]*|${BLOCK}`, STRINGS,
  "add all alter and as asc begin between by case create cross default delete desc distinct drop else end exists from full group having if in index inner insert into is join key left like limit not null on or order outer primary references right select set table then union unique update values view when where with", true);
const DATA = like(HASH, STRINGS, "true false null yes no on off");
const MARKUP = { comment: String.raw`<!--[^]*?(?:-->|$)`, string: STRINGS, keywords: new Set(), tag: String.raw`<\/?[\w:-]+|\/?>` };
const CSS = like(BLOCK, STRINGS, "important media supports keyframes import from to");

const LANGUAGES = {
  c: C, h: C, cpp: C, "c++": C, cc: C, cuda: C, cu: C, objc: C, glsl: C,
  js: JS, javascript: JS, jsx: JS, ts: JS, typescript: JS, tsx: JS, mjs: JS,
  py: PYTHON, python: PYTHON, python3: PYTHON, sh: SHELL, bash: SHELL, shell: SHELL, zsh: SHELL, console: SHELL, dockerfile: SHELL, makefile: SHELL,
  go: GO, golang: GO, rust: RUST, rs: RUST, java: JAVA, kotlin: JAVA, kt: JAVA, swift: JAVA, cs: JAVA, csharp: JAVA, "c#": JAVA, php: JAVA, scala: JAVA, dart: JAVA,
  sql: SQL, json: DATA, json5: DATA, jsonc: DATA, yaml: DATA, yml: DATA, toml: DATA, ini: DATA, ruby: PYTHON, rb: PYTHON, r: PYTHON, julia: PYTHON,
  html: MARKUP, xml: MARKUP, svg: MARKUP, vue: MARKUP, css: CSS, scss: CSS, less: CSS,
};

const PATTERNS = new Map();

function pattern(language) {
  if (!PATTERNS.has(language)) {
    const { comment, string, tag } = language;
    const parts = [`(${comment})`, `(${string})`, String.raw`(\b(?:0[xX][\da-fA-F_]+|\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d+)?)\b)`, `(${tag ?? String.raw`[A-Za-z_]\w*`})`];
    PATTERNS.set(language, new RegExp(parts.join("|"), "g"));
  }
  return PATTERNS.get(language);
}

// Texts, and pairs of a class and a text.
export function highlight(code, name) {
  const wanted = name.toLowerCase();
  if (wanted === "diff" || wanted === "patch") return diff(code);
  const language = Object.hasOwn(LANGUAGES, wanted) ? LANGUAGES[wanted] : null;
  if (!language || code.length > MOST) return [code];
  const found = [];
  let plain = 0;
  for (const match of code.matchAll(pattern(language))) {
    const [text, comment, string, digits, word] = match;
    const isWord = word !== undefined && (language.tag || language.keywords.has(language.ignoreCase ? word.toLowerCase() : word));
    const kind = comment !== undefined ? "comment" : string !== undefined ? "string" : digits !== undefined ? "number" : isWord ? "keyword" : "";
    if (!kind || !text) continue;
    if (plain < match.index) found.push(code.slice(plain, match.index));
    found.push([kind, text]);
    plain = match.index + text.length;
  }
  if (plain < code.length) found.push(code.slice(plain));
  return found;
}

function diff(code) {
  const kinds = { "+": "added", "-": "removed", "@": "keyword" };
  return code.split(/(?<=\n)/).map((line) => (kinds[line[0]] ? [kinds[line[0]], line] : line));
}
