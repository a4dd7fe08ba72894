// What the server does now: asks once a second, and draws the steps of the last seconds.

import { deviceBox } from "./about.js";
import { address, get, status as notice } from "./api.js";
import { $, count, el, number } from "./dom.js";

const POLL_MS = 1000;
const SECONDS = 20; // of the timeline
const DELAY = 1.2; // seconds: so far behind, all steps are known
const MOST_JOBS = 32;
const MODEL = new URLSearchParams(location.search).get("model"); // of several

let steps = []; // [number, begin, seconds, n_decoded, n_prompt, n_running, is_new_graph]
let last = null; // the last status
let rates = null; // tokens per second between the last two
let offset = 0; // of this page's clock to the server's, in seconds
let isPaused = false;

const next = () => (steps.length ? steps.at(-1)[0] + 1 : 0);

async function poll() {
  const found = await get(`status.json?since=${next()}${MODEL ? `&model=${encodeURIComponent(MODEL)}` : ""}`);
  const isSame = last && found.totals.steps >= last.totals.steps && found.uptime >= last.uptime;
  if (!isSame) steps = []; // the server was started again
  if (isSame) {
    const seconds = Math.max(found.now - last.now, 0.001);
    rates = {
      output: (found.totals.output_tokens - last.totals.output_tokens) / seconds,
      prompt: (found.totals.prompt_tokens - last.totals.prompt_tokens) / seconds,
    };
  }
  steps.push(...found.steps);
  steps = steps.filter((step) => step[1] + step[2] > found.now - SECONDS - 2 * DELAY);
  last = found;
  offset = found.now - performance.now() / 1000;
  draw(found);
}

// --- numbers ---

function draw(found) {
  const { model, requests, totals, kv } = found;
  const isOk = found.state === "ok";
  const state = $("state");
  if (state.textContent !== (isOk ? "ready" : found.state)) state.textContent = isOk ? "ready" : found.state;
  state.className = isOk ? "ok" : "bad";
  $("facts").textContent = `${model.name} · Lamella ${found.version} · up ${duration(found.uptime)}`;
  const pages = kv.reduce((sum, pool) => sum + pool.pages, 0), free = kv.reduce((sum, pool) => sum + pool.free, 0);
  const prompts = totals.prompt_tokens + totals.cached_tokens;
  $("tiles").replaceChildren(...[
    ["running", `${requests.running} / ${requests.places}`],
    ["waiting", requests.waiting.toLocaleString("en")],
    model.kind === "text" ? ["output tokens/s", rates ? number(rates.output) : "–"] : null,
    ["prompt tokens/s", rates ? number(rates.prompt) : "–"],
    pages ? ["KV pool in use", percent(pages - free, pages)] : null,
    model.kind === "text" ? ["of prompts cached", percent(totals.cached_tokens, prompts)] : null,
  ].filter(Boolean).map(([name, value]) => el("div", { class: "tile" }, el("b", { text: value }), el("span", { text: name }))));
  drawJobs(requests);
  $("pools").replaceChildren(...(kv.length ? kv.map(poolRow) : [el("p", { class: "dim", text: "This model has none." })]));
  $("devices").replaceChildren(...found.devices.map(deviceBox));
  drawTotals(totals);
  if (!isPaused) drawTable();
}

const percent = (n, of) => (of > 0 ? `${((100 * n) / of).toFixed(n === 0 ? 0 : 1)}%` : "–");

function drawJobs({ jobs, running, waiting }) {
  const rows = jobs.slice(0, MOST_JOBS).map((job) => {
    const bar = el("progress", { "aria-label": "Prompt", max: String(job.n_prompt), value: String(job.n_done) });
    return el("div", { class: "job" }, bar,
      el("span", { text: `prompt ${job.n_done.toLocaleString("en")} of ${job.n_prompt.toLocaleString("en")}${job.n_cached ? ` (${job.n_cached.toLocaleString("en")} cached)` : ""}` }),
      el("span", { text: count(job.n_predicted, "token") }), el("span", { class: "dim", text: `${job.seconds.toFixed(1)} s` }));
  });
  const more = running - rows.length;
  $("jobs").replaceChildren(...rows,
    ...(more > 0 ? [el("p", { class: "dim", text: `and ${more} more` })] : []),
    ...(!rows.length && !more ? [el("p", { class: "dim", text: waiting ? "None; some wait." : "None." })] : []));
}

function poolRow({ group, pages, free, page_tokens: size }) {
  const used = pages - free;
  return el("div", { class: "pool" }, el("b", { text: group }),
    el("progress", { "aria-label": `Pages of ${group} in use`, max: String(Math.max(pages, 1)), value: String(used) }),
    el("span", { text: `${used.toLocaleString("en")} of ${count(pages, "page")} of ${size} tokens` }));
}

function drawTotals(totals) {
  const hits = `${totals.prefix_hits.toLocaleString("en")} (${percent(totals.prefix_hits, totals.prompts)})`;
  const right = `${totals.accepted_tokens.toLocaleString("en")} (${percent(totals.accepted_tokens, totals.guessed_tokens)})`;
  const rows = [
    ["requests", totals.requests], ["steps", totals.steps], ["output tokens", totals.output_tokens],
    ["prompt tokens computed", totals.prompt_tokens], ["prompt tokens from the cache", totals.cached_tokens],
    ["prompts with a cached prefix", hits], ["guessed tokens", totals.guessed_tokens], ["guesses that came true", right],
    ["graphs built", totals.graphs_built], ["graphs reused", totals.graphs_reused],
  ];
  $("totals").replaceChildren(...rows.flatMap(([name, n]) => [el("dt", { text: name }), el("dd", { text: n.toLocaleString("en") })]));
}

function drawTable() {
  const rows = steps.slice(-12).reverse().map(([n, , seconds, decoded, prompt, running, isNew]) =>
    el("tr", {}, ...[n, (1000 * seconds).toFixed(2), running, decoded, prompt, isNew ? "yes" : ""].map((text) => el("td", { text }))));
  $("steps").replaceChildren(...rows);
}

function duration(seconds) {
  const parts = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const at = parts.findIndex(([, size]) => seconds >= size);
  const [unit, size] = parts[at < 0 ? 3 : at];
  return `${Math.floor(seconds / size)} ${unit}`;
}

// --- the timeline ---

function drawTimeline() {
  const canvas = $("timeline"), box = canvas.getBoundingClientRect(), scale = devicePixelRatio;
  if (canvas.width !== Math.round(box.width * scale) || canvas.height !== Math.round(box.height * scale)) {
    canvas.width = Math.round(box.width * scale);
    canvas.height = Math.round(box.height * scale);
  }
  const draw2d = canvas.getContext("2d"), style = getComputedStyle(canvas);
  const color = (name) => resolved(style.getPropertyValue(name));
  const [decode, prompt, build, line] = ["--c1", "--c2", "--c3", "--line"].map(color);
  draw2d.setTransform(scale, 0, 0, scale, 0, 0);
  draw2d.clearRect(0, 0, box.width, box.height);
  const end = performance.now() / 1000 + offset - DELAY, xOf = (t) => box.width * (1 - (end - t) / SECONDS);
  draw2d.fillStyle = line;
  for (let i = 1; i < 4; i++) draw2d.fillRect(box.width * (i / 4), 0, 1, box.height);
  const tallest = Math.max(1, ...steps.map((step) => step[3] + step[4]));
  const height = (n) => (box.height - 8) * (Math.log2(1 + n) / Math.log2(1 + tallest));
  for (const [, begin, seconds, decoded, prompted, , isNew] of steps) {
    const x = xOf(begin), width = Math.max(xOf(begin + seconds) - x - 0.3, 0.7);
    const all = height(decoded + prompted), part = (all * decoded) / Math.max(decoded + prompted, 1);
    draw2d.fillStyle = decode;
    draw2d.fillRect(x, box.height - part, width, part);
    draw2d.fillStyle = prompt;
    draw2d.fillRect(x, box.height - all, width, all - part);
    if (isNew) {
      draw2d.fillStyle = build;
      draw2d.fillRect(x, box.height - all - 4, width, 3);
    }
  }
  canvas.dataset.steps = String(steps.length);
}

// The color of a custom property in this theme: a canvas does not know `light-dark`.
const probe = el("span", { hidden: true });
document.body.append(probe);

function resolved(text) {
  probe.style.color = text;
  return getComputedStyle(probe).color;
}

function frame() {
  if (!isPaused && !document.hidden) drawTimeline();
  setTimeout(() => requestAnimationFrame(frame), matchMedia("(prefers-reduced-motion: reduce)").matches ? 1000 : 50);
}

async function keepPolling() {
  for (;;) {
    if (!document.hidden) {
      try {
        await poll();
        notice("");
      } catch (error) {
        notice(error.message);
      }
    }
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
}

$("pause").addEventListener("click", () => {
  isPaused = !isPaused;
  $("pause").setAttribute("aria-pressed", String(isPaused));
});
for (const [link, path] of [["a[href='./']", ""], ["a[href=explain]", `explain${location.search}`]]) document.querySelector(link).href = address(path);
keepPolling();
frame();
