// Buttons that put a table into the clipboard: CSV in full precision, or Markdown as it is shown.
function listenToCopying(block) {
  const tools = document.createElement("span");
  tools.className = "table-tools";
  for (const [kind, name] of [["csv", "CSV"], ["markdown", "Markdown"]]) {
    const content = block.querySelector(`template.${kind}`).content.textContent;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "small";
    button.textContent = `Copy ${name}`;
    button.addEventListener("click", async () => {
      const done = await copied(content);
      button.textContent = done ? "Copied" : "Copying blocked";
      say(done ? `copied as ${name}` : "the browser blocked copying");
      setTimeout(() => { button.textContent = `Copy ${name}`; }, 1500);
    });
    tools.append(button);
  }
  block.querySelector(".table-title").append(tools);
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copiedTheOldWay(text);
  }
}

// Browsers that keep the clipboard from pages opened as files still copy what is selected.
function copiedTheOldWay(text) {
  const area = document.createElement("textarea");
  area.value = text;
  area.style.cssText = "position:fixed;opacity:0";
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  return done;
}
