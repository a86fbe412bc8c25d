// The timeline: lines of what is held, areas of what one allocator does with it, marks of what it did.

const AREAS = ["live", "pending", "free", "cached"];
const MARKS = [["creates", "grown", "handles created"], ["moves", "moved", "handles moved"],
  ["releases", "given back", "handles released"], ["waits", "waited", "waits"]];
const DASHES = { ductile: [], expandable: [7, 3], classic: [2, 3] };
// before: the width of what was there when the recording began; marks: the height of what an allocator did.
const plot = { left: 52, before: 0, right: 150, top: 18, marks: 62, bottom: 26, width: 0, height: 0 };

const runOf = (id) => state.recording.runs.find((run) => run.id === id);
const xOf = (event) => plot.left + (event - state.from) / (state.to - state.from) * (plot.width - plot.left - plot.right);
const holds = (run) => run.name + (run.id === "expandable" ? " hold" : " holds");
const eventAt = (x) => state.from + (x - plot.left) / (plot.width - plot.left - plot.right) * (state.to - state.from);

function fit(canvas) {
  const scale = window.devicePixelRatio || 1;
  const box = canvas.getBoundingClientRect();
  canvas.width = Math.round(box.width * scale);
  canvas.height = Math.round(box.height * scale);
  const pen = canvas.getContext("2d");
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.font = "12px system-ui, sans-serif";
  return [pen, box.width, box.height];
}

function drawPath(pen, points, colour, width, dash = []) {
  pen.strokeStyle = colour;
  pen.lineWidth = width;
  pen.setLineDash(dash);
  pen.beginPath();
  for (const [x, y] of points) pen.lineTo(x, y);
  pen.stroke();
  pen.setLineDash([]);
}

function drawText(pen, text, x, y, colour, align = "left", baseline = "middle") {
  pen.fillStyle = colour;
  pen.textAlign = align;
  pen.textBaseline = baseline;
  pen.fillText(text, x, y);
}

function topOf(recording) {
  return 1.06 * Math.max(...recording.runs.map((run) => run.held_peak), recording.live_peak, recording.summary.recorded?.held_peak_bytes ?? 0, 1);
}

// 1, 2, 5, 10, ... so that at most `most` lie below the top.
function niceStep(top, most) {
  let step = Math.pow(10, Math.floor(Math.log10(top / most)));
  for (const factor of [1, 2, 5, 10]) if (top / (step * factor) <= most) return step * factor;
  return step * 10;
}

function drawGrid(pen, y, top) {
  const unit = top >= 2 * GIB ? GIB : MIB;
  const step = niceStep(top / unit, 6) * unit;
  for (let value = 0; value <= top; value += step) {
    drawPath(pen, [[plot.left - plot.before, y(value)], [plot.width - plot.right, y(value)]], colourOf("line"), 1);
    drawText(pen, String(Math.round(value / unit * 100) / 100), plot.left - plot.before - 6, y(value), colourOf("soft"), "right");
  }
  drawText(pen, unit === GIB ? "GiB" : "MiB", 6, 8, colourOf("soft"));
}

function drawSteps(pen, bottom) {
  const recording = state.recording;
  const axis = plot.height - plot.bottom, soft = colourOf("soft");
  if (recording.n_steps < 2) {
    const step = Math.max(1, niceStep(state.to - state.from, 6)), zero = recording.blocks_before - 1;
    for (let at = Math.ceil((state.from - zero) / step) * step; at + zero <= state.to; at += step) if (at > 0) drawText(pen, count(at), xOf(at + zero), axis + 6, soft, "center", "top");
    drawText(pen, "event", plot.width - plot.right + 10, axis + 6, soft, "left", "top");
    return;
  }
  const first = stepOf(recording, state.from), last = stepOf(recording, state.to - 1);
  const every = Math.max(1, niceStep(last - first + 1, Math.max(2, Math.floor((plot.width - plot.left - plot.right) / 48))));
  for (let step = first; step <= last; step++) {
    if (step !== first && step % every !== 0) continue;
    if (step === first && every > 1 && (every - step % every) % every > 0 && (every - step % every) < every / 2) continue;
    const begins = step === 1 ? 0 : recording.step_ends[step - 2];
    const x = Math.max(plot.left, xOf(begins));
    drawText(pen, String(step), x, axis + 8, soft, "center", "top");
    pen.fillRect(x, axis, 1, 5);
  }
  drawText(pen, "step", plot.width - plot.right + 10, axis + 8, soft, "left", "top");
}

function shownSamples(series) {
  const first = Math.max(0, sampleAt(series, state.from));
  const last = Math.min(series.event.length - 1, sampleAt(series, state.to) + 1);
  return [first, last];
}

// To the screen's own pixels, so that areas side by side leave no seam.
function snap(x) {
  const scale = window.devicePixelRatio || 1;
  return Math.floor(x * scale) / scale;
}

// Of the samples in each pixel the one with most live memory: a peak of a moment stays visible.
function fullestSamples(series) {
  const [first, last] = shownSamples(series), chosen = [];
  let pixel = null;
  for (let i = first; i <= last; i++) {
    const x = snap(xOf(series.event[i]));
    if (x !== pixel) chosen.push(i);
    else if (series.live[i] > series.live[chosen[chosen.length - 1]]) chosen[chosen.length - 1] = i;
    pixel = x;
  }
  return chosen;
}

// States are told apart by more than their colour: what is not live has a pattern.
const HATCHES = { free: [6, (pen) => { pen.moveTo(-1, 7); pen.lineTo(7, -1); pen.moveTo(-1, 1); pen.lineTo(1, -1); pen.moveTo(5, 7); pen.lineTo(7, 5); }],
  pending: [6, (pen) => { pen.moveTo(-1, -1); pen.lineTo(7, 7); }], cached: [5, (pen) => { pen.moveTo(2, 2.5); pen.lineTo(3, 2.5); }] };
const patterns = new Map();

function fillOf(pen, name) {
  const key = name + colourOf("paper");
  if (!HATCHES[name]) return colourOf(name);
  if (!patterns.has(key)) {
    const [side, draw] = HATCHES[name], tile = document.createElement("canvas"), scale = window.devicePixelRatio || 1;
    tile.width = tile.height = side * scale;
    const inside = tile.getContext("2d");
    inside.scale(scale, scale);
    inside.fillStyle = colourOf(name);
    inside.fillRect(0, 0, side, side);
    inside.strokeStyle = colourOf(name === "pending" ? "paper" : "hatch");
    inside.lineWidth = name === "pending" ? 1.5 : 1;
    inside.beginPath();
    draw(inside);
    inside.stroke();
    const pattern = pen.createPattern(tile, "repeat");
    pattern.setTransform(new DOMMatrix().scale(1 / scale));
    patterns.set(key, pattern);
  }
  return patterns.get(key);
}

// From one sample to the next memory stays as it is: steps, not slopes.
function drawAreas(pen, run, y) {
  const series = run.series, chosen = fullestSamples(series);
  const edges = chosen.map((i) => snap(xOf(series.event[i])));
  edges.push(snap(xOf(state.to)) + 1);
  const below = chosen.map(() => 0);
  for (const name of AREAS) {
    pen.fillStyle = fillOf(pen, name);
    chosen.forEach((i, k) => {
      const top = y(below[k] + series[name][i]);
      if (series[name][i] > 0) pen.fillRect(edges[k], top, edges[k + 1] - edges[k], y(below[k]) - top);
      below[k] += series[name][i];
    });
  }
}

function drawLine(pen, run, y) {
  const [first, last] = shownSamples(run.series), points = [];
  for (let i = first; i <= last; i++) points.push([xOf(run.series.event[i]), y(run.series.held[i])]);
  drawPath(pen, points, colourOf(run.id), run.id === state.split ? 2.5 : 1.75, DASHES[run.id]);
  if (!run.completed) drawRefusal(pen, run, y);
}

// What PyTorch's own allocator held.
function drawRecorded(pen, y) {
  const series = state.recording.recorded_held;
  if (!series) return;
  const points = series.event.flatMap((event, i) => {
    const end = i + 1 < series.event.length ? series.event[i + 1] : state.recording.replay_events;
    return [[xOf(event), y(series.held[i])], [xOf(end), y(series.held[i])]];
  });
  drawPath(pen, points, colourOf("recorded"), 1.25, [1, 3]);
}

// Blocks from before the recording: one field, since nothing is known of how they came.
function drawBefore(pen, y, bottom) {
  if (!plot.before) return;
  const bytes = state.recording.summary.recorded?.before_bytes ?? state.recording.runs[0].series.asked[0], x = plot.left - plot.before;
  pen.fillStyle = colourOf("live");
  pen.fillRect(x, y(bytes), plot.before - 3, bottom - y(bytes));
  pen.save();
  pen.translate(x + plot.before / 2 - 1, bottom - 6);
  pen.rotate(-Math.PI / 2);
  drawText(pen, "before the recording", 0, 0, colourOf("ink"));
  pen.restore();
}

function drawRefusal(pen, run, y) {
  const x = xOf(run.stopped_at_event), at = y(run.held_peak);
  for (const sign of [1, -1]) drawPath(pen, [[x - 5, at - 5 * sign], [x + 5, at + 5 * sign]], colourOf("bad"), 2);
}

// Where the recorded program itself was refused memory.
function drawRefusals(pen, bottom) {
  for (const refusal of state.recording.refusals) {
    const x = xOf(refusal.event);
    drawPath(pen, [[x, plot.top], [x, bottom]], colourOf("bad"), 1.5);
    const text = "✗ refused", half = pen.measureText(text).width / 2;
    drawText(pen, text, Math.min(Math.max(x, plot.left + half), plot.width - plot.right - half), plot.top - 2, colourOf("bad"), "center", "bottom");
  }
}

// Labels at the lines' ends, moved apart where they would touch. They are of the whole run, not of the cursor's moment.
function drawLabels(pen, y, bottom) {
  const recording = state.recording;
  drawText(pen, "at most, uncapped", plot.width - plot.right + 10, 8, colourOf("soft"));
  const labels = recording.runs.map((run) => ({ text: size(run.held_peak), name: run.name,
    colour: colourOf(run.id), y: y(run.held_peak) }));
  const recorded = recording.summary.recorded?.held_peak_bytes;
  const needed = isRefused(recording, recording.peak_event) ? recording.summary.refused.needed_bytes : recording.live_peak;
  labels.push({ text: size(needed), name: isRefused(recording, recording.peak_event) ? "live + asked" : "live", colour: colourOf("soft"), y: y(recording.live_peak) });
  if (recorded) labels.push({ text: size(recorded), name: "recorded", colour: colourOf("recorded"), y: y(recorded) });
  labels.sort((a, b) => a.y - b.y);
  const gap = Math.min(32, (bottom - plot.top) / labels.length);
  for (let i = 1; i < labels.length; i++) labels[i].y = Math.max(labels[i].y, labels[i - 1].y + gap);
  let limit = bottom - 6;
  for (let i = labels.length - 1; i >= 0; i--) { labels[i].y = Math.min(labels[i].y, limit); limit = labels[i].y - gap; }
  for (const label of labels) {
    pen.font = "600 13px system-ui, sans-serif";
    drawText(pen, label.text, plot.width - plot.right + 10, label.y - 7, label.colour);
    pen.font = "12px system-ui, sans-serif";
    drawText(pen, label.name.replace(" segments", ""), plot.width - plot.right + 10, label.y + 7, label.colour);
  }
}

function drawDevice(pen, y, top) {
  if (state.device > top) return;
  drawPath(pen, [[plot.left, y(state.device)], [plot.width - plot.right, y(state.device)]], colourOf("ink"), 1.25, [10, 4]);
  drawText(pen, "device: " + size(state.device), plot.left + 6, y(state.device) - 3, colourOf("ink"), "left", "bottom");
}

// One strip for each kind: how much of it fell into each pixel.
function drawMarks(pen, run) {
  const axis = plot.height - plot.bottom;
  const strip = plot.marks / MARKS.length;
  MARKS.forEach(([name, label], row) => {
    const series = run.series, top = axis - plot.marks + row * strip + 3;
    const [first, last] = shownSamples(series);
    let most = 1;
    for (let i = 1; i < series.event.length; i++) most = Math.max(most, series[name][i] - series[name][i - 1]);
    pen.fillStyle = colourOf(run.id);
    for (let i = Math.max(1, first); i <= last; i++) {
      const n = series[name][i] - series[name][i - 1];
      if (n <= 0) continue;
      const height = Math.max(2, (strip - 4) * Math.sqrt(n / most));
      pen.fillRect(Math.max(plot.left, xOf(series.event[i])), top + strip - 4 - height, 1.5, height);
    }
    drawText(pen, label + " " + count(series[name][series[name].length - 1]), plot.width - plot.right + 10, top + strip / 2 - 2, colourOf("soft"));
  });
}

function drawCursor(pen, bottom) {
  if (state.cursor === null || state.cursor < state.from || state.cursor > state.to) return;
  const x = xOf(state.cursor);
  drawPath(pen, [[x, plot.top], [x, bottom]], colourOf("ink"), 1.5);
  pen.fillStyle = colourOf("ink");
  pen.beginPath();
  for (const [at, up] of [[x - 5, bottom + 6], [x + 5, bottom + 6], [x, bottom - 2]]) pen.lineTo(at, up);
  pen.fill();
}

function paintTimeline() {
  const [pen, width, height] = fit(byId("timeline"));
  plot.width = width;
  plot.height = height;
  plot.right = width < 440 ? 92 : 128;
  plot.before = state.recording.blocks_before && state.from <= firstEvent(state.recording) ? 22 : 0;
  plot.left = (width < 520 ? 36 : 52) + plot.before;
  const bands = bandsOf(state.recording, state.split);
  plot.marks = bands || height < 280 ? 0 : 62;
  const bottom = height - plot.bottom - plot.marks - 6;
  const top = topOf(state.recording);
  const y = (bytes) => bottom - bytes / top * (bottom - plot.top);
  const run = runOf(state.split) ?? state.recording.runs[0];
  plot.toBytes = (at) => (bottom - at) / (bottom - plot.top) * top;
  pen.clearRect(0, 0, width, height);
  drawGrid(pen, y, top);
  drawBefore(pen, y, bottom);
  pen.save();
  pen.beginPath();
  pen.rect(plot.left, 0, width - plot.left - plot.right, height);
  pen.clip();
  if (bands) drawBands(pen, bands, y); else drawAreas(pen, run, y);
  for (const other of state.recording.runs) if (other !== run) drawLine(pen, other, y);
  drawLine(pen, run, y);
  drawRecorded(pen, y);
  drawDevice(pen, y, top);
  drawRefusals(pen, bottom);
  drawCursor(pen, bottom);
  pen.restore();
  if (plot.marks) drawMarks(pen, run);
  drawSteps(pen, bottom);
  drawLabels(pen, y, bottom);
  describeCursor(run, bands);
}

// ---- In words -----------------------------------------------------------------------------------

// Whether the event is the refused request that the verdict is about.
const isRefused = (recording, event) => recording.summary.refused?.replay_event === event;

function readingAt(run, event) {
  const series = run.series, i = sampleAt(series, event);
  const parts = AREAS.filter((name) => name !== "live" && series[name][i] > 0).map((name) => size(series[name][i]) + " " + name);
  const wanted = isRefused(state.recording, event) ? `${size(state.recording.summary.refused.needed_bytes)} needed` : `${size(event === state.recording.peak_event ? state.recording.live_peak : series.asked[i])} live`;
  return `${stepName(state.recording, event)}: ${holds(run)} ${size(series.held[i])}${parts.length ? ` (${parts.join(", ")})` : ""} for ${wanted}`;
}

function describeCursor(run, bands) {
  const others = state.recording.runs.filter((other) => other !== run)
    .map((other) => `${holds(other)} ${size(other.series.held[sampleAt(other.series, state.cursor)])}`);
  const said = bands ? `At ${describeBands(bands)}.` : `At ${readingAt(run, state.cursor)}; ${others.join(", ")}.`;
  const text = said;
  byId("readout").textContent = text;
  const canvas = byId("timeline");
  canvas.setAttribute("aria-valuemin", firstEvent(state.recording));
  canvas.setAttribute("aria-valuemax", state.recording.replay_events - 1);
  canvas.setAttribute("aria-valuenow", state.cursor);
  canvas.setAttribute("aria-valuetext", text);
}

function paintTimeTable() {
  const recording = state.recording, n = Math.min(recording.n_steps > 1 ? recording.n_steps : 20, 60);
  const body = element("tbody");
  for (let k = 1; k <= n; k++) {
    const step = Math.round(k * recording.n_steps / n);
    const event = recording.n_steps > 1 ? (recording.step_ends[step - 1] ?? recording.replay_events) - 1 : Math.round(k * recording.replay_events / n) - 1;
    const first = recording.runs[0].series;
    body.append(element("tr", {}, element("th", { scope: "row", text: count(recording.n_steps > 1 ? step : numberOf(recording, event)) }),
      element("td", { text: size(first.asked[sampleAt(first, event)]) }),
      ...recording.runs.map((run) => element("td", { text: size(run.series.held[sampleAt(run.series, event)]) }))));
  }
  byId("time-table").replaceChildren(heading(recording.n_steps > 1 ? "at the end of step" : "behind event", "live", ...recording.runs.map((run) => "held by " + run.name)), body);
}

function paintLegend() {
  const recording = state.recording, bands = bandsOf(recording, state.split);
  const items = bands ? bands.map((band, i) => [{ style: `background: ${BAND_COLOURS[i % BAND_COLOURS.length]}` }, band.name]) : AREAS.map((name) => [{ class: "is-" + name }, name]);
  byId("legend").replaceChildren(...items.map(([look, name]) => element("li", {}, element("i", look), name)));
  byId("time-note").textContent = "Lines: what each allocator holds" + (recording.recorded_held ? "; dotted: what PyTorch's own held, as recorded" : "") + ". Areas: " +
    (bands ? "what the program's live memory is for, at the fullest moments." : `what ${runOf(state.split).name} does with it, at the fullest moment of each pixel.`);
  chooser("split", waysToSplit(recording), state.split, (id) => { state.split = id; });
}

// By code first, where stacks were recorded.
function waysToSplit(recording) {
  const ways = Object.keys(recording.over_time.by).sort((a, b) => (b === "stack") - (a === "stack"));
  return [...ways.map((by) => ["by " + by, by === "stack" ? "by code" : "by " + by]), ...recording.runs.map((run) => [run.id, run.name])];
}

// What lies under the pointer: a band, or what the allocators hold.
function tipOfTimeline(event, x, y) {
  const bands = bandsOf(state.recording, state.split), at = Math.min(Math.max(state.from, eventAt(x)), state.to - 1);
  const band = bands && bandAt(bands, at, plot.toBytes(y));
  if (band) return showTip(event, [`${size(band.bytes)} ${band.name}`, inStep(state.recording, band.event), ...callsOfName(band.name)]);
  return showTip(event, [readingAt(runOf(state.split) ?? state.recording.runs[0], Math.round(at))]);
}

// ---- Hands --------------------------------------------------------------------------------------

function listenToTimeline() {
  const canvas = byId("timeline");
  let dragged = null;
  const local = (event) => event.clientX - canvas.getBoundingClientRect().left;
  canvas.addEventListener("pointerdown", (event) => { dragged = { from: local(event), touch: event.pointerType === "touch", last: local(event) }; canvas.setPointerCapture(event.pointerId); });
  canvas.addEventListener("pointermove", (event) => {
    if (dragged && dragged.touch) { setRange(state.from - (eventAt(local(event)) - eventAt(dragged.last)), state.to - (eventAt(local(event)) - eventAt(dragged.last))); dragged.last = local(event); }
    else if (!dragged) {
      tipOfTimeline(event, local(event), event.clientY - canvas.getBoundingClientRect().top);
    }
  });
  canvas.addEventListener("pointerup", (event) => {
    if (!dragged) return;
    const [a, b] = [dragged.from, local(event)].sort((x, y) => x - y);
    if (!dragged.touch && b - a > 6) setRange(eventAt(a), eventAt(b));
    else if (b - a <= 6) setCursor(eventAt(a));
    dragged = null;
  });
  canvas.addEventListener("pointercancel", () => { dragged = null; });
  canvas.addEventListener("pointerleave", hideTip);
  canvas.addEventListener("dblclick", () => setRange(0, state.recording.replay_events));
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && document.activeElement !== canvas) return;
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, eventAt(local(event)));
  }, { passive: false });
  const keys = {
    ArrowLeft: () => setMoment(state.at - 1), ArrowRight: () => setMoment(state.at + 1), Home: () => setMoment(0), End: () => setMoment(Infinity),
    "+": () => zoom(0.5, state.cursor), "=": () => zoom(0.5, state.cursor), "-": () => zoom(2, state.cursor),
    0: () => setRange(0, state.recording.replay_events), Escape: () => setRange(0, state.recording.replay_events),
  };
  canvas.addEventListener("keydown", (event) => {
    if (keys[event.key] && !event.ctrlKey && !event.metaKey) { event.preventDefault(); keys[event.key](); }
  });
  const actions = { in: () => zoom(0.5, state.cursor), out: () => zoom(2, state.cursor), left: () => pan(-0.5), right: () => pan(0.5),
    all: () => setRange(0, state.recording.replay_events) };
  for (const button of document.querySelectorAll("[data-zoom]")) button.addEventListener("click", actions[button.dataset.zoom]);
}
