// What is shown now. A function that changes it calls show().

// cursor: the event that everything on the page is about; at: its index among the moments that are known; marked: names of
// code whose blocks the map outlines.
const state = { data: null, recording: null, split: "ductile", from: 0, to: 1, cursor: null, at: 0, device: 80 * GIB,
  colour: "age", by: null, opened: null, mapped: "ductile", search: "", flame: [], marked: null };
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
  const { moment, history } = recording.summary;
  state.recording = recording;
  state.from = firstEvent(recording);
  state.to = Math.max(state.from + 1, recording.replay_events);
  state.at = momentAt(recording, moment.replay_event);
  state.cursor = moment.replay_event;
  state.by = waysToGroup(recording)[0][0];
  state.device = recording.summary.device_bytes;
  state.flame = [];
  state.marked = null;
  state.split = recording.over_time.by.stack ? "by stack" : "ductile";
  // Of a recording without history the end is all there is, and nothing has an age.
  state.mapped = !history && recording.recorded_map ? "recorded" : "ductile";
  state.colour = recording.flame ? "code" : history ? "age" : "size";
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

// ---- The moment that the page is about ---------------------------------------------------------

// Who held what is known at the fullest moment of each part of the run, at the moment of the verdict and at the end.
function momentAt(recording, event) {
  const events = recording.over_time.event, i = sampleAt(recording.over_time, event);
  return i + 1 < events.length && events[i + 1] - event < event - events[i] ? i + 1 : i;
}

const isOfVerdict = () => state.cursor === state.recording.summary.moment.replay_event;
const isAtEnd = () => state.at === state.recording.over_time.event.length - 1;

function setMoment(at) {
  const events = state.recording.over_time.event;
  state.at = Math.min(Math.max(0, at), events.length - 1);
  state.cursor = events[state.at] ?? state.recording.summary.moment.replay_event;
  if (state.cursor < state.from || state.cursor > state.to) {
    const half = (state.to - state.from) / 2;
    setRange(state.cursor - half, state.cursor + half);
  }
  showSoon();
}

const setCursor = (event) => setMoment(momentAt(state.recording, event));

// In words: "at the refusal, event 4,325".
function momentName() {
  const recording = state.recording, { kind } = recording.summary.moment;
  const number = numberOf(recording, state.cursor), event = number ? "event " + count(number) : "when the recording began", where = recording.n_steps > 1 ? `${stepName(recording, state.cursor)}, ${event}` : event;
  if (!recording.summary.history) return "at the end of the run";
  if (isOfVerdict()) return `at the ${kind === "refusal" ? "refusal" : "peak"}, ${where}`;
  return isAtEnd() ? "at the end of the run" : number || recording.n_steps > 1 ? "at " + where : event;
}

// What is counted at the moment, in words: where a request was refused it is counted, too.
const countedName = () => `live ${isOfVerdict() && state.recording.summary.moment.kind === "refusal" ? "and asked for " : ""}${momentName()}`;

// What a row holds at the moment; of the verdict's its blocks are known, too.
const bytesOf = (row) => isOfVerdict() ? row.bytes : row.moments[state.at] ?? 0;

// A row of buttons, one of which is pressed.
function chooser(id, choices, current, then) {
  const field = byId(id);
  for (const old of field.querySelectorAll("button")) old.remove();
  for (const [key, label] of choices) {
    field.append(element("button", { type: "button", "aria-pressed": String(key === current), "data-key": key,
      text: label, on: { click: () => { then(key); show(); byId(id).querySelector(`[data-key="${key}"]`).focus(); } } }));
  }
}
