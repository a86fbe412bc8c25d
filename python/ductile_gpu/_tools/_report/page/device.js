// The device's size: who fits, and where and why each of the others fails.

const USUAL = [24, 40, 80, 141];

// What is known of a device of that size: completes, fails at a replayed size, or between two of them. A
// replay may also complete with less than the smallest size from which all do.
function outcomeOn(run, capacity) {
  const needed = run.min_capacity ?? (run.completed ? run.held_peak : null);
  if (needed === null && capacity > run.capacity) return { fits: null, needed };
  if (needed !== null && capacity >= needed) return { fits: true, needed };
  if (run.completed && run.min_capacity === null) return { fits: null, needed };
  const below = run.stops.filter((stop) => stop.capacity <= capacity).pop();
  const above = run.stops.find((stop) => stop.capacity > capacity);
  if (below && below.completed && (below.capacity === capacity || !above || above.completed)) return { fits: true, needed, isBelow: true };
  const failed = run.stops.filter((stop) => !stop.completed);
  return { fits: false, needed, exact: below && below.capacity === capacity ? below : null,
    below: failed.filter((stop) => stop.capacity <= capacity).pop(), above: failed.find((stop) => stop.capacity > capacity) };
}

function whyBelow(capacity, needed) {
  return capacity < state.recording.live_peak
    ? "Completes with less than the live peak: it waits until other streams' work is done, and the memory is free earlier than in the recording."
    : `A replay of this size completes, but not of every larger one: only from ${size(needed)} on.`;
}

// Which term of capacity = live + pending + free + room keeps the request from being served.
function bindingTerm(stop) {
  const room = Math.max(0, stop.capacity - stop.held);
  if (stop.live + stop.request > stop.capacity) return "live memory: no allocator could serve it";
  if (stop.pending > stop.free + stop.cached + room) return "pending memory: other streams' work is not proven done";
  if (stop.free > stop.cached + room && !stop.holes) return "what pools keep free for themselves";
  if (stop.free > stop.cached + room) return "free memory in holes that are too small";
  return "what is left cannot be given as one piece";
}

// What is not live: that is the program's, and in the headline.
function restOf(stop) {
  const parts = [];
  if (stop.pending) parts.push(size(stop.pending) + " pending");
  if (stop.free) parts.push(`${size(stop.free)} free in ` + (stop.holes ? `${plural(stop.holes, "hole", "holes")} (largest ${size(stop.largest)})` : "pools of their own"));
  if (stop.cached) parts.push(size(stop.cached) + " cached");
  const room = stop.capacity - stop.held;
  if (room > 0) parts.push(size(room) + " not held");
  return parts.length ? parts.join(" + ") : "nothing free";
}

function whyNot(outcome) {
  const recording = state.recording;
  const stop = outcome.exact ?? outcome.below ?? outcome.above;
  const needs = outcome.needed === null ? "" : `; it needs ${size(outcome.needed)}`;
  if (!stop) return `in the replay${needs}.`;
  const place = outcome.exact || !outcome.above || !outcome.below ||
    stepOf(recording, outcome.below.event) === stepOf(recording, outcome.above.event)
    ? inStep(recording, stop.event)
    : `between ${stepName(recording, outcome.below.event)} and ${stepName(recording, outcome.above.event)}`;
  const on = outcome.exact ? "" : ` With ${size(stop.capacity)}:`;
  return `${place}${needs}.${on} ${size(stop.request)} refused with ${restOf(stop)}. What binds is ${bindingTerm(stop)}.`;
}

// Usual sizes, and the device that the recording is of.
function paintPresets() {
  const summary = state.recording.summary, presets = document.querySelector(".presets");
  const preset = (bytes, text, label) => element("button", { type: "button", "data-gib": bytes / GIB, text, "aria-label": label, "aria-pressed": String(bytes === state.device),
    on: { click: () => { setDevice(bytes); show(); presets.querySelector(`[data-gib="${bytes / GIB}"]`)?.focus(); } } });
  const own = summary.device_is_recorded ? [preset(summary.device_bytes, "recorded", "the device of the recording, " + size(summary.device_bytes))] : [];
  presets.replaceChildren(...own, ...USUAL.map((gib) => preset(gib * GIB, String(gib), gib + " GiB")));
}

const setDevice = (bytes) => { if (bytes > 0) { state.device = Math.round(bytes); showSoon(); } };

function paintDevice() {
  byId("device-slider").value = String(state.device / GIB);
  byId("device-slider").setAttribute("aria-valuetext", size(state.device));
  if (document.activeElement !== byId("device-number")) byId("device-number").value = String(Math.round(state.device / GIB * 100) / 100);
  paintPresets();
  byId("fits").replaceChildren(...state.recording.runs.map((run) => {
    const outcome = outcomeOn(run, state.device);
    const room = outcome.fits === null && outcome.needed === null ? `It runs out of memory on ${size(run.capacity)}, and was not searched above ${size(run.capacity)}.`
      : outcome.fits === null ? `Not searched: without a cap it holds ${size(outcome.needed)}, and may do with less.`
      : outcome.isBelow ? whyBelow(state.device, outcome.needed)
      : outcome.fits ? `${size(state.device - outcome.needed)} to spare: it needs ${size(outcome.needed)}.` : "Fails " + whyNot(outcome);
    return element("li", { "data-run": run.id, "data-fits": String(outcome.fits) }, element("span", { class: "who", text: run.name }),
      element("span", { class: outcome.fits ? "yes" : outcome.fits === null ? "" : "no", text: outcome.fits ? "✓ fits" : outcome.fits === null ? "unknown" : "✗ fails" }), element("span", { class: "why", text: room }));
  }));
}

function listenToDevice() {
  const slider = byId("device-slider"), number = byId("device-number");
  slider.addEventListener("input", () => setDevice(Number(slider.value) * GIB));
  number.addEventListener("input", () => setDevice(Number(number.value) * GIB));
}
