// The verdict and the holders as Markdown, for an issue or a message.

function asMarkdown() {
  const recording = state.recording, whole = liveNow(), cell = (text) => text.replaceAll("|", "\\|");
  const held = holdersNow().map((row) => `| ${size(row.bytes)} | ${share100(row.bytes, whole)} | ${cell(row.name)} |`);
  const lines = recording.lines.filter(([label]) => !["held by", "moment"].includes(label)).map(([label, text]) => `- ${label}: ${text}`);
  return [`**${recording.headline.map(([text]) => text).join("").trim()}** (${recording.name})`, "", `Held ${momentName()}:`, "", "| bytes | of live | by |", "|---:|---:|---|", ...held, "", ...lines, ""].join("\n");
}

// A page of a file may not be allowed the clipboard: then the text is selected and copied as by hand.
async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const field = element("textarea", { class: "hidden", "aria-hidden": "true" });
    field.value = text;
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    return done;
  }
}

function listenToCopy() {
  const button = byId("copy");
  button.addEventListener("click", async () => {
    const done = await copyText(asMarkdown());
    button.focus();
    button.textContent = done ? "Copied" : "Not allowed here";
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
}
