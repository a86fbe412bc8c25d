// The state in the address, so that a link shows what its sender saw.

function addressOf() {
  const recording = state.recording, parts = { e: numberOf(recording, state.cursor), by: state.by, gib: state.device / GIB, areas: state.split, map: state.mapped };
  if (state.data.recordings.length > 1) parts.r = recording.index;
  return "#" + new URLSearchParams(parts);
}

function writeAddress() {
  const wanted = addressOf();
  if (location.hash !== wanted) history.replaceState(null, "", wanted);
}

// What is not there, or not of this page, changes nothing.
function readAddress() {
  const asked = new URLSearchParams(location.hash.slice(1)), all = state.data.recordings;
  const recording = all[Number(asked.get("r") ?? NaN)] ?? (asked.has("e") && all.length === 1 ? all[0] : null);
  if (recording && recording !== state.recording) choose(recording);
  const one = (name, known) => known.includes(asked.get(name)) ? asked.get(name) : null;
  state.by = one("by", waysToGroup(state.recording).map(([key]) => key)) ?? state.by;
  state.split = one("areas", waysToSplit(state.recording).map(([key]) => key)) ?? state.split;
  state.mapped = one("map", waysToMap(state.recording).map(([key]) => key)) ?? state.mapped;
  const gib = Number(asked.get("gib"));
  if (gib > 0 && Number.isFinite(gib)) state.device = Math.round(gib * GIB);
  if (asked.has("e")) goToNumber(Number(asked.get("e")));
}

// The moment of an event as it is numbered; that of the verdict where it has that number.
function goToNumber(number) {
  const recording = state.recording, distance = (event) => Math.abs(numberOf(recording, event) - number);
  const own = recording.summary.moment.replay_event, events = [own, ...recording.over_time.event];
  const best = events.reduce((a, b) => (distance(b) < distance(a) ? b : a));
  if (Number.isFinite(number)) setCursor(best);
}
