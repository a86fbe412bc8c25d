// The map: time across, addresses down. One allocator is drawn large, the others beside it.

const FIRST_LIVE = 3;
const SIZE_LABELS = ["below 1 MiB", "1–4 MiB", "4–16 MiB", "16–64 MiB", "64–256 MiB", "256 MiB–1 GiB", "1–4 GiB", "4 GiB and more"];
const AGE_LABELS = ["below 1/16", "1/16–1/4", "1/4–1", "1–4", "4–16", "16–64", "64–256", "256 and more"];
// From young to old, from small to large: one hue, told apart by lightness alone.
const RAMP = ["#c3d2e2", "#a6bbd2", "#8aa4c1", "#6f8eb0", "#56789e", "#40638b", "#2c4e76", "#1a3a5f"];
const RAMP_DARK = ["#2a4260", "#385474", "#486789", "#5a7b9e", "#6f90b3", "#87a6c7", "#a3bedb", "#c3d7ee"];
const STREAM_COLOURS = ["#30638e", "#e09f3e", "#0b7a57", "#8d5a97", "#d1495b", "#5f9ea0", "#b5838d", "#6b705c"];

const isDark = () => matchMedia("(prefers-color-scheme: dark) and (not print)").matches;
const ramp = () => (isDark() ? RAMP_DARK : RAMP);

function partsOf(cell) {
  const code = cell - FIRST_LIVE;
  return { stream: code >> 6, size: (code >> 3) & 7, age: code & 7 };
}

// Free memory shows the hatch behind the picture: it has no colour of its own.
function colourOfCell(cell, kind) {
  if (cell === 0) return colourOf("paper");
  if (cell === 1) return null;
  if (cell === 2) return colourOf("pending");
  const part = partsOf(cell)[kind];
  return kind === "stream" ? STREAM_COLOURS[part % STREAM_COLOURS.length] : ramp()[part];
}

function rgb(text) {
  const number = parseInt(text.slice(1), 16);
  return [number >> 16, (number >> 8) & 255, number & 255];
}

// Calls put(x, y, cell) for each cell; columns are runs of equal ones.
function eachCell(columns, put) {
  columns.forEach((column, x) => {
    let y = 0;
    for (let i = 0; i < column.length; i += 2) for (let n = column[i]; n > 0; n--, y++) put(x, y, column[i + 1]);
  });
}

function cellAt(columns, x, y) {
  let at = 0;
  for (let i = 0; i < columns[x].length; i += 2) {
    at += columns[x][i];
    if (y < at) return columns[x][i + 1];
  }
  return 0;
}

// What the recording knows of its own allocator has neither age nor stream.
const kindOf = (one) => (state.colour === "code" || one.id !== "recorded" ? state.colour : "size");

// As the timeline has it by code: the place among the bands; what is in none has the last one's.
function bandOfStack() {
  const bands = state.recording.over_time.by.stack ?? [], names = state.recording.stack_names, place = new Map(bands.map((band, i) => [band.name, i]));
  const others = BAND_COLOURS.length - 1, before = place.get("allocated before the recording began");
  return (stack) => (stack ? place.get(names.names[names.of[stack]]) : before) ?? others;
}

// The map as a picture of one pixel a cell. Blocks of marked code keep their colour, others fade.
function pictureOf(one) {
  const map = one.map, picture = document.createElement("canvas"), marked = markedStacks();
  picture.width = Math.max(1, map.columns.length);
  picture.height = map.rows;
  const pen = picture.getContext("2d"), pixels = pen.createImageData(picture.width, picture.height), known = new Map();
  if (kindOf(one) === "code") paintCode(map, picture.width, pixels, marked);
  else eachCell(map.columns, (x, y, cell) => {
    if (!known.has(cell)) { const colour = colourOfCell(cell, kindOf(one)); known.set(cell, colour && rgb(colour)); }
    const colour = known.get(cell);
    if (colour) pixels.data.set([...colour, cell >= FIRST_LIVE && marked ? 90 : 255], 4 * (y * picture.width + x));
  });
  if (marked && map.stacks) {
    const colour = rgb(colourOf("asked"));
    eachCell(map.stacks, (x, y, stack) => { if (marked.has(stack)) pixels.data.set([...colour, 255], 4 * (y * picture.width + x)); });
  }
  pen.putImageData(pixels, 0, 0);
  return picture;
}

function paintCode(map, width, pixels, marked) {
  const bandOf = bandOfStack(), colours = BAND_COLOURS.map(rgb), states = new Uint32Array(width * map.rows);
  const put = (x, y, colour, alpha) => pixels.data.set([...colour, alpha], 4 * (y * width + x));
  eachCell(map.columns, (x, y, cell) => {
    states[y * width + x] = cell;
    const plain = cell < FIRST_LIVE ? colourOfCell(cell, "age") : null;
    if (plain) put(x, y, rgb(plain), 255);
    if (cell >= FIRST_LIVE && !map.stacks) put(x, y, colours[bandOf(0) % colours.length], 255);
  });
  eachCell(map.stacks ?? [], (x, y, stack) => {
    if (states[y * width + x] >= FIRST_LIVE) put(x, y, colours[bandOf(stack) % colours.length], marked ? 90 : 255);
  });
}

function markedStacks() {
  if (!state.marked) return null;
  const names = state.recording.stack_names, found = new Set();
  names.of.forEach((name, stack) => { if (stack && state.marked.has(names.names[name])) found.add(stack); });
  return found;
}

const recordedName = (recording) => recording.summary.refused?.holes != null ? "recorded, at the refusal" : "recorded, at the end";
const waysToMap = (recording) => mapsOf(recording).map((one) => [one.id, one.name]);

function mapsOf(recording) {
  const recorded = recording.recorded_map ? [{ id: "recorded", name: recordedName(recording), map: recording.recorded_map }] : [];
  return [...recording.runs.map((run) => ({ id: run.id, name: run.name, map: run.map })), ...recorded];
}

let pictures = { key: null, of: {} };

function freshPictures() {
  const key = [state.recording.index, state.colour, colourOf("paper"), [...(state.marked ?? [])].join()].join();
  if (pictures.key !== key) pictures = { key, of: Object.fromEntries(mapsOf(state.recording).map((one) => [one.id, pictureOf(one)])) };
  return pictures.of;
}

// A column stands from its event to the next one's; that of the recording's end stands everywhere.
function spansOf(one) {
  const events = one.map.events, end = state.recording.replay_events;
  if (one.id === "recorded" || events.length < 2) return [[state.from, state.to]];
  return events.map((event, i) => [event, i + 1 < events.length ? events[i + 1] : end]);
}

function drawMap(canvas, one, picture) {
  const [pen, width, height] = fit(canvas);
  const x = (event) => (event - state.from) / (state.to - state.from) * width;
  const used = height * one.map.rows * one.map.row_bytes / extentOf(canvas, one);
  pen.clearRect(0, 0, width, height);
  pen.fillStyle = fillOf(pen, "free");
  pen.fillRect(0, 0, width, used);
  pen.imageSmoothingEnabled = false;
  spansOf(one).forEach(([from, to], i) => {
    if (to >= state.from && from <= state.to) pen.drawImage(picture, i, 0, 1, picture.height, x(from), 0, Math.max(1, x(to) - x(from) + 0.5), used);
  });
  if (one.id !== "recorded" && state.cursor >= state.from && state.cursor <= state.to) {
    pen.fillStyle = colourOf("ink");
    pen.globalAlpha = 0.6;
    pen.fillRect(x(state.cursor), 0, 1, height);
    pen.globalAlpha = 1;
  }
}

// The large map shows all that it has and no more; the small ones beside it have one scale.
const extentOf = (canvas, one) => (canvas.closest(".large") ? one.map.rows * one.map.row_bytes : tallest());
const tallest = () => Math.max(...mapsOf(state.recording).map((one) => one.map.rows * one.map.row_bytes));

function shareOf(map) {
  const bytes = { mapped: 0, live: 0 };
  for (const column of map.columns) {
    for (let i = 0; i < column.length; i += 2) {
      if (column[i + 1] > 0) bytes.mapped += column[i];
      if (column[i + 1] >= FIRST_LIVE) bytes.live += column[i];
    }
  }
  return bytes.mapped ? bytes.live / bytes.mapped : 1;
}

// As many digits as tell it from all and from nothing.
function percent(part) {
  const shown = (100 * part).toFixed(0);
  return part < 1 && shown === "100" ? "more than 99" : shown;
}

function makeMaps() {
  const all = mapsOf(state.recording), ordered = [all.find((one) => one.id === state.mapped) ?? all[0], ...all.filter((one) => one.id !== state.mapped)];
  byId("maps").replaceChildren(...ordered.map((one, i) => element("figure", { class: i === 0 ? "large" : "" }, element("h3", { text: one.name }),
    element("canvas", { id: "map-" + one.id, "data-map": one.id, role: "img",
      "aria-label": `Map of ${one.id === "recorded" ? "what PyTorch's allocator held at the end" : one.name + "'s memory"}: ${percent(shareOf(one.map))} per cent of what is mapped is live, the rest lies free between.` }),
    element("figcaption", {}, element("span", { text: size(one.map.rows * one.map.row_bytes) + " of addresses" }),
      element("span", { text: `${percent(shareOf(one.map))} % of mapped memory live` })))));
}

function paintMaps() {
  const key = state.recording.index + state.mapped;
  if (byId("maps").dataset.of !== key) {
    byId("maps").dataset.of = key;
    makeMaps();
  }
  const fresh = freshPictures();
  for (const one of mapsOf(state.recording)) drawMap(byId("map-" + one.id), one, fresh[one.id]);
}

// What lies under a place of a map: the code that allocated it, as far as it is known.
function describeCell(canvas, one, event, part) {
  const spans = spansOf(one), x = Math.max(0, spans.findIndex(([from, to]) => event >= from && event < to));
  const y = Math.floor(part * extentOf(canvas, one) / one.map.row_bytes), when = one.id === "recorded" ? "" : inStep(state.recording, event) + ", ";
  if (y >= one.map.rows) return [`${one.name}, ${when}no memory there`];
  const cell = cellAt(one.map.columns, x, y);
  if (cell < FIRST_LIVE) return [`${one.name}, ${when}${["no memory there", "free", "pending"][cell]}`];
  const parts = partsOf(cell), stack = one.map.stacks ? cellAt(one.map.stacks, x, y) : 0, names = state.recording.stack_names;
  const name = stack ? names.names[names.of[stack]] : null;
  const more = one.id === "recorded" ? "" : `, ${ageText(parts.age, event)}stream ${state.recording.streams[parts.stream] ?? parts.stream}`;
  return [`${one.name}, ${when}live: ${name ? name + ", " : ""}${SIZE_LABELS[parts.size]}${more}`, ...(name ? callsOfName(name) : [])];
}

// Of what may be older than the recording no age is known.
function ageText(age, event) {
  const recording = state.recording, most = [1 / 16, 1 / 4, 1, 4, 16, 64, 256, Infinity][age];
  const passed = recording.n_steps > 1 ? stepOf(recording, event) : 1;
  return recording.blocks_before && most >= passed ? "perhaps from before the recording, " : `${AGE_LABELS[age]} ${ageUnit()} old, `;
}

function listenToMaps() {
  byId("maps").addEventListener("pointermove", (event) => {
    const one = mapsOf(state.recording).find((map) => map.id === event.target.dataset?.map);
    if (!one) return;
    const box = event.target.getBoundingClientRect(), at = state.from + (event.clientX - box.left) / box.width * (state.to - state.from);
    const said = describeCell(event.target, one, at, (event.clientY - box.top) / box.height);
    byId("map-readout").textContent = said[0];
    showTip(event, said);
  });
  byId("maps").addEventListener("pointerleave", hideTip);
}

const ageUnit = () => (state.recording.n_steps > 1 ? "steps" : "of the run");

function classesShown(kind) {
  const found = new Set();
  for (const run of state.recording.runs) {
    for (const column of run.map.columns) {
      for (let i = 1; i < column.length; i += 2) if (column[i] >= FIRST_LIVE) found.add(partsOf(column[i])[kind]);
    }
  }
  return [...found].sort((a, b) => a - b);
}

function paintMapLegend() {
  const bands = state.recording.over_time.by.stack ?? [];
  const names = { age: (n) => AGE_LABELS[n], size: (n) => SIZE_LABELS[n], stream: (n) => String(state.recording.streams[n] ?? n) };
  const items = state.colour === "code" ? bands.map((band, i) => [{ style: `background: ${BAND_COLOURS[i % BAND_COLOURS.length]}` }, band.name]) : classesShown(state.colour).map((part) => [{ style: `background: ${state.colour === "stream" ? STREAM_COLOURS[part % STREAM_COLOURS.length] : ramp()[part]}` }, names[state.colour](part)]);
  const heading = element("li", { text: { code: "code:", age: state.recording.n_steps > 1 ? "age in steps:" : "age, parts of the run:", size: "size:", stream: "stream:" }[state.colour] });
  items.push([{ class: "is-free" }, "free"], [{ class: "is-pending" }, "pending"]);
  byId("map-legend").replaceChildren(heading, ...items.map(([look, text]) => element("li", {}, element("i", look), text)));
  chooser("colour", [...(state.recording.flame ? [["code", "code"]] : []), ["age", "age"], ["size", "size"], ["stream", "stream"]], state.colour, (key) => { state.colour = key; });
  chooser("mapped", waysToMap(state.recording), state.mapped, (key) => { state.mapped = key; state.marked = null; });
}
