// The map: time across, addresses down.

const FIRST_LIVE = 3;
const SIZE_LABELS = ["below 1 MiB", "1–4 MiB", "4–16 MiB", "16–64 MiB", "64–256 MiB", "256 MiB–1 GiB", "1–4 GiB", "4 GiB and more"];
const AGE_LABELS = ["below 1/16", "1/16–1/4", "1/4–1", "1–4", "4–16", "16–64", "64–256", "256 and more"];
// From young to old, from small to large: told apart by lightness alone.
const RAMP = ["#fde725", "#a0da39", "#4ac16d", "#1fa187", "#277f8e", "#365c8d", "#46327e", "#440154"];
const STREAM_COLOURS = ["#30638e", "#e09f3e", "#0b7a57", "#8d5a97", "#d1495b", "#5f9ea0", "#b5838d", "#6b705c"];

function partsOf(cell) {
  const code = cell - FIRST_LIVE;
  return { stream: code >> 6, size: (code >> 3) & 7, age: code & 7 };
}

function colourOfCell(cell) {
  if (cell === 0) return null;
  if (cell === 1) return colourOf("free");
  if (cell === 2) return colourOf("pending");
  const part = partsOf(cell)[state.colour];
  return state.colour === "stream" ? STREAM_COLOURS[part % STREAM_COLOURS.length] : RAMP[part];
}

function rgb(text) {
  const number = parseInt(text.slice(1), 16);
  return [number >> 16, (number >> 8) & 255, number & 255];
}

// The map as a picture of one pixel a cell.
function pictureOf(map) {
  const picture = document.createElement("canvas");
  picture.width = Math.max(1, map.columns.length);
  picture.height = map.rows;
  const pen = picture.getContext("2d");
  const pixels = pen.createImageData(picture.width, picture.height);
  const known = new Map();
  map.columns.forEach((column, x) => {
    let y = 0;
    for (let i = 0; i < column.length; i += 2) {
      const cell = column[i + 1];
      if (!known.has(cell)) { const colour = colourOfCell(cell); known.set(cell, colour && rgb(colour)); }
      const colour = known.get(cell);
      for (let n = column[i]; n > 0; n--, y++) {
        if (colour) pixels.data.set([...colour, 255], 4 * (y * picture.width + x));
      }
    }
  });
  pen.putImageData(pixels, 0, 0);
  return picture;
}

let pictures = { key: null, of: {} };

function freshPictures() {
  const key = [state.recording.index, state.colour, colourOf("paper")].join();
  if (pictures.key !== key) pictures = { key, of: Object.fromEntries(state.recording.runs.map((run) => [run.id, pictureOf(run.map)])) };
  return pictures.of;
}

// A column stands from its event to the next one's.
function drawMap(canvas, run, picture) {
  const [pen, width, height] = fit(canvas);
  const events = run.map.events, x = (event) => (event - state.from) / (state.to - state.from) * width;
  pen.clearRect(0, 0, width, height);
  pen.imageSmoothingEnabled = false;
  const used = height * run.map.rows * run.map.row_bytes / tallest();
  events.forEach((event, i) => {
    const end = i + 1 < events.length ? events[i + 1] : state.recording.replay_events;
    if (end < state.from || event > state.to) return;
    pen.drawImage(picture, i, 0, 1, picture.height, x(event), 0, Math.max(1, x(end) - x(event) + 0.5), used);
  });
  if (state.cursor >= state.from && state.cursor <= state.to) {
    pen.fillStyle = colourOf("ink");
    pen.globalAlpha = 0.6;
    pen.fillRect(x(state.cursor), 0, 1, height);
    pen.globalAlpha = 1;
  }
}

// All maps have one scale.
const tallest = () => Math.max(...state.recording.runs.map((run) => run.map.rows * run.map.row_bytes));

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

function makeMaps() {
  const maps = byId("maps");
  maps.replaceChildren(...state.recording.runs.map((run) => element("figure", {}, element("h3", { text: run.name }),
    element("canvas", { id: "map-" + run.id, role: "img",
      "aria-label": `Map of ${run.name}'s memory: ${(100 * shareOf(run.map)).toFixed(0)} per cent of what is mapped is live, on average.` }),
    element("figcaption", {}, element("span", { text: size(run.map.rows * run.map.row_bytes) + " of addresses" }),
      element("span", { text: `${(100 * shareOf(run.map)).toFixed(0)} % of mapped memory live, on average` })))));
}

function paintMaps() {
  if (byId("maps").dataset.of !== String(state.recording.index)) {
    byId("maps").dataset.of = String(state.recording.index);
    makeMaps();
  }
  const fresh = freshPictures();
  for (const run of state.recording.runs) drawMap(byId("map-" + run.id), run, fresh[run.id]);
}

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
  const names = { age: (n) => AGE_LABELS[n], size: (n) => SIZE_LABELS[n], stream: (n) => String(state.recording.streams[n] ?? n) };
  const items = classesShown(state.colour).map((part) => [state.colour === "stream" ? STREAM_COLOURS[part % STREAM_COLOURS.length] : RAMP[part], names[state.colour](part)]);
  const heading = element("li", { text: { age: "age in steps:", size: "size:", stream: "stream:" }[state.colour] });
  items.push(["var(--free)", "free"], ["var(--pending)", "pending"]);
  byId("map-legend").replaceChildren(heading, ...items.map(([colour, text]) => element("li", {}, element("i", { style: "background: " + colour }), text)));
  chooser("colour", [["age", "age"], ["size", "size"], ["stream", "stream"]], state.colour, (key) => { state.colour = key; });
}
