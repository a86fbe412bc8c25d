// Starts the page.

function paintFacts() {
  const recording = state.recording;
  const steps = recording.n_steps > 1 ? [plural(recording.n_steps, "step", "steps") + (recording.marks_steps ? "" : " (found by how memory rises and falls)")] : [];
  byId("facts").textContent = [plural(recording.events, "event", "events"), plural(recording.streams.length, "stream", "streams"), ...steps,
    recording.snapshot ? "PyTorch snapshot, GPU " + recording.gpu : "trace"].join(" · ");
  byId("verdict").replaceChildren(...recording.verdict.map(([text, isStrong]) => isStrong ? element("b", { text }) : text));
}

function paintNav() {
  const nav = byId("recordings");
  nav.hidden = state.data.recordings.length < 2;
  if (nav.hidden) return;
  nav.replaceChildren(...state.data.recordings.map((recording) => element("button", { type: "button", "aria-current": String(recording === state.recording),
    text: recording.name, on: { click: () => { choose(recording); nav.querySelector('[aria-current="true"]').focus(); } } })));
}

async function start() {
  state.data = await unpack(byId("payload").textContent);
  state.data.recordings.forEach((recording, index) => { recording.index = index; recording.runs.forEach(openRun); });
  listenToTimeline();
  listenToDevice();
  // What does not depend on the cursor is painted only when something else has changed.
  const once = (paint, key) => { let last; painters.push(() => { const now = key(); if (now !== last) { last = now; paint(); } }); };
  once(paintFacts, () => state.recording.index);
  once(paintNav, () => state.recording.index);
  once(paintDevice, () => [state.recording.index, state.device].join());
  once(paintLegend, () => [state.recording.index, state.split].join());
  once(paintTimeTable, () => state.recording.index);
  once(paintMapLegend, () => [state.recording.index, state.colour].join());
  once(paintWho, () => [state.recording.index, state.by].join());
  once(paintFit, () => state.recording.index);
  once(paintOpenings, () => [state.recording.index, state.opened].join());
  once(paintForecast, () => [state.recording.index, state.device].join());
  once(paintCompare, () => "");
  painters.push(paintTimeline, paintMaps);
  const top = Math.max(...state.data.recordings.flatMap((recording) => recording.runs.map((run) => run.held_peak)));
  byId("device-slider").max = String(Math.max(160, Math.ceil(1.25 * top / GIB)));
  byId("made").textContent = state.data.made;
  choose(state.data.recordings[0]);
  window.addEventListener("resize", showSoon);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
  document.documentElement.dataset.ready = "true";
}

start().catch((error) => {
  byId("verdict").textContent = "This report cannot be shown here: " + error.message + ". It needs a browser of 2023 or newer.";
  document.documentElement.dataset.ready = "failed";
});
