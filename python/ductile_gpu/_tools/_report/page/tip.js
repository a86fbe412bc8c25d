// What lies under the pointer, at the pointer.

function showTip(event, lines) {
  const tip = byId("tip"), shown = lines.filter(Boolean);
  tip.hidden = shown.length === 0;
  if (tip.hidden) return;
  tip.replaceChildren(...shown.map((text, i) => element(i === 0 ? "b" : "span", { text })));
  const box = tip.getBoundingClientRect(), gap = 14;
  const left = event.clientX + gap + box.width > innerWidth ? event.clientX - gap - box.width : event.clientX + gap;
  const top = event.clientY + gap + box.height > innerHeight ? event.clientY - gap - box.height : event.clientY + gap;
  tip.style.left = Math.max(4, left) + "px";
  tip.style.top = Math.max(4, top) + "px";
}

const hideTip = () => { byId("tip").hidden = true; };

// The calls of what has this name, the innermost first; as many as one reads.
function callsOfName(name) {
  const row = (state.recording.who.stack ?? []).find((one) => one.is_stack && one.name === name), calls = row ? row.key.split("\n") : [];
  return calls.length > 6 ? [...calls.slice(0, 6), `${calls.length - 6} more calls`] : calls;
}
