// Starts the page.

function paintFacts() {
  const recording = state.recording;
  const steps = recording.n_steps > 1 ? [plural(recording.n_steps, "step", "steps") + (recording.marks_steps ? "" : " (found by how memory rises and falls)")] : [];
  const events = recording.summary.history ? plural(recording.events, "event", "events") : "no history";
  byId("facts").textContent = [events, plural(recording.streams.length, "stream", "streams"), ...steps,
    recording.snapshot ? `PyTorch snapshot, GPU ${recording.gpu}` + (recording.summary.gpus.length > 1 ? ` of ${recording.summary.gpus.length}` : "") : "trace"].join(" · ");
  byId("time-section").hidden = !recording.summary.history;
}

function paintNav() {
  const nav = byId("recordings");
  nav.hidden = state.data.recordings.length < 2;
  if (nav.hidden) return;
  const names = state.data.ranks.rows.map((row) => row.name);
  nav.replaceChildren(...state.data.recordings.map((recording) => element("button", { type: "button", "aria-current": String(recording === state.recording),
    text: names[recording.index], on: { click: () => { choose(recording); nav.querySelector('[aria-current="true"]').focus(); } } })));
}

async function start() {
  state.data = await unpack(byId("payload").textContent);
  state.data.recordings.forEach(openRecording);
  listenToTimeline();
  listenToDevice();
  listenToMaps();
  listenToSearch();
  listenToCopy();
  byId("show-place").addEventListener("click", showPlace);
  // What does not depend on the cursor is painted only when something else has changed.
  const once = (paint, key) => { let last; painters.push(() => { const now = key(); if (now !== last) { last = now; paint(); } }); };
  const index = () => state.recording.index, moment = () => [index(), state.cursor].join(), width = () => document.body.clientWidth;
  once(paintFacts, index);
  once(paintNav, index);
  once(paintFirst, index);
  once(paintMoment, moment);
  once(paintHolders, moment);
  once(() => paintBars(state.recording), moment);
  once(paintRanks, index);
  once(paintDevice, () => [index(), state.device].join());
  once(paintLegend, () => [index(), state.split].join());
  once(paintTimeTable, index);
  once(paintMapLegend, () => [index(), state.colour, state.mapped].join());
  once(paintWho, () => [moment(), state.by, state.search].join());
  once(paintEnds, index);
  once(paintPools, index);
  once(paintFlame, () => [moment(), state.by, state.search, state.flame.join(), width()].join("|"));
  once(paintFit, index);
  once(paintOpenings, () => [index(), state.opened].join());
  once(paintForecast, () => [index(), state.device].join());
  once(paintCompare, () => "");
  painters.push(paintTimeline, paintMaps, writeAddress);
  const top = Math.max(...state.data.recordings.flatMap((recording) => [recording.summary.device_bytes, ...recording.runs.map((run) => run.held_peak)]));
  byId("device-slider").max = String(Math.max(160, Math.ceil(1.25 * top / GIB)));
  byId("made").textContent = state.data.made;
  // The address may ask for something; else what ran out of memory comes first.
  const asked = location.hash;
  choose(state.data.recordings.find((recording) => recording.summary.refused) ?? state.data.recordings[0]);
  if (asked) {
    history.replaceState(null, "", asked);
    readAddress();
    show();
  }
  window.addEventListener("hashchange", () => { readAddress(); show(); });
  window.addEventListener("scroll", hideTip, { passive: true });
  window.addEventListener("resize", showSoon);
  for (const query of ["(prefers-color-scheme: dark)", "print"]) matchMedia(query).addEventListener("change", show);
  document.documentElement.dataset.ready = "true";
}

start().catch((error) => {
  byId("headline").textContent = "This report cannot be shown here: " + error.message + ". It needs a browser of 2023 or newer.";
  document.documentElement.dataset.ready = "failed";
});
