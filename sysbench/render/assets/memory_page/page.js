// What is shown, and what becomes of it when hands ask for something else.
class Page {
  constructor(data) {
    this.data = data;
    this.model = new Model(data);
    this.painter = new Painter(this.model);
    this.pointer = new Sweep(this.model);
    this.reservedPeak = data.reserved ? data.reserved.reduce((most, value) => Math.max(most, value), 0) : 0;
    const allocated = Math.max(this.model.total[this.model.peak], 1);
    const highest = this.reservedPeak < 1.5 * allocated ? Math.max(allocated, this.reservedPeak) : allocated;
    this.view = new View(this.model.states, highest * 1.06);
    this.hovered = null;
    this.pinned = null;
    this.found = null;
    this.canvas = document.getElementById("timeline");
    this.overview = document.getElementById("overview");
    this.drawing = new Drawing(this);
    this.panels = new Panels(this);
    this.finder = new Finder(this);
    this.hands = new Hands(this);
    this.setTheme(matchMedia("(prefers-color-scheme: dark)").matches);
    this.panels.writeFacts();
    this.panels.writeLegend();
    this.panels.writeGroups();
    this.hands.listen();
    new ResizeObserver(() => this.resize()).observe(document.getElementById("stage"));
    this.resize();
  }

  setTheme(dark) {
    this.dark = dark;
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    this.palette = new Palette(this.data.categories, dark);
    const style = getComputedStyle(document.documentElement);
    this.colour = (name) => style.getPropertyValue(`--${name}`).trim();
    this.overviewImage = null;
    this.redraw();
  }

  resize() {
    const ratio = Math.min(window.devicePixelRatio || 1, 2);
    for (const canvas of [this.canvas, this.overview]) {
      const box = canvas.getBoundingClientRect();
      canvas.width = Math.max(1, Math.round(box.width * ratio));
      canvas.height = Math.max(1, Math.round(box.height * ratio));
    }
    this.ratio = ratio;
    this.plot = {
      x: MARGIN.left,
      y: MARGIN.top,
      width: Math.max(10, this.canvas.width / ratio - MARGIN.left - MARGIN.right),
      height: Math.max(10, this.canvas.height / ratio - MARGIN.top - MARGIN.bottom),
    };
    this.overviewImage = null;
    this.redraw();
  }

  redraw() {
    if (this.waiting || !this.plot) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.drawing.draw();
    });
  }

  // The allocation under a point of the page; where several states share a column, in the one that is painted.
  allocationAt(x, y) {
    const { plot, view } = this;
    if (x < plot.x || x >= plot.x + plot.width || y < plot.y || y >= plot.y + plot.height) return null;
    const column = Math.min(this.painter.width - 1, Math.floor((x - plot.x) * this.ratio));
    this.pointer.to(this.painter.columnState[column]);
    return this.pointer.at(view.y1 - ((y - plot.y) / plot.height) * (view.y1 - view.y0));
  }

  hover(x, y) {
    const hit = this.allocationAt(x, y);
    const allocation = hit ? hit.allocation : null;
    this.panels.writeTip(allocation, x, y);
    if (allocation === this.hovered) return;
    this.hovered = allocation;
    if (this.pinned === null) this.panels.writeDetails(allocation);
    this.redraw();
  }

  leave() {
    this.hovered = null;
    document.getElementById("tip").hidden = true;
    if (this.pinned === null) this.panels.writeDetails(null);
    this.redraw();
  }

  pin(allocation) {
    this.pinned = allocation;
    document.getElementById("to-pinned").disabled = allocation === null;
    this.panels.writeDetails(allocation === null ? this.hovered : allocation);
    this.redraw();
  }

  // Shows an allocation over as much of its life, around a state, as it stays at about the same height.
  zoomTo(allocation, around) {
    const { born, died, size: sizes } = this.data;
    const first = born[allocation];
    const end = Math.min(died[allocation], this.model.states);
    const wanted = around ?? this.model.peak;
    const middle = first <= wanted && wanted < end ? wanted : Math.floor((first + end - 1) / 2);
    const height = sizes[allocation];
    let from = first;
    let to = end;
    let [lowest, highest] = this.excursion(allocation, from, to);
    while (highest - lowest > 5 * height && to - from > 2) {
      from = Math.ceil(from + (middle - from) * 0.4);
      to = Math.max(middle + 1, Math.floor(to - (to - middle - 1) * 0.4));
      [lowest, highest] = this.excursion(allocation, from, to);
    }
    const aside = Math.max(to - from, 1) * 0.15;
    const above = (highest - lowest + height) * 1.2;
    this.animate({ x0: from - aside, x1: to + aside, y0: lowest - above, y1: highest + height + above });
  }

  // The lowest and the highest bottom of an allocation in some of the states from `from` up to `to`.
  excursion(allocation, from, to) {
    let lowest = Infinity;
    let highest = -Infinity;
    const steps = Math.min(48, to - from - 1);
    for (let step = 0; step <= steps; step++) {
      this.pointer.to(from + Math.floor(((to - from - 1) * step) / Math.max(steps, 1)));
      const bottom = this.pointer.bottomOf(allocation);
      lowest = Math.min(lowest, bottom);
      highest = Math.max(highest, bottom);
    }
    return [lowest, highest];
  }

  zoomToPeak() {
    const { peak, total, states } = this.model;
    const width = Math.max(states / 40, 40);
    this.animate({ x0: peak - width / 2, x1: peak + width / 2, y0: total[peak] * 0.55, y1: total[peak] * 1.04 });
  }

  animate(target) {
    const from = this.view.rectangle();
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    const begun = performance.now();
    cancelAnimationFrame(this.animation);
    const step = (now) => {
      const share = still ? 1 : Math.min(1, Math.max(0, (now - begun) / 220));
      const eased = 1 - (1 - share) ** 3;
      const between = (key) => from[key] + (target[key] - from[key]) * eased;
      this.view.set({ x0: between("x0"), x1: between("x1"), y0: between("y0"), y1: between("y1") });
      this.redraw();
      if (share < 1) this.animation = requestAnimationFrame(step);
    };
    step(still ? begun + 1000 : begun);
  }

  zoomBy(factor, x, y, axis) {
    cancelAnimationFrame(this.animation);
    const { plot, view } = this;
    const state = view.x0 + ((x - plot.x) / plot.width) * (view.x1 - view.x0);
    const bytes = view.y1 - ((y - plot.y) / plot.height) * (view.y1 - view.y0);
    view.zoom(axis === "y" ? 1 : factor, axis === "x" ? 1 : factor, state, bytes);
    this.redraw();
  }
}

async function start() {
  const problem = document.getElementById("problem");
  try {
    if (typeof DecompressionStream === "undefined") {
      throw new Error("this browser is older than 2023 and cannot unpack the data");
    }
    const data = await decode(document.getElementById("data").textContent);
    new Page(data);
    document.documentElement.dataset.ready = "yes";
  } catch (error) {
    problem.hidden = false;
    problem.textContent = `The timeline cannot be shown: ${error.message}`;
    throw error;
  }
}

start();
