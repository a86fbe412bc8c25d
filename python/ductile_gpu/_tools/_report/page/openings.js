// What stands in the way: live blocks that keep free memory apart.

function openingWho(row) {
  return row.who.map((who) => element("div", {}, ...nameOf({ ...who, is_stack: who.stack }),
    ...(row.who.length > 1 ? [element("span", { class: "frame", text: `${size(who.bytes)} in ${plural(who.blocks, "block", "blocks")}` })] : [])));
}

function openingRow(row, isLeast) {
  const title = isLeast ? "fewest bytes that make room" : plural(row.blocks, "block", "blocks");
  return element("tr", { "data-bytes": row.bytes, "data-live": row.live_bytes, "data-least": String(isLeast) },
    element("th", { scope: "row" }, element("b", { text: title }), ...openingWho(row)),
    element("td", { text: isLeast ? count(row.blocks) : "" }), element("td", { text: size(row.live_bytes) }), element("td", { text: size(row.bytes - row.live_bytes) }),
    element("td", { text: size(row.bytes) + (row.serves ? " ✓" : "") }), element("td", { text: row.moves ? "yes" : "no" }));
}

function openedRun() {
  const all = [{ id: "recorded", name: "recorded" }, ...state.recording.runs], known = all.filter((run) => state.recording.openings[run.id]);
  return [known.find((run) => run.id === state.opened) ?? (known[0]?.id === "recorded" ? known[0] : known[known.length - 1]), known];
}

function paintOpenings() {
  const [chosen, known] = openedRun();
  byId("openings-section").hidden = known.length === 0 || !state.recording.summary.history;
  if (!known.length) return;
  const found = state.recording.openings[chosen.id];
  chooser("opened", known.map((run) => [run.id, run.name]), chosen.id, (id) => { state.opened = id; });
  byId("openings-note").textContent = found.note + (["classic", "recorded"].includes(chosen.id) ? ""
    : ` ${chosen.name === "Ductile" ? "Ductile needs" : "Expandable segments need"} no hole as large as the request: whole handles of free memory get other addresses.`);
  const rows = [...(found.least ? [openingRow({ ...found.least, serves: true }, true)] : []), ...found.widest.map((row) => openingRow(row, false))];
  byId("openings").replaceChildren(heading("freed, or moved elsewhere", "blocks", "their memory", "free around them", "hole", "other holes have room"),
    element("tbody", {}, ...rows));
  byId("openings").hidden = rows.length === 0;
}

// The moment on the timeline, and on the map the blocks of the code that stands in the way.
function showPlace() {
  const [chosen] = openedRun(), found = state.recording.openings[chosen.id], row = found.least ?? found.widest[0];
  const names = new Set((row?.who ?? []).filter((who) => who.stack).map((who) => who.name));
  state.mapped = chosen.id;
  state.marked = names.size ? names : null;
  const width = Math.max(50, (state.recording.replay_events - firstEvent(state.recording)) / 20);
  setRange(found.event - width / 2, found.event + width / 2);
  setCursor(found.event);
  const about = names.size ? ` Outlined: ${[...names].join(", ")}.` : "";
  byId("map-readout").textContent = `${chosen.name}, ${inStep(state.recording, found.event)}.${about}`;
  byId("map-section").scrollIntoView({ block: "start" });
  byId("map-title").setAttribute("tabindex", "-1");
  byId("map-title").focus({ preventScroll: true });
}
