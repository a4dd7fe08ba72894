// Shared by all drawings: sharp lines on any screen, colors of the theme, zooming and panning.

const GUTTER = 112; // pixels left of step -1: names of devices, offsets
let css = getComputedStyle(document.documentElement);
const ink = (name) => css.getPropertyValue(name).trim();

function prepare(canvas) {
  const ratio = window.devicePixelRatio || 1;
  const w = canvas.clientWidth, h = canvas.clientHeight;
  if (canvas.width !== Math.round(w * ratio) || canvas.height !== Math.round(h * ratio)) {
    canvas.width = Math.round(w * ratio);
    canvas.height = Math.round(h * ratio);
  }
  const c = canvas.getContext("2d");
  c.setTransform(ratio, 0, 0, ratio, 0, 0);
  c.fillStyle = ink("--panel");
  c.fillRect(0, 0, w, h);
  c.textBaseline = "middle";
  return { c, w, h };
}

const xOf = (step, w) => GUTTER + (step - state.x0) / (state.x1 - state.x0) * (w - GUTTER - 8);
const stepAt = (x, w) => state.x0 + (x - GUTTER) / (w - GUTTER - 8) * (state.x1 - state.x0);

function clipped(c, text, width) {
  if (width < 12) return "";
  if (c.measureText(text).width <= width) return text;
  let low = 0, high = Math.min(text.length, 200);
  while (low < high) {
    const half = (low + high + 1) >> 1;
    if (c.measureText(text.slice(0, half) + "…").width <= width) low = half;
    else high = half - 1;
  }
  return low > 1 ? text.slice(0, low) + "…" : "";
}

const fonts = { small: "", label: "", mono: "" };
function readTheme() {
  css = getComputedStyle(document.documentElement);
  const sans = ink("--sans");
  fonts.small = `11px ${sans}`;
  fonts.label = `600 12px ${sans}`;
  fonts.mono = `11px ${ink("--mono")}`;
}
readTheme();

// dark text on light fills, light text on dark fills
const inkOn = {};
function readableOn(color) {
  if (!(color in inkOn)) {
    const n = parseInt(color.slice(1), 16);
    const light = 0.3 * (n >> 16) + 0.59 * ((n >> 8) & 255) + 0.11 * (n & 255);
    inkOn[color] = light > 130 ? "#14181c" : "#ffffff";
  }
  return inkOn[color];
}

// `find(x, y)` returns the item at a point and the lines of its tooltip. `scaleY(factor, y)` and
// `moveY(dy)` are for drawings with vertical zoom.
function explore(canvas, { find, scaleY, moveY, reset }) {
  let drag = null;
  const place = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  canvas.addEventListener("wheel", (event) => {
    const [x, y] = place(event);
    if (x < GUTTER && !event.shiftKey) return; // the page scrolls there
    event.preventDefault();
    const delta = event.deltaY || event.deltaX;
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY) && !event.shiftKey) {
      const d = event.deltaX / canvas.clientWidth * (state.x1 - state.x0);
      setView(state.x0 + d, state.x1 + d);
    } else if (event.shiftKey && scaleY) scaleY(Math.exp(delta / 300), y);
    else zoom(Math.exp(delta / 300), stepAt(x, canvas.clientWidth));
  }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => {
    drag = { x: event.clientX, y: event.clientY, x0: state.x0, x1: state.x1, far: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (drag) {
      const dx = event.clientX - drag.x;
      drag.far ||= Math.abs(dx) + Math.abs(event.clientY - drag.y) > 4;
      if (!drag.far) return;
      canvas.classList.add("dragged");
      const d = dx / (canvas.clientWidth - GUTTER) * (drag.x1 - drag.x0);
      setView(drag.x0 - d, drag.x1 - d);
      if (moveY) moveY(event.movementY);
      hideTip();
      return;
    }
    const found = find(...place(event));
    hover(found ? found.at : null);
    if (found) showTip(found.lines, event.clientX, event.clientY);
    else hideTip();
  });
  canvas.addEventListener("pointerup", (event) => {
    const still = drag && !drag.far;
    drag = null;
    canvas.classList.remove("dragged");
    if (still) {
      const found = find(...place(event));
      pin(found ? found.at : null, false);
    }
  });
  canvas.addEventListener("pointercancel", () => { drag = null; });
  canvas.addEventListener("pointerleave", () => { hover(null); hideTip(); });
  canvas.addEventListener("dblclick", () => {
    if (reset) reset();
    setView(-1, N_STEPS + 1);
  });
}

function hover(at) {
  if (same(at, state.hovered) || at === state.hovered) return;
  state.hovered = at;
  changed();
}

function showTip(lines, x, y) {
  const tip = $("tip");
  tip.replaceChildren(...lines.map(([tag, text]) => {
    const line = document.createElement(tag === "b" ? "b" : "div");
    if (tag === "soft") line.className = "soft";
    line.textContent = text;
    return line;
  }));
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = x + 14 + box.width > innerWidth - 8 ? x - box.width - 14 : x + 14;
  const top = y + 16 + box.height > innerHeight - 8 ? y - box.height - 12 : y + 16;
  tip.style.left = `${Math.max(left, 8)}px`;
  tip.style.top = `${Math.max(top, 8)}px`;
}

function hideTip() { $("tip").hidden = true; }

// a vertical line at the steps of the pinned and the hovered item, in all drawings
function drawGuides(c, w, h) {
  for (const [at, alpha] of [[state.hovered, 0.35], [state.pinned, 0.7]]) {
    const step = at && stepOf(at);
    if (step === null || step === undefined) continue;
    const x = xOf(step + 0.5, w);
    if (x < GUTTER || x > w) continue;
    c.globalAlpha = alpha;
    c.fillStyle = ink("--accent");
    c.fillRect(Math.round(x), 0, 1, h);
    c.globalAlpha = 1;
  }
}
