// Several recordings side by side: a row for each, the one that needs most marked.

// Long words may break on a phone.
const hyphened = (text) => text.replace(/(record|expand)(?=ing|ed|able)/, "$1\u00ad");

function paintRanks() {
  const ranks = state.data.ranks;
  byId("ranks-section").hidden = !ranks;
  if (!ranks) return;
  byId("ranks-note").textContent = ranks.note + " On the right: the smallest device with each allocator.";
  const peaks = ranks.rows.map((row) => row.live_peak_bytes), most = Math.max(...peaks), differ = most > Math.min(...peaks), names = Object.entries(ranks.allocators);
  const open = (index) => element("button", { type: "button", text: ranks.rows[index].name, "aria-current": String(index === state.recording.index),
    on: { click: () => choose(state.data.recordings[index]) } });
  byId("ranks").replaceChildren(heading(...["recording", "live at the peak", "", "recorded", "refused", ...names.map(([, name]) => name)].map(hyphened)),
    element("tbody", {}, ...ranks.rows.map((row, index) => element("tr", { "data-live": row.live_peak_bytes }, element("th", { scope: "row" }, open(index)),
      element("td", { text: size(row.live_peak_bytes) + (differ && row.live_peak_bytes === most ? " ▲" : "") }), share(row.live_peak_bytes, most),
      element("td", { text: row.recorded_bytes ? size(row.recorded_bytes) : "—" }), element("td", { class: row.refused_bytes ? "asked" : "", text: row.refused_bytes ? size(row.refused_bytes) : "—" }),
      ...names.map(([id]) => element("td", { text: row.needs[id] ? size(row.needs[id]) : "—" }))))));
}
