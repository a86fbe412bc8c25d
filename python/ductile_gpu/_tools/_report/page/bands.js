// What live memory is for, over time: bands by category or by code, at the fullest moments of the run.

const BAND_COLOURS = ["#4878a8", "#d9a441", "#6b8f71", "#b0617c", "#8a7cb8", "#c9824f", "#5fa3a3", "#9c8f5c", "#7a8796", "#c2a6c9", "#93b06a", "#b5a08c", "#a3acb5"];

function openBands(found) {
  const by = Object.fromEntries(Object.entries(found.by).map(([name, rows]) => [name, rows.map((row) => ({ name: row.name, bytes: undelta(row.bytes, KIB) }))]));
  return { event: undelta(found.events), by };
}

const bandsOf = (recording, split) => split.startsWith("by ") ? recording.over_time.by[split.slice(3)] : null;

function drawBands(pen, bands, y) {
  const events = state.recording.over_time.event, below = events.map(() => 0), labels = [];
  bands.forEach((band, number) => {
    pen.fillStyle = BAND_COLOURS[number % BAND_COLOURS.length];
    let best = null;
    events.forEach((event, i) => {
      const from = Math.max(plot.left, snap(xOf(event))), to = snap(i + 1 < events.length ? xOf(events[i + 1]) : xOf(state.recording.replay_events));
      const top = y(below[i] + band.bytes[i]), height = y(below[i]) - top;
      if (to > plot.left && height > 0) pen.fillRect(from, top, Math.max(to - from, 1), height);
      if (height > 14 && from > plot.left && (!best || height > best.height)) best = { x: from, y: top + height / 2, height };
      below[i] += band.bytes[i];
    });
    if (best) labels.push([band.name, best]);
  });
  for (const [name, at] of labels) bandLabel(pen, name, at);
}

function bandLabel(pen, name, at) {
  const width = pen.measureText(name).width, x = Math.min(at.x, plot.width - plot.right - width - 8);
  if (x < plot.left) return;
  pen.fillStyle = colourOf("paper");
  pen.globalAlpha = 0.85;
  pen.fillRect(x + 2, at.y - 8, width + 6, 16);
  pen.globalAlpha = 1;
  drawText(pen, name, x + 5, at.y, colourOf("ink"));
}

// The band at an event and a number of bytes, and what is in it.
function bandAt(bands, event, bytes) {
  const i = sampleAt(state.recording.over_time, event);
  let below = 0;
  for (const band of bands) {
    if (bytes < below + band.bytes[i]) return { name: band.name, bytes: band.bytes[i], event: state.recording.over_time.event[i] };
    below += band.bytes[i];
  }
  return null;
}

function describeBands(bands) {
  const i = state.at;
  const largest = bands.filter((band) => band.bytes[i] > 0).sort((a, b) => b.bytes[i] - a.bytes[i]).slice(0, 4);
  return `${stepName(state.recording, state.recording.over_time.event[i])}: ` + largest.map((band) => `${size(band.bytes[i])} ${band.name}`).join(", ");
}
