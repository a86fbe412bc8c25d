// The tables: who holds it, what would suffice, the largest batch, what grew.

const SHOWN = 20;
const BY = { stack: "stack", category: "category", stream: "stream", size: "size of block" };

function heading(...names) {
  return element("thead", {}, element("tr", {}, ...names.map((name) => element("th", { scope: "col", text: name }))));
}

// The frame that says most: the innermost of the program itself, not of the library.
function tellingFrame(frames) {
  return frames.find((frame) => !/[\\/](torch|site-packages|dist-packages|lib[\\/]python)[\\/.]/.test(frame)) ?? frames[0];
}

function nameOf(key, by) {
  if (by !== "stack" || !key.includes(" ")) return [key];
  const frames = key.split("\n");
  const chosen = tellingFrame(frames), split = chosen.lastIndexOf(" ");
  if (frames.length === 1 && !/:\d+$/.test(key)) return [key];
  const title = element("summary", {}, chosen.slice(0, split), element("span", { class: "frame", text: chosen.slice(split + 1) }));
  return [element("details", { class: "stack" }, title, ...frames.map((frame) => element("span", { class: "frame", text: frame })))];
}

function share(bytes, whole) {
  const part = whole > 0 ? 100 * bytes / whole : 0;
  return element("td", { class: "share" }, part.toFixed(1) + " %", element("i", { style: `width: ${Math.min(100, part)}%` }));
}

function whoRow(row, by, whole, hasGrowth) {
  const cells = [element("th", { scope: "row" }, ...nameOf(row.key, by)), element("td", { text: size(row.bytes) }), share(row.bytes, whole),
    element("td", { text: count(row.blocks) })];
  if (hasGrowth) cells.push(element("td", { class: row.growth > 0 ? "up" : "", text: row.growth ? "+" + size(row.growth) : "" }));
  return element("tr", { "data-bytes": row.bytes }, ...cells);
}

function paintWho() {
  const recording = state.recording, rows = recording.who[state.by];
  const hasGrowth = rows.some((row) => row.growth);
  const kept = rows.slice(0, SHOWN), rest = rows.slice(SHOWN);
  if (rest.length) kept.push(rest.reduce((sum, row) => ({ ...sum, bytes: sum.bytes + row.bytes, blocks: sum.blocks + row.blocks, growth: 0 }),
    { key: plural(rest.length, "other", "others"), bytes: 0, blocks: 0, growth: 0 }));
  const total = rows.reduce((sum, row) => sum + row.bytes, 0), blocks = rows.reduce((sum, row) => sum + row.blocks, 0);
  byId("who").replaceChildren(heading(BY[state.by], "live", "share", "blocks", ...(hasGrowth ? ["growth a step"] : [])),
    element("tbody", {}, ...kept.map((row) => whoRow(row, state.by, total, hasGrowth))),
    element("tfoot", {}, element("tr", { "data-total": total }, element("th", { scope: "row", text: "live at the peak" }), element("td", { text: size(total) }),
      element("td", { text: "100.0 %" }), element("td", { text: count(blocks) }), ...(hasGrowth ? [element("td")] : []))));
  byId("who-note").textContent = `Live memory at the peak, ${inStep(recording, recording.peak_event)}: ${count(total)} bytes in ${plural(blocks, "block", "blocks")}, ` +
    "those allocated before the recording began included." +
    (recording.who.stack ? "" : " The recording has no stacks: length of life, stream and size are all that tells.");
  chooser("by", Object.keys(recording.who).map((by) => [by, BY[by]]), state.by, (by) => { state.by = by; });
}

function fitRow(name, held, needed, driver, recording, note) {
  return element("tr", {}, element("th", { scope: "row" }, name, ...(note ? [element("span", { class: "frame", text: note })] : [])),
    element("td", { text: held === null ? "—" : size(held) }), element("td", { text: held ? (100 * recording.live_peak / held).toFixed(1) + " %" : "—" }),
    element("td", { text: needed ? size(needed) : "—" }), element("td", { text: needed ? (100 * recording.live_peak / needed).toFixed(1) + " %" : "—" }),
    element("td", { text: (driver / 1e6).toFixed(0) + " ms" }));
}

function paintFit() {
  const recording = state.recording, rows = [];
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
  byId("forecast-note").textContent = forecast.note;
  byId("forecast").replaceChildren(heading("", `largest ${forecast.unit} on ${size(state.device)}`, "likely between"),
    element("tbody", {}, ...state.recording.runs.map((run) => {
      const [least, best, most] = largestOn(forecast, run.id, state.device);
      return element("tr", { "data-run": run.id, "data-largest": best }, element("th", { scope: "row", text: run.name }),
        element("td", { text: best < 1 ? "none" : count(best) }), element("td", { text: `${count(Math.max(0, least))} and ${count(Math.max(0, most))}` }));
    })));
}

// As _forecast.py: what sizes need is known at some of them, and lies on a line between two and behind the last.
function largestWith(points, capacity) {
  const slope = (a, b) => (b[1] - a[1]) / (b[0] - a[0]);
  const last = points.findLastIndex((point) => point[1] <= capacity);
  if (last < 0) return slope(points[0], points[1]) > 0 ? Math.max(0, Math.trunc(points[0][0] - (points[0][1] - capacity) / slope(points[0], points[1]))) : 0;
  const at = Math.min(last, points.length - 2), [from, to] = [points[at], points[at + 1]];
  if (to[1] <= from[1]) return capacity >= to[1] ? to[0] : from[0];
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
    element("tbody", {}, ...rows.map((row) => element("tr", {}, element("th", { scope: "row" }, ...nameOf(row.key, compare.by)), element("td", { text: size(row.before) }),
      element("td", { text: size(row.after) }), element("td", { class: row.change > 0 ? "up" : "down", text: signed(row.change) }))),
    ...(rest ? [element("tr", {}, element("th", { scope: "row", text: "others" }), element("td"), element("td"), element("td", { text: signed(rest) }))] : [])),
    element("tfoot", {}, element("tr", { "data-change": compare.change }, element("th", { scope: "row", text: "live at the peak" }), element("td", { text: size(compare.before_bytes) }),
      element("td", { text: size(compare.after_bytes) }), element("td", { text: signed(compare.change) }))));
}
