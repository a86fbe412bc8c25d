// The first screen: what happened, a bar of it to scale, who holds most, and why.

// Pieces of one bar: what they are, what they are called, bytes.
const PIECES = { live: "live", pending: "pending", free: "free", cached: "cached", kept: "free in pools of their own", held: "held", room: "free on the device", others: "other processes, contexts, libraries", asked: "asked" };

function pieceText(kind, bytes, found) {
  const holes = kind === "free" && found?.holes ? ` in ${plural(found.holes, "hole", "holes")}` : "";
  const kept = kind === "free" && found?.in_pools_bytes ? `, of it ${size(found.in_pools_bytes)} in pools` : "";
  return `${size(bytes)} ${PIECES[kind]}${holes}${kept}`;
}

// rows of {label, pieces: [[kind, bytes, found]], edges: [[bytes, label]]}, all to one scale.
function barRow(row, whole) {
  let at = 0;
  const shown = row.pieces.filter(([, bytes]) => bytes > 0), parts = [];
  for (const [kind, bytes, found] of shown) {
    const text = pieceText(kind, bytes, found);
    parts.push(element("span", { class: "is-" + kind, title: text, style: `left: ${100 * at / whole}%; width: ${100 * bytes / whole}%`, text: bytes / whole > 0.3 ? text : bytes / whole > 0.12 ? size(bytes) : "" }));
    at += bytes;
  }
  for (const [bytes] of row.edges ?? []) parts.push(element("span", { class: "edge", style: `left: calc(${100 * bytes / whole}% - 1px)` }));
  const said = [row.label, ...shown.map(([kind, bytes, found]) => pieceText(kind, bytes, found)), ...(row.edges ?? []).map(([, label]) => label)].join(", ");
  return element("div", { class: "barrow" }, element("span", { class: "label", text: row.label }),
    element("div", { class: row.thin ? "track thin" : "track", role: "img", "aria-label": said }, ...parts));
}

function refusedRows(found) {
  const known = [["live", found.live_bytes], ["pending", found.pending_bytes]];
  const device = [...known, ["free", found.free_bytes ?? 0, found], ["room", found.device_free_bytes], ["others", found.others_bytes ?? 0]];
  const end = found.device_bytes ?? 0;
  return [{ label: found.device_bytes ? "the device, " + size(end) : "what was known", pieces: device },
    { label: "needed, " + size(found.needed_bytes), pieces: [...known, ["kept", found.in_pools_bytes], ["asked", found.request_bytes]], edges: end ? [[end, "the device ends at " + size(end)]] : [] }];
}

const freeInPools = (summary) => summary.pools.reduce((sum, pool) => sum + pool.free_bytes, 0);

// What PyTorch's own allocator held at the moment; in parts where that is known, which is at the end.
function recordedRow(recording) {
  const found = recording.summary.recorded, series = recording.recorded_held;
  if (!found?.held_peak_bytes) return [];
  const free = { ...found, in_pools_bytes: recording.summary.refused ? 0 : freeInPools(recording.summary) };
  if (!recording.summary.history || isAtEnd()) return [{ label: `recorded, ${size(found.held_bytes)} held`, thin: true,
    pieces: [["live", found.live_bytes], ["pending", found.pending_bytes], ["free", found.free_bytes, free]] }];
  const held = series ? series.held[sampleAt(series, state.cursor)] : 0;
  return held ? [{ label: `recorded, ${size(held)} held`, thin: true, pieces: [["held", held]] }] : [];
}

function modelledRow(run) {
  const series = run.series, i = sampleAt(series, state.cursor);
  const kinds = AREAS.map((kind) => [kind, series[kind][i] ?? 0, kind === "free" ? { holes: series.holes[i], in_pools_bytes: series.free_in_pools[i] } : null]);
  return { label: `${run.name}, ${size(series.held[i] ?? 0)} held`, thin: true, pieces: kinds };
}

// All to one scale, which the moment does not change.
function paintBars(recording) {
  const found = recording.summary.refused, isRefusal = found && found.replayed && isOfVerdict();
  const rows = isRefusal ? refusedRows(found) : [...recordedRow(recording), ...[...recording.runs].reverse().map(modelledRow)];
  const end = (row) => Math.max(row.pieces.reduce((sum, [, bytes]) => sum + bytes, 0), ...(row.edges ?? []).map(([bytes]) => bytes));
  const whole = 1.002 * (isRefusal ? Math.max(...rows.map(end), 1) : Math.max(...recording.runs.map((run) => run.held_peak), recording.summary.recorded?.held_peak_bytes ?? 0, 1));
  const kinds = Object.keys(PIECES).filter((kind) => rows.some((row) => row.pieces.some(([of, bytes]) => of === kind && bytes > 0)));
  const marks = rows.some((row) => row.edges?.length) ? [element("li", {}, "❘ ", "end of the device")] : [];
  byId("bars").replaceChildren(...rows.map((row) => barRow(row, whole)),
    element("ul", { class: "legend" }, ...kinds.map((kind) => element("li", {}, element("i", { class: "is-" + kind }), PIECES[kind])), ...marks));
}

// A number stays with its unit.
const unbroken = (text) => text.replace(/(\d) (bytes|[KMGT]iB|%)/g, "$1\u00a0$2");

function withCode(text) {
  return text.split("`").map((piece, i) => i % 2 ? element("code", { text: piece }) : piece);
}

// ---- Who holds most at the moment -----------------------------------------------------------

// By code where that is known; what was refused holds nothing.
function namesNow() {
  const sums = new Map();
  for (const row of state.recording.who.stack ?? state.recording.who.category) {
    if (!row.refused) sums.set(row.name, (sums.get(row.name) ?? 0) + bytesOf(row));
  }
  return [...sums].map(([name, bytes]) => ({ name, bytes })).filter((row) => row.bytes > 0).sort((a, b) => b.bytes - a.bytes);
}

const holdersNow = () => namesNow().slice(0, 3);
const liveNow = () => namesNow().reduce((sum, row) => sum + row.bytes, 0);
const share100 = (bytes, whole) => (whole > 0 ? (100 * bytes / whole).toFixed(0) + " %" : "");

function paintHolders() {
  const rows = holdersNow(), whole = liveNow();
  byId("holders").replaceChildren(...rows.map((row) => element("li", { "data-bytes": row.bytes }, element("span", { class: "bytes", text: size(row.bytes) }),
    element("span", {}, row.name, " ", element("span", { class: "part", text: unbroken(share100(row.bytes, whole)) }), element("i", { style: `width: ${100 * row.bytes / Math.max(whole, 1)}%` })))));
}

// Buttons for the moments that one asks for first.
function paintMoment() {
  const { moment, history } = state.recording.summary, events = state.recording.over_time.event;
  byId("moment").textContent = `Everything below is ${momentName()}.`;
  byId("moments").hidden = !history || events.length < 2;
  chooser("moments", [["verdict", moment.kind === "refusal" ? "refusal" : "peak"], ["end", "end"]], isOfVerdict() ? "verdict" : isAtEnd() ? "end" : "",
    (key) => setMoment(key === "end" ? events.length - 1 : momentAt(state.recording, moment.replay_event)));
}

function paintFirst() {
  const recording = state.recording;
  byId("headline").replaceChildren(...recording.headline.flatMap(([text, isStrong]) => isStrong ? [element("b", { text: unbroken(text) })] : withCode(unbroken(text))));
  const shown = ["held by", "moment"]; // elsewhere on this screen
  const lines = recording.lines.filter(([label]) => !shown.includes(label));
  byId("lines").replaceChildren(...lines.flatMap(([label, text]) => [element("dt", { text: label }), element("dd", {}, ...withCode(text))]));
  byId("details").hidden = lines.length === 0;
  byId("details").open = document.body.clientWidth > 960;
}
