// What the page knows, and how it says sizes.

const KIB = 1024, MIB = 1024 * KIB, GIB = 1024 * MIB;
const byId = (id) => document.getElementById(id);

// As Python rounds: what lies in the middle goes to the even neighbour.
function fixed(value, digits) {
  const scaled = value * 10 ** digits, whole = Math.floor(scaled);
  if (scaled - whole !== 0.5) return value.toFixed(digits);
  return ((whole % 2 === 0 ? whole : whole + 1) / 10 ** digits).toFixed(digits);
}

// The same words as the command line: "31.56 GiB", "12.3 MiB".
function size(bytes) {
  const sign = bytes < 0 ? "−" : "";
  let value = Math.abs(bytes);
  for (const unit of ["bytes", "KiB", "MiB"]) {
    if (value < 1024) return sign + (unit === "bytes" ? fixed(value, 0) : fixed(value, 1)) + " " + unit;
    value /= 1024;
  }
  const unit = value < 1024 ? " GiB" : " TiB";
  if (value >= 1024) value /= 1024;
  return sign + fixed(value, value < 100 ? 2 : 1) + unit;
}

const count = (n) => n.toLocaleString("en-US");
const plural = (n, one, many) => count(n) + " " + (n === 1 ? one : many);

function element(name, options = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(options)) {
    if (key === "text") made.textContent = value;
    else if (key === "on") for (const [event, then] of Object.entries(value)) made.addEventListener(event, then);
    else if (value !== null && value !== undefined) made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

async function unpack(text) {
  const bytes = Uint8Array.from(atob(text.trim()), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

// Numbers are stored as differences.
function undelta(list, unit = 1) {
  let last = 0;
  return list.map((difference) => (last += difference) * unit);
}

const IN_KIB = ["asked", "held", "live", "pending", "free", "cached", "free_in_pools"];

function openRecording(recording, index) {
  recording.index = index;
  recording.runs.forEach(openRun);
  recording.over_time = openBands(recording.over_time);
  for (const rows of Object.values(recording.who)) for (const row of rows) row.moments = undelta(row.moments);
  recording.flame = openFlame(recording.flame, recording.who.stack);
  if (recording.recorded_held) {
    const [event, held] = recording.recorded_held.map((list) => undelta(list));
    recording.recorded_held = { event, held };
  }
}

function openRun(run) {
  const series = {};
  for (const [name, list] of Object.entries(run.series)) {
    series[name] = undelta(list, IN_KIB.includes(name) ? KIB : 1);
  }
  run.series = series;
  run.map.events = undelta(run.map.events);
}

// How many numbers of an ascending list are not above a value.
function upTo(list, value) {
  let low = 0, high = list.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (list[middle] <= value) low = middle + 1; else high = middle;
  }
  return low;
}

// Steps count from 1.
const stepOf = (recording, event) => 1 + Math.min(upTo(recording.step_ends, event), recording.n_steps - 1);

// Blocks from before the recording are events of the replay, and not of the run: they come at once.
const firstEvent = (recording) => Math.max(0, recording.blocks_before - 1);
// As Recording.number_of.
const numberOf = (recording, event) => Math.max(0, Math.round(event) + 1 - recording.blocks_before - recording.refusals.filter((of) => of.replayed && of.event < Math.round(event)).length);

const stepName = (recording, event) => recording.n_steps > 1 ? "step " + count(stepOf(recording, event))
  : numberOf(recording, event) === 0 ? "the beginning" : "event " + count(numberOf(recording, event));
const inStep = (recording, event) => (recording.n_steps > 1 ? "in " : "at ") + stepName(recording, event);

// The index of the last sample at or before an event.
const sampleAt = (series, event) => Math.max(0, upTo(series.event, event) - 1);

const colourOf = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
