// Builds the page: header, filters, keys.

function fillHeader() {
  $("model").textContent = DATA.title;
  $("model").title = DATA.title;
  $("what").textContent = DATA.subtitle;
  const views = E.nodes.filter((n) => n.is_view).length;
  const memory = E.memory.reduce((sum, buffer) => sum + buffer.size, 0);
  const some = E.copies.some((copy) => copy.kind === "experts") ? "at most " : "";
  const several = (n, one, many) => [n.toLocaleString("en"), n === 1 ? one : many || one + "s"];
  const pairs = [several(E.nodes.length - views, "node"), several(views, "view"),
    several(E.n_splits, "split"), several(E.n_copies, "copy", "copies"),
    [some + bytes(E.bytes_copied), "copied"], [bytes(memory), "compute memory"]];
  $("facts").append(...pairs.map(([value, name]) =>
    el("div", {}, el("dd", { text: value }), el("dt", { text: name }))));
}

function fillSelect(select, all, values) {
  select.append(el("option", { value: "", text: all }), ...values.map((v) => el("option", { value: v, text: v })));
}

function fillFilters() {
  fillSelect($("op"), "All ops", OPS);
  fillSelect($("device"), "All devices", E.devices.map((d) => d.name));
  $("search").oninput = () => { filter.text = $("search").value; state.tab = "node"; applyFilter(); };
  for (const name of ["op", "device"]) {
    $(name).onchange = () => { filter[name] = $(name).value; state.tab = "node"; applyFilter(); };
  }
  for (const name of ["copied", "computed"]) {
    $(name).onchange = () => { filter[name] = $(name).checked; state.tab = "node"; applyFilter(); };
  }
  $("copied").disabled = !E.copies.length;
  $("clear").onclick = clearFilters;
  for (const cause of CAUSES) {
    const leafs = E.leafs.filter((leaf) => rule(leaf.cause) === cause).length;
    const n = N_BY_CAUSE.get(cause) || (cause === "4.cpy" ? E.copies.length : leafs);
    const button = el("button", { type: "button", title: E.causes[cause] }, swatch(cause),
      el("b", { text: cause }), SHORT[cause] || "", el("span", { text: n.toLocaleString("en") }));
    button.dataset.cause = cause;
    button.setAttribute("aria-label", `${cause}: ${E.causes[cause]}`);
    button.onpointerenter = (event) => showTip([["b", cause], ["div", E.causes[cause]]], event.clientX, event.clientY);
    button.onpointerleave = hideTip;
    button.removeAttribute("title");
    button.disabled = !N_BY_CAUSE.has(cause); // causes of copies and leafs are a legend only
    button.onclick = () => {
      if (!filter.causes.delete(cause)) filter.causes.add(cause);
      state.tab = "node";
      applyFilter();
    };
    $("causes").append(button);
  }
}

function clearFilters() {
  Object.assign(filter, { text: "", op: "", device: "", copied: false, computed: false, causes: new Set() });
  for (const name of ["search", "op", "device"]) $(name).value = "";
  for (const name of ["copied", "computed"]) $(name).checked = false;
  applyFilter();
}

function drawFilters() {
  for (const button of $("causes").children) {
    button.setAttribute("aria-pressed", filter.causes.has(button.dataset.cause));
  }
  $("count").textContent = isFiltered()
    ? `${shown.length.toLocaleString("en")} of ${count(E.nodes.length, "node")}` : count(E.nodes.length, "node");
  $("clear").disabled = !isFiltered();
  const all = state.x0 <= -1 && state.x1 >= N_STEPS + 1;
  $("out").disabled = $("all").disabled = all;
}

function onKey(event) {
  const typing = event.target === $("search") || event.target.tagName === "SELECT";
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/" && !typing) {
    $("search").focus();
    $("search").select();
  } else if (event.key === "Escape") {
    if (isFiltered() || filter.text) clearFilters();
    else pin(null);
    $("search").blur();
  } else if (event.key === "ArrowDown" || (event.key === "ArrowRight" && !typing)) {
    if (event.target.tagName === "SELECT") return;
    move(1);
  } else if (event.key === "ArrowUp" || (event.key === "ArrowLeft" && !typing)) {
    if (event.target.tagName === "SELECT") return;
    move(-1);
  } else if (event.key === "+" && !typing) zoom(0.6);
  else if (event.key === "-" && !typing) zoom(1 / 0.6);
  else return;
  event.preventDefault();
}

function start() {
  fillHeader();
  fillFilters();
  $("in").onclick = () => zoom(0.6);
  $("out").onclick = () => zoom(1 / 0.6);
  $("all").onclick = () => {
    for (const map of maps) setBytes(map, 0, map.buffer.size);
    setView(-1, N_STEPS + 1);
  };
  for (const tab of document.querySelectorAll(".tabs button")) {
    tab.onclick = () => { state.tab = tab.dataset.tab; list.scrollTop = 0; changed(); };
  }
  list.onscroll = changed;
  document.addEventListener("keydown", onKey);
  const theme = () => { readTheme(); changed(); };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", theme);
  new ResizeObserver(changed).observe($("timeline"));
  new ResizeObserver(changed).observe(list);
  for (const map of maps) new ResizeObserver(changed).observe(map.canvas);
  watchers.push(drawFilters, drawLanes, () => maps.forEach(drawMap), drawTabs, drawList, drawDetails);
  changed();
}

start();

// for the console and for tests: the positions of items, in pixels of the window
window.lamella = {
  data: DATA,
  cell(kind, index) {
    const t = LISTS[kind][index], at = lanesCanvas.getBoundingClientRect();
    return { x: at.left + xOf(t.step + 0.5, at.width), y: at.top + cellTop(LANES.get(t.device)) + LANE.cells / 2 };
  },
  rectangle(kind, index) {
    const r = RECTANGLES.get(key(kind, index)), map = maps[r.buffer];
    const at = map.canvas.getBoundingClientRect(), b = box(map, r, at.width, at.height);
    return { x: at.left + b.x + b.w / 2, y: at.top + b.y + b.h / 2, w: b.w, h: b.h };
  },
};
