// The first screen: what happened, a bar of it to scale, who holds most, and why.

// Pieces of one bar: what they are, what they are called, bytes.
const PIECES = { live: "live", pending: "pending", free: "free", cached: "cached", room: "free on the device", others: "other processes, contexts, libraries", asked: "asked" };

function pieceText(kind, bytes, found) {
  const holes = kind === "free" && found?.holes ? ` in ${plural(found.holes, "hole", "holes")}` : "";
  return `${size(bytes)} ${PIECES[kind]}${holes}`;
}

// rows of {label, pieces: [[kind, bytes, found]], edges: [[bytes, label]]}, all to one scale.
function barRow(row, whole) {
  let at = 0;
  const shown = row.pieces.filter(([, bytes]) => bytes > 0), parts = [];
  for (const [kind, bytes, found] of shown) {
    const text = pieceText(kind, bytes, found);
    parts.push(element("span", { class: "is-" + kind, title: text, style: `left: ${100 * at / whole}%; width: ${100 * bytes / whole}%`, text: bytes / whole > 0.07 ? text : "" }));
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
    { label: "needed, " + size(found.needed_bytes), pieces: [...known, ["asked", found.request_bytes]], edges: end ? [[end, "the device ends at " + size(end)]] : [] }];
}

function recordedRow(found) {
  return { label: "recorded at the end, " + size(found.held_bytes), thin: true,
    pieces: [["live", found.live_bytes], ["pending", found.pending_bytes], ["free", found.free_bytes, found]] };
}

function heldRows(recording) {
  const rows = [], recorded = recording.summary.recorded;
  if (recorded?.held_bytes) rows.push(recordedRow(recorded));
  for (const run of [...recording.runs].reverse()) {
    const series = run.series, i = series.held.indexOf(Math.max(...series.held));
    const kinds = AREAS.map((kind) => [kind, i < 0 ? 0 : series[kind][i]]);
    rows.push({ label: `${run.name}, ${size(run.held_peak)}`, thin: true, pieces: kinds, edges: run.min_capacity ? [[run.min_capacity, "completes from " + size(run.min_capacity)]] : [] });
  }
  return rows;
}

function paintBars(recording) {
  const found = recording.summary.refused, rows = found && found.replayed ? refusedRows(found) : heldRows(recording);
  const end = (row) => Math.max(row.pieces.reduce((sum, [, bytes]) => sum + bytes, 0), ...(row.edges ?? []).map(([bytes]) => bytes));
  const whole = 1.002 * Math.max(...rows.map(end), 1);
  const kinds = Object.keys(PIECES).filter((kind) => rows.some((row) => row.pieces.some(([of, bytes]) => of === kind && bytes > 0)));
  const marks = rows.some((row) => row.edges?.length) ? [element("li", {}, "❘ ", found ? "end of the device" : "completes from here on; without a cap it holds the bar")] : [];
  byId("bars").replaceChildren(...rows.map((row) => barRow(row, whole)),
    element("ul", { class: "legend" }, ...kinds.map((kind) => element("li", {}, element("i", { class: "is-" + kind }), PIECES[kind])), ...marks));
}

// A number stays with its unit.
const unbroken = (text) => text.replace(/(\d) (bytes|[KMGT]iB)/g, "$1\u00a0$2");

function withCode(text) {
  return text.split("`").map((piece, i) => i % 2 ? element("code", { text: piece }) : piece);
}

function paintFirst() {
  const recording = state.recording, summary = recording.summary;
  byId("headline").replaceChildren(...recording.headline.map(([text, isStrong]) => isStrong ? element("b", { text: unbroken(text) }) : unbroken(text)));
  paintBars(recording);
  const most = Math.max(...summary.holders.map((row) => row.bytes), 1);
  byId("holders").replaceChildren(...summary.holders.map((row) => element("li", { "data-bytes": row.bytes }, element("span", { class: "bytes", text: size(row.bytes) }),
    element("span", {}, row.name, element("i", { style: `width: ${100 * row.bytes / most}%` })))));
  const shown = ["held by", "needed", "without a cap"]; // elsewhere on this screen
  const lines = recording.lines.filter(([label]) => !shown.includes(label));
  byId("lines").replaceChildren(...lines.flatMap(([label, text]) => [element("dt", { text: label }), element("dd", {}, ...withCode(text))]));
  byId("lines").parentElement.hidden = lines.length === 0;
}
