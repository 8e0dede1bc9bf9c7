"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const axes = ["gpu", "batch", "ctx", "changes"];
  const byId = (id) => document.getElementById(id);
  const tones = { fits: "good", "barely fits": "doubtful", "does not fit": "bad" };
  const gib = (bytes) => `${(bytes / 2 ** 30).toFixed(Math.abs(bytes) < 10 * 2 ** 30 ? 2 : 1)} GiB`;
  const seconds = (value) => (value < 1 ? `${(value * 1e3).toPrecision(3)} ms` : `${value.toPrecision(3)} s`);
  const valuesOf = (axis) => {
    const found = [...new Set(data.steps.map((step) => step[axis]))];
    return typeof found[0] === "number" ? found.sort((a, b) => a - b) : found;
  };

  function element(name, text, className) {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    if (className) made.className = className;
    return made;
  }

  function drawn(name, attributes, text) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    return made;
  }

  for (const axis of axes) {
    for (const value of valuesOf(axis)) {
      const option = element("option", value === "" ? "as asked" : String(value));
      option.value = String(value);
      option.selected = value === data.asked[axis];
      byId(axis).append(option);
    }
    byId(axis).addEventListener("change", show);
  }
  byId("choice").addEventListener("submit", (event) => event.preventDefault());

  const find = (wanted) => data.steps.find((step) => axes.every((axis) => String(step[axis]) === String(wanted[axis])));
  const chosen = () => Object.fromEntries(axes.map((axis) => [axis, byId(axis).value]));

  function rows(id, content) {
    const body = byId(id).querySelector("tbody");
    body.replaceChildren(...content.map(([name, ...cells]) => {
      const row = element("tr");
      row.append(element("th", name), ...cells.map((cell) => element("td", cell, "number")));
      return row;
    }));
  }

  function timeOf(step) {
    return step.step === null ? [] : [seconds(step.step[0])];
  }

  function showGrid(wanted) {
    const batches = valuesOf("batch");
    const body = byId("grid").querySelector("tbody");
    const head = element("tr");
    head.append(element("th", "ctx \\ batch"), ...batches.map((batch) => element("th", String(batch))));
    body.replaceChildren(head, ...valuesOf("ctx").map((ctx) => {
      const row = element("tr");
      row.append(element("th", String(ctx)), ...batches.map((batch) => {
        const step = find({ ...wanted, batch, ctx });
        const cell = element("td", step ? undefined : "—", "number");
        if (!step) return cell;
        const button = element("button", [gib(step.needs), ...timeOf(step)].join(", "), tones[step.verdict]);
        button.type = "button";
        button.addEventListener("click", () => { byId("batch").value = batch; byId("ctx").value = ctx; show(); });
        cell.append(button);
        if (String(batch) === wanted.batch && String(ctx) === wanted.ctx) cell.classList.add("chosen");
        return cell;
      }));
      return row;
    }));
  }

  function showPicture(step) {
    const left = 60, right = 750, top = 22, bottom = 270;
    const total = step.phases.reduce((sum, phase) => sum + phase[1], 0) || 1;
    const highest = Math.max(step.peak, step.usable, 1) * 1.06;
    const x = (time) => left + ((right - left) * time) / total;
    const y = (bytes) => bottom - ((bottom - top) * bytes) / highest;
    const points = [`M${left},${bottom}`], content = [];
    let start = 0;
    for (const [name, duration, bytes] of step.phases) {
      bytes.forEach((value, number) => {
        const from = x(start + (duration * number) / bytes.length), to = x(start + (duration * (number + 1)) / bytes.length);
        points.push(`L${from.toFixed(1)},${y(value).toFixed(1)}L${to.toFixed(1)},${y(value).toFixed(1)}`);
      });
      content.push(drawn("line", { class: "phase", x1: x(start), x2: x(start), y1: top, y2: bottom }));
      if (x(start + duration) - x(start) > 7 * name.length) content.push(drawn("text", { x: x(start) + 3, y: top - 8 }, name));
      start += duration;
    }
    points.push(`L${right},${bottom}Z`);
    const limit = y(step.usable);
    const reference = step.step === null ? `, on ${data.reference}` : "";
    byId("picture").replaceChildren(
      drawn("path", { class: "area", d: points.join("") }), ...content,
      drawn("line", { class: "limit", x1: left, x2: right, y1: limit, y2: limit }),
      drawn("text", { x: left + 4, y: limit - 4 }, `available: ${gib(step.usable)}`),
      drawn("text", { x: 4, y: y(step.peak) + 4 }, gib(step.peak)), drawn("text", { x: 4, y: bottom }, "0"),
      drawn("text", { x: left, y: 288 }, `allocated memory over the predicted step: ${seconds(total)}${reference}`),
    );
  }

  function show() {
    const wanted = chosen(), step = find(wanted);
    showGrid(wanted);
    const status = byId("verdict");
    for (const id of ["picture", "command", "facts", "categories"]) byId(id).toggleAttribute("hidden", !step);
    if (!step) {
      status.className = "";
      status.textContent = "This step was not simulated: it is not possible with these changes, or the run ended before.";
      return;
    }
    const spare = step.has - step.needs;
    status.className = tones[step.verdict];
    status.textContent = `The step ${step.verdict}: ${gib(Math.abs(spare))} ${spare < 0 ? "missing" : "to spare"}.`
      + (step.relearns ? " The changes alter what the model learns." : "");
    rows("facts", [
      ["memory needed", gib(step.needs)], ["GPU has", gib(step.has)], ["peak in", step.phase],
      ...(step.step ? [["step", ...timeOf(step)], ["90% interval", `${seconds(step.step[1])} – ${seconds(step.step[2])}`],
        ["tokens per second", Math.round(step.tokens / step.step[0]).toLocaleString("en")]] : []),
      ["tokens per step", step.tokens.toLocaleString("en")],
    ]);
    rows("categories", step.categories.map(([name, bytes]) => [name, gib(bytes), `${((100 * bytes) / step.peak).toFixed(0)}%`]));
    byId("command").textContent = step.command;
    showPicture(step);
  }

  show();
  document.documentElement.dataset.ready = "yes";
})();
