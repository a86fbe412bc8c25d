// The tables: who holds it, what would suffice, the largest batch, what grew.

const SHOWN = 20;
const BY = { stack: "stack", category: "category", stream: "stream", size: "size of block" };

function heading(...names) {
  return element("thead", {}, element("tr", {}, ...names.map((name) => element("th", { scope: "col", text: name }))));
}

// A row's name, and what of a name is its place: "forward model.py:102".
function splitName(name) {
  const found = /^(.*) (\S+:\d+)$/.exec(name);
  return found ? [found[1], found[2]] : [name, ""];
}

// With the whole stack behind it, where there is one.
function nameOf(row) {
  const [name, place] = splitName(row.name ?? row.key);
  const title = [name, ...(place ? [element("span", { class: "frame", text: place })] : [])];
  const asked = row.refused ? [element("span", { class: "asked", text: " asked for and refused" })] : [];
  if (!row.is_stack) return [...title, ...asked];
  return [element("details", { class: "stack" }, element("summary", {}, ...title, ...asked),
    ...row.key.split("\n").map((frame) => element("span", { class: "frame", text: frame })))];
}

function share(bytes, whole) {
  const part = whole > 0 ? 100 * bytes / whole : 0;
  return element("td", { class: "share" }, part.toFixed(1) + " %", element("i", { style: `width: ${Math.min(100, part)}%` }));
}

function whoRow(row, whole, hasGrowth) {
  const cells = [element("th", { scope: "row" }, ...nameOf(row)), element("td", { text: size(row.bytes) }), share(row.bytes, whole),
    element("td", { text: count(row.blocks) })];
  if (hasGrowth) cells.push(element("td", { class: row.growth > 0 ? "up" : "", text: row.growth ? "+" + size(row.growth) : "" }));
  return element("tr", { "data-bytes": row.bytes }, ...cells);
}

// By calls and by files are flame graphs of the stacks; the table below them has the stacks.
function waysToGroup(recording) {
  const stacks = recording.flame ? [["calls", "calls"], ["files", "files"]] : [];
  return [...stacks, ...Object.keys(recording.who).map((by) => [by, BY[by]])];
}

function rowsShown(recording) {
  const rows = recording.who[recording.who[state.by] ? state.by : "stack"];
  return state.search === "" ? rows : rows.filter((row) => finds(row.key) || finds(row.name));
}

function paintWho() {
  const recording = state.recording, rows = rowsShown(recording);
  const hasGrowth = rows.some((row) => row.growth);
  const kept = rows.slice(0, SHOWN), rest = rows.slice(SHOWN);
  if (rest.length) kept.push(rest.reduce((sum, row) => ({ ...sum, bytes: sum.bytes + row.bytes, blocks: sum.blocks + row.blocks, growth: 0 }),
    { key: plural(rest.length, "other", "others"), bytes: 0, blocks: 0, growth: 0 }));
  const by = recording.who[state.by] ? state.by : "stack", whole = recording.summary.moment.bytes;
  const total = rows.reduce((sum, row) => sum + row.bytes, 0), blocks = rows.reduce((sum, row) => sum + row.blocks, 0);
  byId("who").replaceChildren(heading(BY[by], "live", "share", "blocks", ...(hasGrowth ? ["growth a step"] : [])),
    element("tbody", {}, ...kept.map((row) => whoRow(row, whole, hasGrowth))),
    element("tfoot", {}, element("tr", { "data-total": total }, element("th", { scope: "row", text: state.search === "" ? "live at the peak" : "found" }), element("td", { text: size(total) }),
      element("td", { text: (whole > 0 ? 100 * total / whole : 0).toFixed(1) + " %" }), element("td", { text: count(blocks) }), ...(hasGrowth ? [element("td")] : []))));
  const asked = recording.summary.refused ? " The request that was refused is counted, in rows of its own." : "";
  byId("who-note").textContent = `Live memory at the peak, ${inStep(recording, recording.peak_event)}, as the program asked for it: ${count(whole)} bytes, ` +
    "those allocated before the recording began included." + asked +
    (recording.who.stack ? "" : " The recording has no stacks (ductile-gpu record writes them): length of life, stream and size are all that tells.");
  chooser("by", waysToGroup(recording), state.by, (chosen) => { state.by = chosen; state.flame = []; });
}

function fitRow(name, held, needed, driver, recording, note) {
  return element("tr", {}, element("th", { scope: "row" }, name, ...(note ? [element("span", { class: "frame", text: note })] : [])),
    element("td", { text: held === null ? "—" : size(held) }), element("td", { text: held && held >= recording.live_peak ? (100 * recording.live_peak / held).toFixed(1) + " %" : "—" }),
    element("td", { text: needed ? size(needed) : "—" }), element("td", { text: needed ? (100 * recording.live_peak / needed).toFixed(1) + " %" : "—" }),
    element("td", { text: driver === null ? "—" : (driver / 1e6).toFixed(0) + " ms" }));
}

function paintFit() {
  const recording = state.recording, rows = [], recorded = recording.summary.recorded;
  if (recorded?.held_peak_bytes) {
    rows.push(fitRow("recorded", recorded.held_peak_bytes, null, null, recording, "by PyTorch's own allocator" + (recording.summary.refused ? ", without the refused request" : "")));
    rows[0].dataset.run = "recorded";
    rows[0].dataset.held = recorded.held_peak_bytes;
  }
  for (const run of recording.runs) {
    rows.push(fitRow(run.name, run.completed ? run.held_peak : null, run.min_capacity, run.driver_ns, recording, run.settings.join(", ")));
    rows[rows.length - 1].dataset.run = run.id;
    rows[rows.length - 1].dataset.needed = run.min_capacity ?? "";
    rows[rows.length - 1].dataset.held = run.held_peak;
    if (run.id !== "ductile") continue;
    for (const variant of recording.variants) {
      rows.push(fitRow("Ductile, " + variant.setting.replace("=", ":"), variant.completed ? variant.held_peak_bytes : null, variant.min_capacity_bytes,
        variant.driver_time_ns, recording, variant.purpose));
    }
  }
  byId("fit").replaceChildren(heading("", "held at most", "live / held", "smallest device", "live / device", "driver time, modelled"), element("tbody", {}, ...rows));
}

function paintForecast() {
  const forecast = state.recording.forecast;
  byId("forecast-section").hidden = !forecast;
  if (!forecast) return;
  byId("forecast-title").textContent = "The largest " + forecast.unit;
  byId("forecast-note").textContent = forecast.note;
  byId("forecast").hidden = !forecast.needs;
  if (!forecast.needs) return;
  byId("forecast").replaceChildren(heading("", `largest ${forecast.unit} on ${size(state.device)}`),
    element("tbody", {}, ...state.recording.runs.map((run) => element("tr", { "data-run": run.id, "data-largest": largestOn(forecast, run.id, state.device)[1] },
      element("th", { scope: "row", text: run.name }), element("td", { text: forecastText(forecast, run.id, state.device) })))));
}

// What fits on a device under one allocator.
function forecastText(forecast, id, capacity) {
  const [worst, expected, best] = largestOn(forecast, id, capacity);
  const points = forecast.needs[id].expected, last = points[points.length - 1][0];
  if (expected < 1) return "none";
  if (expected >= last) return "at least " + count(last);
  const more = best >= last ? "more than " : "";
  return `${count(expected)} (likely between ${count(worst)} and ${more}${count(best)})`;
}

// What sizes need is known at some of them, and lies on a line between two; of what is behind the last nothing is said.
function largestWith(points, capacity) {
  const slope = (a, b) => (b[1] - a[1]) / (b[0] - a[0]);
  const last = points.findLastIndex((point) => point[1] <= capacity);
  if (last < 0) return slope(points[0], points[1]) > 0 ? Math.max(0, Math.trunc(points[0][0] - (points[0][1] - capacity) / slope(points[0], points[1]))) : 0;
  if (last === points.length - 1) return points[last][0];
  const [from, to] = [points[last], points[last + 1]];
  return Math.trunc(from[0] + (capacity - from[1]) * (to[0] - from[0]) / (to[1] - from[1]));
}

function largestOn(forecast, id, capacity) {
  return ["worst", "expected", "best"].map((name) => largestWith(forecast.needs[id][name], capacity));
}

function paintCompare() {
  const compare = state.data.compare;
  byId("compare-section").hidden = !compare;
  if (!compare) return;
  byId("compare-note").textContent = compare.note;
  const rows = compare.rows.filter((row) => row.change).slice(0, 30);
  const rest = compare.rows.filter((row) => row.change).slice(30).reduce((sum, row) => sum + row.change, 0);
  const signed = (bytes) => (bytes > 0 ? "+" : "") + size(bytes);
  byId("compare").replaceChildren(heading(BY[compare.by], compare.before, compare.after, "change"),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, element("th", { scope: "row" }, ...nameOf(row)), element("td", { text: size(row.before) }),
      element("td", { text: size(row.after) }), element("td", { class: row.change > 0 ? "up" : "down", text: signed(row.change) }))),
    ...(rest ? [element("tr", {}, element("th", { scope: "row", text: "others" }), element("td"), element("td"), element("td", { text: signed(rest) }))] : [])),
    element("tfoot", {}, element("tr", { "data-change": compare.change }, element("th", { scope: "row", text: "live at the peak" }), element("td", { text: size(compare.before_bytes) }),
      element("td", { text: size(compare.after_bytes) }), element("td", { text: signed(compare.change) }))));
}
