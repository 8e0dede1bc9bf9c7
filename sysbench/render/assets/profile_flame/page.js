"use strict";

// Where the time goes, as boxes within boxes. Whatever was recorded is only ever set as text.
const ROW = 22;
const NARROWEST = 0.6;
const MOST_BOXES = 6000;

class Node {
  constructor(name, above, colour, ink) {
    this.name = name;
    this.above = above;
    this.colour = colour;
    this.ink = ink;
    this.recorded = null;
    this.className = null;
    this.ns = 0;
    this.calls = 0;
    this.parts = new Map();
  }

  part(key, make) {
    let found = this.parts.get(key);
    if (!found) this.parts.set(key, (found = make()));
    return found;
  }

  add(ns, calls) {
    this.ns += ns;
    this.calls += calls;
    return this;
  }

  // Phases and modules as they come, then kernels, the longest first.
  ordered() {
    const all = [...this.parts.values()];
    const kernels = all.filter((part) => part.recorded !== null).sort((a, b) => b.ns - a.ns);
    return [...all.filter((part) => part.recorded === null), ...kernels];
  }

  path() {
    return this.above ? [...this.above.path(), this] : [this];
  }

  // What stays the same when layers are taken together or apart again.
  address() {
    return this.path().map((node) => node.name).join("\u0000");
  }
}

function build(data, together) {
  const root = new Node("step", null, "#e4e7eb", "#1b1f24");
  const spent = data.spent;
  for (let row = 0; row < spent.ns.length; row++) {
    const ns = spent.ns[row], calls = spent.calls[row], phase = spent.phase[row], kernel = spent.kernel[row];
    root.add(ns, calls);
    const [phaseName, tint] = data.phases[phase];
    let node = root.part(`p${phase}`, () => new Node(phaseName, root, tint, "#1b1f24")).add(ns, calls);
    for (const piece of data.modules[spent.module[row]]) {
      const name = together && /^\d+$/.test(piece) ? "*" : piece;
      const above = node;
      node = above.part(`m${name}`, () => new Node(name, above, tint, "#1b1f24")).add(ns, calls);
    }
    const above = node;
    above.part(`k${kernel}`, () => {
      const [short, recorded] = data.names[kernel];
      const [className, colour, ink] = data.classes[spent.class[row]];
      const leaf = new Node(short, above, colour, ink);
      leaf.recorded = recorded;
      leaf.className = className;
      return leaf;
    }).add(ns, calls);
  }
  return root;
}

function time(ns) {
  for (const [size, unit] of [[1e9, "s"], [1e6, "ms"], [1e3, "µs"]]) {
    if (ns >= size) return `${(ns / size).toPrecision(3).replace(/e.*/, "")} ${unit}`;
  }
  return `${Math.round(ns)} ns`;
}

function share(part, whole) {
  const percent = whole ? (100 * part) / whole : 0;
  return `${percent.toFixed(percent >= 9.95 ? 0 : 1)}%`;
}

class Page {
  constructor(data) {
    this.data = data;
    this.stage = document.getElementById("stage");
    this.tip = document.getElementById("tip");
    this.searched = "";
    this.rebuild();
    this.writeFacts();
    this.writeLegend();
    this.listen();
    this.draw();
  }

  rebuild() {
    const address = this.focus ? this.focus.address() : null;
    this.root = build(this.data, document.getElementById("together").checked);
    this.focus = this.root;
    const look = (node) => {
      if (node.address() === address) this.focus = node;
      else node.parts.forEach(look);
    };
    if (address) look(this.root);
  }

  listen() {
    document.getElementById("whole").addEventListener("click", () => this.look(this.root));
    document.getElementById("together").addEventListener("change", () => { this.rebuild(); this.draw(); });
    const search = document.getElementById("search");
    search.addEventListener("input", () => { this.searched = search.value.trim().toLowerCase(); this.draw(); });
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.look(this.focus.above || this.root);
      if (event.key === "/" && document.activeElement !== search) { event.preventDefault(); search.focus(); }
    });
    new ResizeObserver(() => this.draw()).observe(this.stage);
  }

  look(node) {
    this.focus = node;
    this.hideTip();
    this.draw();
  }

  matches(node) {
    return !this.searched || `${node.name} ${node.recorded || ""}`.toLowerCase().includes(this.searched);
  }

  // How much of a node lies in what was searched for; nothing is counted twice.
  found(node) {
    if (this.matches(node)) return node.ns;
    let ns = 0;
    node.parts.forEach((part) => { ns += this.found(part); });
    return ns;
  }

  draw() {
    const width = this.stage.clientWidth;
    if (!width) return;
    const around = this.focus.path().slice(0, -1);
    const boxes = [];
    around.forEach((node, depth) => boxes.push(this.box(node, 0, depth, width, "around")));
    const scale = this.focus.ns ? width / this.focus.ns : 0;
    let deepest = around.length;
    let level = [[this.focus, 0, false]];
    for (let depth = around.length; level.length && boxes.length < MOST_BOXES; depth++) {
      const next = [];
      for (const [node, x, inside] of level) {
        const here = inside || (this.searched !== "" && this.matches(node));
        if (node.ns * scale < NARROWEST) continue;
        deepest = depth;
        boxes.push(this.box(node, x, depth, node.ns * scale, this.searched && !here ? "lost" : ""));
        let from = x;
        for (const part of node.ordered()) {
          next.push([part, from, here]);
          from += part.ns * scale;
        }
      }
      level = next;
    }
    this.stage.style.height = `${(deepest + 1) * ROW}px`;
    this.stage.replaceChildren(...boxes);
    this.writePath();
    document.getElementById("whole").disabled = this.focus === this.root;
    document.getElementById("matches").textContent = this.searched
      ? `${share(this.found(this.root), this.root.ns)} of the step` : "";
  }

  box(node, x, depth, width, kind) {
    const box = document.createElement("button");
    box.type = "button";
    box.className = `box ${kind}`;
    box.textContent = width > 22 ? node.name : "";
    box.style.cssText = `left:${x.toFixed(2)}px;top:${depth * ROW}px;width:${Math.max(width - 0.6, 0.4).toFixed(2)}px;` +
      `background:${node.colour};color:${node.ink}`;
    if (width <= 6) box.style.padding = "0";
    box.setAttribute("aria-label", `${node.name}, ${time(node.ns / this.data.steps)}, ${share(node.ns, this.root.ns)}`);
    box.addEventListener("click", () => this.look(node));
    box.addEventListener("mousemove", (event) => this.showTip(node, event.clientX, event.clientY));
    box.addEventListener("mouseleave", () => this.hideTip());
    return box;
  }

  showTip(node, x, y) {
    const name = document.createElement("b");
    name.textContent = node.recorded === null ? node.path().slice(1).map((each) => each.name).join(" › ") || node.name : node.recorded;
    const calls = node.calls / this.data.steps;
    const what = [
      `${time(node.ns / this.data.steps)} ${this.data.per}`,
      `${share(node.ns, this.root.ns)} of the step`,
      ...(this.focus === this.root ? [] : [`${share(node.ns, this.focus.ns)} of the enlarged box`]),
      `${Number(calls.toFixed(2))} ${calls === 1 ? "call" : "calls"}`,
      ...(node.className ? [node.className] : []),
    ];
    const numbers = document.createElement("span");
    numbers.textContent = what.join(" · ");
    this.tip.replaceChildren(name, numbers);
    this.tip.hidden = false;
    const box = this.tip.getBoundingClientRect();
    this.tip.style.left = `${Math.max(4, Math.min(x + 14, window.innerWidth - box.width - 4))}px`;
    this.tip.style.top = `${y + 18 + box.height > window.innerHeight ? Math.max(4, y - box.height - 10) : y + 18}px`;
  }

  hideTip() {
    this.tip.hidden = true;
  }

  writePath() {
    const parts = [];
    for (const node of this.focus.path()) {
      if (parts.length) {
        const arrow = document.createElement("span");
        arrow.textContent = "›";
        parts.push(arrow);
      }
      const link = document.createElement("button");
      link.type = "button";
      link.textContent = node.name;
      link.addEventListener("click", () => this.look(node));
      parts.push(link);
    }
    document.getElementById("path").replaceChildren(...parts);
  }

  writeFacts() {
    const steps = this.data.steps;
    const strong = document.createElement("b");
    strong.textContent = time(this.root.ns / steps);
    document.getElementById("facts").replaceChildren(
      strong, ` of ${this.data.work} in a step, over ${steps} ${steps === 1 ? "step" : "steps"}`);
  }

  writeLegend() {
    const present = new Set(this.data.spent.class);
    const entries = this.data.classes.filter((_, number) => present.has(number)).map(([name, colour]) => {
      const entry = document.createElement("li");
      const mark = document.createElement("i");
      mark.style.background = colour;
      entry.append(mark, name);
      return entry;
    });
    document.getElementById("legend").replaceChildren(...entries);
  }
}

try {
  window.page = new Page(JSON.parse(document.getElementById("data").textContent));
  document.documentElement.dataset.ready = "yes";
} catch (error) {
  const problem = document.getElementById("problem");
  problem.textContent = `This profile cannot be drawn: ${error.message}`;
  problem.hidden = false;
}
