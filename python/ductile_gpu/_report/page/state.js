// What is shown now. Whoever changes it calls show().

const state = { data: null, recording: null, split: "ductile", from: 0, to: 1, cursor: null, device: 80 * GIB,
  colour: "age", by: null, opened: "classic" };
const painters = [];

function show() {
  for (const paint of painters) paint();
}

let isAsked = false;
function showSoon() {
  if (isAsked) return;
  isAsked = true;
  requestAnimationFrame(() => { isAsked = false; show(); });
}

function choose(recording) {
  state.recording = recording;
  state.from = 0;
  state.to = Math.max(1, recording.replay_events);
  state.cursor = recording.peak_event;
  state.by = Object.keys(recording.who)[0];
  state.device = usualDeviceFor(recording) * GIB;
  byId("name").textContent = recording.name;
  show();
}

// The usual device that tells the allocators apart, or the smallest on which all complete.
function usualDeviceFor(recording) {
  const needs = recording.runs.map((run) => run.min_capacity ?? run.held_peak);
  const least = Math.min(...needs), most = Math.max(...needs);
  const usual = [24, 40, 80, 141];
  const telling = usual.find((gib) => gib * GIB >= least && gib * GIB < most);
  return telling ?? usual.find((gib) => gib * GIB >= most) ?? 141;
}

// ---- The part of the run that is shown --------------------------------------------------------

function setRange(from, to) {
  const all = Math.max(1, state.recording.replay_events);
  const width = Math.min(all, Math.max(to - from, Math.min(all, 50)));
  const start = Math.min(Math.max(0, from), all - width);
  state.from = start;
  state.to = start + width;
  showSoon();
}

function zoom(factor, around) {
  const middle = around ?? (state.from + state.to) / 2;
  setRange(middle - (middle - state.from) * factor, middle + (state.to - middle) * factor);
}

function pan(part) {
  const by = (state.to - state.from) * part;
  setRange(state.from + by, state.to + by);
}

function setCursor(event) {
  const last = state.recording.replay_events - 1;
  state.cursor = Math.round(Math.min(Math.max(0, event), last));
  if (state.cursor < state.from || state.cursor > state.to) {
    const half = (state.to - state.from) / 2;
    setRange(state.cursor - half, state.cursor + half);
  }
  showSoon();
}

// A row of buttons, one of which is pressed.
function chooser(id, choices, current, then) {
  const field = byId(id);
  for (const old of field.querySelectorAll("button")) old.remove();
  for (const [key, label] of choices) {
    field.append(element("button", { type: "button", "aria-pressed": String(key === current), "data-key": key,
      text: label, on: { click: () => { then(key); show(); byId(id).querySelector(`[data-key="${key}"]`).focus(); } } }));
  }
}
