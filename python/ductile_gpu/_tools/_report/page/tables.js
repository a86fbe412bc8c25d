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

function whoRow(row, whole) {
  const cells = [element("th", { scope: "row" }, ...nameOf(row)), element("td", { text: size(row.now) }), share(row.now, whole)];
  if (isOfVerdict()) cells.push(element("td", { text: count(row.blocks) }));
  return element("tr", { "data-bytes": row.now }, ...cells);
}

// By calls and by files are flame graphs of the stacks; the table below them has the stacks.
function waysToGroup(recording) {
  const stacks = recording.flame ? [["calls", "calls"], ["files", "files"]] : [];
  return [...stacks, ...Object.keys(recording.who).map((by) => [by, BY[by]])];
}

const viewOf = (recording) => recording.who[state.by] ? state.by : "stack";

// What holds something at the moment, the largest first.
function rowsShown(recording) {
  const rows = recording.who[viewOf(recording)].map((row) => ({ ...row, now: bytesOf(row) })).filter((row) => row.now > 0).sort((a, b) => b.now - a.now);
  return state.search === "" ? rows : rows.filter((row) => finds(row.key) || finds(row.name));
}

function othersOf(rows, ...summed) {
  const sums = Object.fromEntries(summed.map((name) => [name, rows.reduce((sum, row) => sum + row[name], 0)]));
  return rows.length ? [{ key: plural(rows.length, "other", "others"), growth: 0, ...sums }] : [];
}

function paintWho() {
  const recording = state.recording, rows = rowsShown(recording), by = viewOf(recording);
  const whole = recording.who[by].reduce((sum, row) => sum + bytesOf(row), 0), total = rows.reduce((sum, row) => sum + row.now, 0), blocks = rows.reduce((sum, row) => sum + row.blocks, 0);
  const hasBlocks = isOfVerdict(), kept = [...rows.slice(0, SHOWN), ...othersOf(rows.slice(SHOWN), "now", "blocks")];
  byId("who").replaceChildren(heading(BY[by], "live", "share", ...(hasBlocks ? ["blocks"] : [])),
    element("tbody", {}, ...kept.map((row) => whoRow(row, whole))),
    element("tfoot", {}, element("tr", { "data-total": total }, element("th", { scope: "row", text: state.search === "" ? countedName() : "found" }), element("td", { text: size(total) }),
      element("td", { text: (whole > 0 ? 100 * total / whole : 0).toFixed(1) + " %" }), ...(hasBlocks ? [element("td", { text: count(blocks) })] : []))));
  const asked = recording.summary.refused && hasBlocks ? " The request that was refused is counted, in rows of its own." : "";
  byId("who-note").textContent = `Live memory ${momentName()}, as the program asked for it: ${count(whole)} bytes, ` +
    "those allocated before the recording began included." + asked +
    (recording.who.stack ? "" : " The recording has no stacks (ductile-gpu record writes them): length of life, stream and size are all that tells.");
  chooser("by", waysToGroup(recording), state.by, (chosen) => { state.by = chosen; state.flame = []; });
}

// ---- What stays ---------------------------------------------------------------------------------

// Without steps enough it is not known; else 0 is an answer, too.
function growthText(row) {
  if (!state.recording.summary.tells_growth) return "—";
  return row.growth > 0 ? "+" + size(row.growth) : "no";
}

function paintEnds() {
  const recording = state.recording, summary = recording.summary, by = recording.who.stack ? "stack" : "category";
  const rows = recording.who[by].filter((row) => row.end > 0 || row.growth > 0).sort((a, b) => b.growth - a.growth || b.end - a.end);
  const whole = rows.reduce((sum, row) => sum + row.end, 0), kept = [...rows.slice(0, SHOWN), ...othersOf(rows.slice(SHOWN), "end")];
  byId("ends-section").hidden = !summary.history || rows.length === 0;
  byId("ends-note").textContent = "What the program had when the recording ended, " + (summary.tells_growth ? `and what each line has more at the end of every step than of the one before; over ${count(summary.steps)} steps.`
    : summary.steps ? `${count(summary.steps)} steps are too few to tell what grows.` : "without steps there is no telling what grows.");
  byId("ends").replaceChildren(heading(BY[by], "live at the end", "share", "grows a step"),
    element("tbody", {}, ...kept.map((row) => element("tr", { "data-end": row.end, "data-growth": row.growth }, element("th", { scope: "row" }, ...nameOf(row)), element("td", { text: size(row.end) }), share(row.end, whole),
      element("td", { class: row.growth > 0 ? "up" : "", text: growthText(row) })))),
    element("tfoot", {}, element("tr", { "data-total": whole }, element("th", { scope: "row", text: "live at the end" }), element("td", { text: size(whole) }), element("td"), element("td"))));
}

function paintPools() {
  const summary = state.recording.summary, pools = summary.pools, free = freeInPools(summary);
  byId("pools-section").hidden = pools.length === 0;
  byId("pools-note").textContent = `Segments of a graph's or a user's own pool ${summary.refused?.holes != null ? "at the refusal" : "at the end"}. What lies free in one serves that pool alone: ${size(free)} in all.`;
  byId("pools").replaceChildren(heading("", "held", "live", "free, for itself alone", "in holes", "largest"),
    element("tbody", {}, ...pools.map((pool) => element("tr", { "data-free": pool.free_bytes }, element("th", { scope: "row", text: pool.name }), element("td", { text: size(pool.held_bytes) }),
      element("td", { text: size(pool.live_bytes) }), element("td", { text: size(pool.free_bytes) }), element("td", { text: count(pool.holes) }), element("td", { text: size(pool.largest_hole) })))));
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
    element("tfoot", {}, element("tr", { "data-change": compare.change }, element("th", { scope: "row", text: "live at the moment" }), element("td", { text: size(compare.before_bytes) }),
      element("td", { text: size(compare.after_bytes) }), element("td", { text: signed(compare.change) }))));
}
