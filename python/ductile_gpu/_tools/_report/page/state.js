// What is shown now. A function that changes it calls show().

// hovered: what the pointer is over, in words; marked: names of code whose blocks the map outlines.
const state = { data: null, recording: null, split: "ductile", from: 0, to: 1, cursor: null, device: 80 * GIB,
  colour: "age", by: null, opened: "classic", mapped: "ductile", search: "", flame: [], hovered: null, marked: null };
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
  state.from = firstEvent(recording);
  state.to = Math.max(state.from + 1, recording.replay_events);
  state.cursor = recording.summary.moment.replay_event;
  state.by = waysToGroup(recording)[0][0];
  state.device = recording.summary.device_bytes;
  state.flame = [];
  state.marked = state.hovered = null;
  if (!recording.over_time.by.stack && state.split === "by stack") state.split = "by category";
  // Of a recording without history the end is all there is, and nothing has an age.
  state.mapped = !recording.summary.history && recording.recorded_map ? "recorded" : "ductile";
  state.colour = recording.summary.history ? "age" : "size";
  byId("name").textContent = recording.name;
  show();
}

// ---- The part of the run that is shown --------------------------------------------------------

function setRange(from, to) {
  const first = firstEvent(state.recording), end = Math.max(first + 1, state.recording.replay_events), all = end - first;
  const width = Math.min(all, Math.max(to - from, Math.min(all, 50)));
  const start = Math.min(Math.max(first, from), end - width);
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
  state.cursor = Math.round(Math.min(Math.max(firstEvent(state.recording), event), last));
  state.hovered = null;
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
