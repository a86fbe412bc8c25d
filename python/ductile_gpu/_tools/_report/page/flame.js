// Call stacks as fields: the width of one is its share of what is live at the moment. Two ways to
// fold them: by calls, and by the files of the program that they pass through.

// Each row by stack has its calls.
function openFlame(flame, rows) {
  if (!flame) return null;
  const frames = flame.frames.map((text) => { const [name, place, file, own] = text.split("\t"); return { name, place, file, own: own === "own" }; });
  const stacks = flame.stacks.map(([leaf, calls], i) => ({ row: rows[i], leaf, calls }));
  return { frames, stacks };
}

// Functions are merged whatever their lines are (but see SHARED); code of libraries is left out where the program's own is there.
function callsOf(flame, stack) {
  const frames = stack.calls.map((call) => flame.frames[call]), own = frames.filter((frame) => frame.own);
  const leaf = stack.leaf ? [flame.frames[stack.leaf]] : [];
  if (leaf.length) return own.length ? [...own, ...leaf] : leaf;
  return own.length ? [...own, ...(frames[frames.length - 1].own ? [] : [frames[frames.length - 1]])] : frames;
}

const fileOf = (frame) => frame.place.replace(/:\d+$/, "");
// Many classes of a file have functions of these names: the line tells them apart.
const SHARED = new Set(["forward", "backward", "step", "__init__", "__call__", "<lambda>"]);
const placeOf = (frame) => (SHARED.has(frame.name) ? frame.place : fileOf(frame));

function pathOf(flame, stack, by) {
  const calls = callsOf(flame, stack);
  if (by === "calls") return calls.map((frame) => ({ key: frame.name + "\t" + frame.file + placeOf(frame), label: frame.name, more: placeOf(frame), own: frame.own }));
  const path = [];
  for (const frame of calls) {
    const file = fileOf(frame) || frame.name;
    if (path.length === 0 || path[path.length - 1].label !== file) path.push({ key: file, label: file, more: "", own: frame.own });
  }
  const last = calls[calls.length - 1];
  return [...path, { key: last.name + "\t" + placeOf(last), label: last.name, more: placeOf(last), own: last.own }];
}

function treeOf(flame, by) {
  const root = { label: countedName(), more: "", bytes: 0, blocks: 0, own: false, children: new Map() };
  for (const stack of flame.stacks) {
    let at = root;
    const { blocks, refused } = stack.row, bytes = bytesOf(stack.row);
    if (bytes === 0) continue;
    at.bytes += bytes;
    at.blocks += blocks;
    for (const part of pathOf(flame, stack, by)) {
      if (!at.children.has(part.key)) at.children.set(part.key, { ...part, bytes: 0, blocks: 0, refused: true, children: new Map() });
      at = at.children.get(part.key);
      at.bytes += bytes;
      at.blocks += blocks;
      at.refused = at.refused && refused;
    }
  }
  return root;
}

const finds = (text) => state.search !== "" && text.toLowerCase().includes(state.search.toLowerCase());
const isFound = (node) => finds(node.label + " " + node.more) || [...node.children.values()].some(isFound);

function flameField(node, path, left, width, depth, inFound) {
  const box = byId("flame"), text = `${node.label} ${node.more}`.trim();
  const found = inFound || state.search === "" || isFound(node);
  const classes = [node.own ? "own" : "", node.refused ? "refused" : "", found ? "" : "dim"].join(" ").trim();
  const label = `${text}: ${size(node.bytes)}${isOfVerdict() ? " in " + plural(node.blocks, "block", "blocks") : ""}${node.refused ? ", asked for and refused" : ""}`;
  box.append(element("button", { type: "button", class: classes, title: label, "aria-label": label, text: width > 24 ? text : "", "data-bytes": node.bytes,
    style: `left: ${left}px; top: calc(${depth} * var(--row)); width: ${Math.max(1, width)}px`, on: { click: () => { state.flame = path; show(); } } }));
}

// Fields narrower than two pixels say nothing.
function flameFields(node, path, left, width, depth, inFound) {
  let at = left, deepest = depth;
  flameField(node, path, left, width, depth, inFound);
  for (const [key, child] of [...node.children].sort((a, b) => b[1].bytes - a[1].bytes)) {
    const share = width * child.bytes / node.bytes;
    if (share >= 2) deepest = Math.max(deepest, flameFields(child, [...path, key], at, share, depth + 1, inFound || finds(node.label + " " + node.more)));
    at += share;
  }
  return deepest;
}

function paintFlame() {
  const box = byId("flame"), flame = state.recording.flame;
  box.hidden = !flame || !["calls", "files"].includes(state.by);
  byId("search-field").hidden = !flame;
  if (box.hidden) return;
  let node = treeOf(flame, state.by);
  const parents = [];
  for (const key of state.flame) {
    if (!node.children.has(key)) break;
    parents.push(node);
    node = node.children.get(key);
  }
  box.replaceChildren();
  const width = box.clientWidth;
  parents.forEach((parent, depth) => flameField(parent, state.flame.slice(0, depth), 0, width, depth, true));
  const deepest = flameFields(node, state.flame.slice(0, parents.length), 0, width, parents.length, false);
  box.style.height = `calc(${deepest + 1} * var(--row))`;
}

function listenToSearch() {
  byId("search").addEventListener("input", (event) => { state.search = event.target.value.trim(); showSoon(); });
}
