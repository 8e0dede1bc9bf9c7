"use strict";

// The memory timeline: every live allocation of every state, stacked. Nothing is loaded from anywhere.
//
// Time is counted in states: state 0 is before the first event of the allocator, and each event leads to the next.
// An allocation is live in the states born … died − 1; allocations are numbered in the order of their birth. A frame is painted column by column: a sweep moves through the
// states, keeps the live allocations in linked lists, and each column paints the lists at its state. So the work is
// that of what is visible, whatever the length of the timeline.

// ---------------------------------------------------------------------------------------------------------- data

async function decode(text) {
  const binary = atob(text.trim());
  const packed = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) packed[i] = binary.charCodeAt(i);
  const unpacked = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const buffer = await new Response(unpacked).arrayBuffer();
  const headerLength = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, headerLength)));
  const kinds = { f8: Float64Array, u4: Uint32Array, i4: Int32Array, u1: Uint8Array };
  const arrays = {};
  for (const [name, [kind, offset, length]] of Object.entries(header.arrays)) {
    arrays[name] = new kinds[kind](buffer, offset, length);
  }
  return { ...header, ...arrays };
}

// --------------------------------------------------------------------------------------------------------- words

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

function unitOf(bytes) {
  let power = 0;
  while (power < UNITS.length - 1 && Math.abs(bytes) / 1024 ** power >= 999.95) power++;
  return power;
}

function size(bytes) {
  const power = unitOf(bytes);
  const shown = bytes / 1024 ** power;
  const decimals = power === 0 ? 0 : shown < 9.995 ? 2 : shown < 999.95 ? 1 : 0;
  return `${shown.toFixed(decimals)} ${UNITS[power]}`;
}

function count(number) {
  return Math.round(number).toString().replace(/\B(?=(\d{3})+$)/g, "\u202f");
}

function plural(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
}

function duration(us) {
  if (us < 1000) return `${us.toFixed(0)} µs`;
  if (us < 1e6) return `${(us / 1e3).toPrecision(3)} ms`;
  return `${(us / 1e6).toPrecision(3)} s`;
}

function element(tag, text, attributes = {}) {
  const made = document.createElement(tag);
  if (text !== undefined && text !== null) made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

function chip(colour) {
  const made = element("i", null, { class: "chip" });
  made.style.background = colour;
  return made;
}

// --------------------------------------------------------------------------------------------------------- model

const NONE = -1;

// Live allocations over time. Bands are stacked from the bottom; within a band the older lie below the younger.
class Model {
  constructor(data) {
    this.data = data;
    this.count = data.size.length;
    this.states = data.states;
    this.births = this.byState(data.born);
    this.deaths = this.byState(data.died);
    this.total = this.totals();
    this.peak = 0;
    for (let s = 1; s < this.states; s++) if (this.total[s] > this.total[this.peak]) this.peak = s;
    this.rank = new Uint8Array(data.categories.length);
    data.stacking.forEach((category, rank) => (this.rank[category] = rank));
    this.stackBy("category");
  }

  // Allocations in the order of a state, with the place at which each state begins.
  byState(stateOf) {
    const start = new Uint32Array(this.states + 2);
    for (let i = 0; i < this.count; i++) start[stateOf[i] + 1]++;
    for (let s = 0; s <= this.states; s++) start[s + 1] += start[s];
    const place = start.slice();
    const order = new Uint32Array(this.count);
    for (let i = 0; i < this.count; i++) order[place[stateOf[i]]++] = i;
    return { order, start };
  }

  totals() {
    const total = new Float64Array(this.states + 1);
    for (let i = 0; i < this.count; i++) {
      total[this.data.born[i]] += this.data.size[i];
      total[this.data.died[i]] -= this.data.size[i];
    }
    for (let s = 1; s <= this.states; s++) total[s] += total[s - 1];
    return total;
  }

  stackBy(choice) {
    const single = choice === "time";
    this.bands = single ? 1 : this.data.stacking.length;
    this.band = new Uint8Array(this.count);
    if (!single) for (let i = 0; i < this.count; i++) this.band[i] = this.rank[this.data.category[i]];
    this.checkpointEvery = Math.max(512, Math.ceil(this.states / 256));
    this.checkpoints = [];
    const sweep = new Sweep(this);
    for (let s = 0; s < this.states; s += this.checkpointEvery) {
      sweep.to(s);
      this.checkpoints.push(sweep.live());
    }
  }
}

// The live allocations of one state, in linked lists by band; moves to later states one event at a time.
class Sweep {
  constructor(model) {
    this.model = model;
    this.next = new Int32Array(model.count);
    this.previous = new Int32Array(model.count);
    this.clear();
    this.state = NONE;
  }

  clear() {
    const bands = this.model.bands;
    this.head = new Int32Array(bands).fill(NONE);
    this.tail = new Int32Array(bands).fill(NONE);
    this.bytes = new Float64Array(bands);
    // By band, the youngest allocation below everything that has changed since this was last reset.
    this.untouched = new Int32Array(bands).fill(NONE);
  }

  to(state) {
    const model = this.model;
    const nearest = Math.min(Math.floor(state / model.checkpointEvery), model.checkpoints.length - 1);
    if (state < this.state || nearest * model.checkpointEvery > this.state + model.checkpointEvery) {
      this.clear();
      for (const allocation of model.checkpoints[nearest]) this.append(allocation);
      this.state = nearest * model.checkpointEvery;
    }
    const { births, deaths } = model;
    while (this.state < state) {
      const s = ++this.state;
      for (let k = births.start[s]; k < births.start[s + 1]; k++) this.append(births.order[k]);
      if (s > 0) for (let k = deaths.start[s]; k < deaths.start[s + 1]; k++) this.remove(deaths.order[k]);
    }
  }

  append(allocation) {
    const band = this.model.band[allocation];
    const tail = this.tail[band];
    this.previous[allocation] = tail;
    this.next[allocation] = NONE;
    if (tail === NONE) this.head[band] = allocation;
    else this.next[tail] = allocation;
    this.tail[band] = allocation;
    this.bytes[band] += this.model.data.size[allocation];
    if (tail < this.untouched[band]) this.untouched[band] = tail;
  }

  remove(allocation) {
    const band = this.model.band[allocation];
    const before = this.previous[allocation];
    const after = this.next[allocation];
    if (before === NONE) this.head[band] = after;
    else this.next[before] = after;
    if (after === NONE) this.tail[band] = before;
    else this.previous[after] = before;
    this.bytes[band] -= this.model.data.size[allocation];
    if (before < this.untouched[band]) this.untouched[band] = before;
  }

  live() {
    const found = [];
    for (let band = 0; band < this.head.length; band++) {
      for (let i = this.head[band]; i !== NONE; i = this.next[i]) found.push(i);
    }
    return Uint32Array.from(found);
  }

  // The allocation at a height in this state, and where it begins; null above the stack.
  at(bytes) {
    let offset = 0;
    for (let band = 0; band < this.head.length; band++) {
      if (bytes >= offset + this.bytes[band]) {
        offset += this.bytes[band];
        continue;
      }
      for (let i = this.head[band]; i !== NONE; i = this.next[i]) {
        const top = offset + this.model.data.size[i];
        if (bytes < top) return { allocation: i, bottom: offset };
        offset = top;
      }
    }
    return null;
  }

  // Where an allocation lies in the stack of this state; null where it is not live.
  bottomOf(allocation) {
    const data = this.model.data;
    if (data.born[allocation] > this.state || data.died[allocation] <= this.state) return null;
    let offset = 0;
    for (let band = 0; band < this.model.band[allocation]; band++) offset += this.bytes[band];
    for (let i = this.head[this.model.band[allocation]]; i !== allocation; i = this.next[i]) offset += data.size[i];
    return offset;
  }
}

// -------------------------------------------------------------------------------------------------------- colours

const SHADES = 8;

function channels(hex) {
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

function packed(rgb) {
  const [r, g, b] = rgb.map((value) => Math.max(0, Math.min(255, Math.round(value))));
  return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
}

function mixed(from, to, share) {
  return from.map((value, i) => value + (to[i] - value) * share);
}

// Shades of each category, so that neighbours can be told apart; faded ones for what a search did not find.
class Palette {
  constructor(categories, dark) {
    const paper = dark ? [16, 20, 24] : [255, 255, 255];
    const ink = dark ? [255, 255, 255] : [0, 0, 0];
    this.selected = packed(ink);
    this.plain = new Uint32Array(categories.length * SHADES);
    this.faded = new Uint32Array(categories.length * SHADES);
    this.edge = new Uint32Array(categories.length);
    this.fadedEdge = new Uint32Array(categories.length);
    categories.forEach(({ colour }, category) => {
      const base = channels(colour);
      for (let shade = 0; shade < SHADES; shade++) {
        const tinted = mixed(base, shade % 2 ? [255, 255, 255] : [0, 0, 0], 0.035 * (shade >> 1));
        this.plain[category * SHADES + shade] = packed(tinted);
        this.faded[category * SHADES + shade] = packed(mixed(tinted, paper, 0.8));
      }
      this.edge[category] = packed(mixed(base, dark ? [0, 0, 0] : [40, 40, 40], 0.45));
      this.fadedEdge[category] = packed(mixed(base, paper, 0.65));
    });
  }
}

function shadeOf(allocation) {
  return (Math.imul(allocation + 1, 0x9e3779b1) >>> 29) & (SHADES - 1);
}

// -------------------------------------------------------------------------------------------------------- painter

// Paints the stack into an image. Columns lie one after the other in memory, which makes filling them fast; the image
// is turned over its diagonal when it is drawn.
class Painter {
  constructor(model) {
    this.model = model;
    this.sweep = new Sweep(model);
    this.sheet = document.createElement("canvas");
    this.columnState = new Int32Array(0);
    this.marked = new Set();
    this.outline = new Map();
    this.found = null;
  }

  resize(width, height) {
    if (this.sheet.width === height && this.sheet.height === width) return;
    this.width = width;
    this.height = height;
    this.sheet.width = height;
    this.sheet.height = width;
    this.image = new ImageData(height, width);
    this.pixels = new Uint32Array(this.image.data.buffer);
    this.columnState = new Int32Array(width);
  }

  restack() {
    this.sweep = new Sweep(this.model);
  }

  // `marked`: allocations whose outline is wanted. `found`: a byte per allocation, 0 to fade it; or null.
  paint(view, palette, marked, found) {
    this.view = view;
    this.palette = palette;
    this.found = found;
    this.marked = marked;
    this.outline = new Map([...marked].map((allocation) => [allocation, []]));
    this.scale = this.height / (view.y1 - view.y0);
    this.chooseStates(view);
    const bands = this.model.bands;
    // By band: the column that it was last painted in, where it began there, and the youngest allocation it reached.
    this.lastColumn = new Int32Array(bands).fill(NONE);
    this.lastStart = new Float64Array(bands);
    this.lastReached = new Int32Array(bands);
    if (!this.bottom || this.bottom.length !== this.model.count) this.bottom = new Float64Array(this.model.count);
    let last = NONE;
    for (let column = 0; column < this.width; column++) {
      const state = this.columnState[column];
      if (state === last) this.repeat(column);
      else this.paintColumn(column, state);
      last = state;
    }
    this.sheet.getContext("2d").putImageData(this.image, 0, 0);
  }

  // Where several states share a column it shows the highest of them: no peak is ever hidden.
  chooseStates(view) {
    const { total, states } = this.model;
    const step = (view.x1 - view.x0) / this.width;
    for (let column = 0; column < this.width; column++) {
      const first = Math.max(0, Math.min(states - 1, Math.floor(view.x0 + column * step)));
      const end = Math.min(states, Math.max(first + 1, Math.floor(view.x0 + (column + 1) * step)));
      let best = first;
      for (let s = first + 1; s < end; s++) if (total[s] > total[best]) best = s;
      this.columnState[column] = best;
    }
  }

  repeat(column) {
    const at = column * this.height;
    this.pixels.copyWithin(at, at - this.height, at);
    for (let band = 0; band < this.model.bands; band++) {
      if (this.lastColumn[band] !== column - 1) continue;
      this.lastColumn[band] = column;
      this.extend(band, column, this.model.count);
    }
  }

  row(bytes) {
    return Math.max(0, Math.min(this.height, Math.round((this.view.y1 - bytes) * this.scale)));
  }

  paintColumn(column, state) {
    const sweep = this.sweep;
    sweep.to(state);
    let start = 0;
    for (let band = 0; band < this.model.bands; band++) {
      const end = start + sweep.bytes[band];
      if (end > this.view.y0 && start < this.view.y1 && end > start) this.paintBand(band, start, end, column);
      start = end;
    }
    const at = column * this.height;
    this.pixels.fill(0, at, at + this.row(start));
  }

  // What lies below the first change since the column before is taken over from there.
  paintBand(band, start, end, column) {
    const { pixels, height, sweep } = this;
    const at = column * height;
    const top = this.row(end);
    let bottom = this.row(start);
    let from = sweep.head[band];
    let low = start;
    if (this.lastColumn[band] === column - 1 && this.lastStart[band] === start && column > 0) {
      const kept = sweep.untouched[band];
      const whole = kept > this.lastReached[band];
      if (whole || kept !== NONE) {
        if (!whole) low = this.bottom[kept];
        from = whole ? NONE : kept;
        const border = whole ? top : this.row(low);
        pixels.copyWithin(at + border, at - height + border, at - height + bottom);
        this.extend(band, column, whole ? kept : kept - 1);
        bottom = border;
      }
    }
    if (from !== NONE) this.lastReached[band] = this.walk(from, low, column, top, bottom);
    sweep.untouched[band] = this.model.count;
    this.lastColumn[band] = column;
    this.lastStart[band] = start;
  }

  // Paints allocations from `from` upwards, which begins at `low`; returns the last one that it came to.
  walk(from, low, column, top, bottom) {
    const { palette, pixels, found, height } = this;
    const { size, category } = this.model.data;
    const next = this.sweep.next;
    const { y0, y1 } = this.view;
    const scale = this.scale;
    const at = column * height;
    const marks = this.marked.size > 0;
    const bottoms = this.bottom;
    // Allocations less than a pixel high leave this to be seen.
    pixels.fill((found ? palette.faded : palette.plain)[category[from] * SHADES], at + top, at + bottom);
    let lowRow = Math.round((y1 - low) * scale);
    let reached = from;
    for (let i = from; i !== NONE && low < y1; i = next[i]) {
      reached = i;
      bottoms[i] = low;
      const high = low + size[i];
      const highRow = Math.round((y1 - high) * scale);
      if (highRow < lowRow && high > y0) {
        const end = at + (lowRow > height ? height : lowRow);
        const shown = found === null || found[i] === 1;
        const kind = category[i];
        const colour = (shown ? palette.plain : palette.faded)[kind * SHADES + shadeOf(i)];
        // Most are a few pixels high, and for those a loop is faster than fill.
        for (let pixel = at + (highRow < 0 ? 0 : highRow); pixel < end; pixel++) pixels[pixel] = colour;
        if (lowRow - highRow > 2 && lowRow <= height) pixels[end - 1] = (shown ? palette.edge : palette.fadedEdge)[kind];
      }
      if (marks && this.marked.has(i)) this.mark(i, column, highRow, lowRow);
      low = high;
      lowRow = highRow;
    }
    return reached;
  }

  // Outlines go on through what was taken over from the column before: allocations up to `youngest`.
  extend(band, column, youngest) {
    for (const [allocation, spans] of this.outline) {
      const span = spans[spans.length - 1];
      if (!span || span.column + span.width !== column) continue;
      if (allocation <= youngest && this.model.band[allocation] === band) span.width++;
    }
  }

  mark(allocation, column, top, bottom) {
    const spans = this.outline.get(allocation);
    const span = spans[spans.length - 1];
    if (span && span.column + span.width === column && span.top === top && span.bottom === bottom) span.width++;
    else spans.push({ column, width: 1, top, bottom });
  }

  // The image, right way up, at a pixel of the canvas.
  place(context, x, y) {
    context.save();
    context.imageSmoothingEnabled = false;
    context.setTransform(0, 1, 1, 0, x, y);
    context.drawImage(this.sheet, 0, 0);
    context.restore();
  }
}

// ----------------------------------------------------------------------------------------------------------- view

const NARROWEST_STATES = 4;
const LOWEST_BYTES = 256;

// What part of the timeline is shown: states x0 … x1, bytes y0 … y1.
class View {
  constructor(width, height) {
    this.full = { x0: 0, x1: width, y0: 0, y1: height };
    Object.assign(this, this.full);
  }

  set({ x0, x1, y0, y1 }) {
    [this.x0, this.x1] = clamped(x0, x1, this.full.x1, Math.min(NARROWEST_STATES, this.full.x1));
    [this.y0, this.y1] = clamped(y0, y1, this.full.y1, Math.min(LOWEST_BYTES, this.full.y1));
  }

  zoom(factorX, factorY, x, y) {
    this.set({
      x0: x - (x - this.x0) * factorX,
      x1: x + (this.x1 - x) * factorX,
      y0: y - (y - this.y0) * factorY,
      y1: y + (this.y1 - y) * factorY,
    });
  }

  pan(dx, dy) {
    this.set({ x0: this.x0 + dx, x1: this.x1 + dx, y0: this.y0 + dy, y1: this.y1 + dy });
  }

  rectangle() {
    return { x0: this.x0, x1: this.x1, y0: this.y0, y1: this.y1 };
  }
}

// An interval moved and shrunk into 0 … most, at least `least` long.
function clamped(low, high, most, least) {
  const length = Math.min(most, Math.max(least, high - low));
  const middle = (low + high) / 2;
  const start = Math.max(0, Math.min(most - length, middle - length / 2));
  return [start, start + length];
}

function niceStep(span, ticks, powersOfTwo) {
  const rough = span / ticks;
  if (powersOfTwo && rough >= 1) return 2 ** Math.ceil(Math.log2(rough));
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= rough);
}

// ----------------------------------------------------------------------------------------------------------- page

const MARGIN = { left: 86, right: 14, top: 22, bottom: 40 };

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
    this.setTheme(matchMedia("(prefers-color-scheme: dark)").matches);
    this.writeFacts();
    this.writeLegend();
    this.writeGroups();
    this.listen();
    new ResizeObserver(() => this.resize()).observe(document.getElementById("stage"));
    this.resize();
  }

  // --- drawing

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
      this.draw();
    });
  }

  draw() {
    const begun = performance.now();
    const context = this.canvas.getContext("2d");
    const { ratio, plot } = this;
    const marked = new Set([this.pinned, this.hovered].filter((allocation) => allocation !== null));
    this.painter.resize(Math.round(plot.width * ratio), Math.round(plot.height * ratio));
    this.painter.paint(this.view, this.palette, marked, this.found);
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    context.fillStyle = this.colour("page");
    context.fillRect(0, 0, this.canvas.width, this.canvas.height);
    this.drawPhases(context);
    this.painter.place(context, Math.round(plot.x * ratio), Math.round(plot.y * ratio));
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.drawLines(context);
    this.drawOutlines(context);
    this.drawAxes(context);
    this.drawOverview();
    this.canvas.dataset.view = [this.view.x0, this.view.x1, this.view.y0, this.view.y1].join(" ");
    performance.measure("draw", { start: begun, end: performance.now() });
  }

  toX(state) {
    return this.plot.x + ((state - this.view.x0) / (this.view.x1 - this.view.x0)) * this.plot.width;
  }

  toY(bytes) {
    return this.plot.y + ((this.view.y1 - bytes) / (this.view.y1 - this.view.y0)) * this.plot.height;
  }

  inside(context, drawn) {
    context.save();
    context.beginPath();
    context.rect(this.plot.x, this.plot.y, this.plot.width, this.plot.height);
    context.clip();
    drawn();
    context.restore();
  }

  drawPhases(context) {
    const { plot, ratio } = this;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.font = "11px system-ui, sans-serif";
    context.textAlign = "center";
    context.textBaseline = "middle";
    this.data.phases.forEach(([name, first, end, darker]) => {
      const left = Math.max(plot.x, this.toX(first + 1));
      const right = Math.min(plot.x + plot.width, this.toX(end));
      if (right - left < 0.5) return;
      context.fillStyle = this.colour(darker ? "grid" : "phase");
      context.fillRect(left, plot.y, right - left, plot.height);
      context.fillRect(left, 2, right - left, plot.y - 4);
      context.fillStyle = this.colour("quiet");
      if (context.measureText(name).width + 8 < right - left) context.fillText(name, (left + right) / 2, plot.y / 2);
    });
  }

  drawLines(context) {
    const { plot, data, view } = this;
    this.inside(context, () => {
      if (data.reserved) {
        context.strokeStyle = this.colour("quiet");
        context.lineWidth = 1.25;
        context.setLineDash([5, 3]);
        context.beginPath();
        const states = this.painter.columnState;
        let y = null;
        for (let column = 0; column < states.length; column++) {
          const x = plot.x + (column / states.length) * plot.width;
          const level = this.toY(data.reserved[states[column]]);
          if (y === null) context.moveTo(x, level);
          else if (level !== y) {
            context.lineTo(x, y);
            context.lineTo(x, level);
          }
          y = level;
        }
        context.lineTo(plot.x + plot.width, y);
        context.stroke();
        context.setLineDash([]);
      }
    });
    this.drawPeak(context, view);
    for (const [state, requested] of data.failures) this.drawFailure(context, state, requested);
  }

  drawPeak(context, view) {
    const { peak, total } = this.model;
    const x = this.toX(peak + 0.5);
    const y = this.toY(total[peak]);
    if (peak + 1 < view.x0 || peak > view.x1 || y < this.plot.y - 1 || y > this.plot.y + this.plot.height) return;
    const label = `peak ${size(total[peak])}`;
    context.font = "600 12px system-ui, sans-serif";
    const width = context.measureText(label).width;
    const left = Math.max(this.plot.x + 2, Math.min(this.plot.x + this.plot.width - width - 12, x - width / 2 - 5));
    const top = Math.max(this.plot.y + 2, y - 30);
    context.fillStyle = this.colour("page");
    context.strokeStyle = this.colour("ink");
    context.lineWidth = 1;
    context.beginPath();
    context.roundRect(left, top, width + 10, 18, 4);
    context.fill();
    context.stroke();
    context.fillStyle = this.colour("ink");
    context.textAlign = "left";
    context.textBaseline = "middle";
    context.fillText(label, left + 5, top + 9.5);
    context.beginPath();
    context.moveTo(x, y);
    context.lineTo(x - 5, y - 8);
    context.lineTo(x + 5, y - 8);
    context.fill();
  }

  drawFailure(context, state, requested) {
    const x = this.toX(state + 0.5);
    if (x < this.plot.x || x > this.plot.x + this.plot.width) return;
    context.strokeStyle = context.fillStyle = "#d1242f";
    context.lineWidth = 1.5;
    context.beginPath();
    context.moveTo(x, this.plot.y);
    context.lineTo(x, this.plot.y + this.plot.height);
    context.stroke();
    context.font = "600 12px system-ui, sans-serif";
    context.textAlign = x > this.plot.x + this.plot.width / 2 ? "right" : "left";
    context.textBaseline = "top";
    const label = ` out of memory: ${size(requested)} asked for `;
    context.fillText(label, x, this.plot.y + 4);
  }

  drawOutlines(context) {
    const { ratio, plot } = this;
    this.inside(context, () => {
      for (const [allocation, spans] of this.painter.outline) {
        if (!spans.length) continue;
        const path = new Path2D();
        const point = (column, row) => [plot.x + column / ratio, plot.y + row / ratio];
        spans.forEach((span, index) => {
          const joined = index > 0 && spans[index - 1].column + spans[index - 1].width === span.column;
          const [x, y] = point(span.column, span.top);
          if (joined) path.lineTo(x, y);
          else path.moveTo(x, y);
          path.lineTo(...point(span.column + span.width, span.top));
        });
        for (const span of [...spans].reverse()) {
          path.lineTo(...point(span.column + span.width, Math.max(span.bottom, span.top + 1)));
          path.lineTo(...point(span.column, Math.max(span.bottom, span.top + 1)));
        }
        path.closePath();
        context.lineWidth = allocation === this.pinned ? 4 : 3;
        context.strokeStyle = this.colour("page");
        context.stroke(path);
        context.lineWidth = allocation === this.pinned ? 2 : 1.25;
        context.strokeStyle = this.colour("ink");
        context.stroke(path);
      }
    });
  }

  drawAxes(context) {
    const { plot, view } = this;
    context.font = "11.5px system-ui, sans-serif";
    context.fillStyle = this.colour("quiet");
    context.strokeStyle = this.colour("grid");
    context.lineWidth = 1;
    this.drawByteAxis(context);
    context.textAlign = "center";
    context.textBaseline = "top";
    const step = Math.max(1, niceStep(view.x1 - view.x0, Math.max(2, plot.width / 110), false));
    for (let tick = Math.ceil(view.x0 / step) * step; tick <= view.x1; tick += step) {
      const x = this.toX(tick);
      context.fillRect(Math.round(x), plot.y + plot.height, 1, 5);
      const half = context.measureText(count(tick)).width / 2;
      context.fillText(count(tick), Math.min(x, plot.x + plot.width + MARGIN.right - half), plot.y + plot.height + 8);
    }
    context.fillText("allocator events", plot.x + plot.width / 2, plot.y + plot.height + 24);
    context.strokeStyle = this.colour("quiet");
    context.strokeRect(plot.x - 0.5, plot.y - 0.5, plot.width + 1, plot.height + 1);
  }

  // Ticks in the unit of the top; far in, as what lies above the bottom, since 40.12345 GiB says nothing.
  drawByteAxis(context) {
    const { plot, view } = this;
    const ticks = Math.max(2, plot.height / 52);
    const power = unitOf(view.y1);
    const unit = 1024 ** power;
    let step = niceStep((view.y1 - view.y0) / unit, ticks, false) * unit;
    const relative = step / unit < 0.0099;
    if (relative) {
      const inner = 1024 ** unitOf(view.y1 - view.y0);
      step = niceStep((view.y1 - view.y0) / inner, ticks, inner > 1) * inner;
    }
    const origin = relative ? Math.ceil(view.y0 / step) * step : 0;
    const decimals = Math.max(0, -Math.floor(Math.log10(step / unit) + 1e-9));
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (let tick = Math.ceil(view.y0 / step) * step; tick <= view.y1; tick += step) {
      const y = this.toY(tick);
      context.beginPath();
      context.moveTo(plot.x, Math.round(y) + 0.5);
      context.lineTo(plot.x + plot.width, Math.round(y) + 0.5);
      context.stroke();
      const label = relative ? (tick === origin ? size(tick) : `+${size(tick - origin)}`) : (tick / unit).toFixed(decimals);
      context.fillText(label, plot.x - 6, y);
    }
    context.save();
    context.translate(9, plot.y + plot.height / 2);
    context.rotate(-Math.PI / 2);
    context.textAlign = "center";
    context.fillText(relative ? "allocated" : `allocated, ${UNITS[power]}`, 0, 0);
    context.restore();
  }

  drawOverview() {
    const context = this.overview.getContext("2d");
    const { width, height } = this.overview;
    if (!this.overviewImage) this.overviewImage = this.paintOverview(width, height);
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.drawImage(this.overviewImage, 0, 0);
    const { full } = this.view;
    const frame = this.overviewFrame();
    const x = (state) => frame.x + (state / full.x1) * frame.width;
    const y = (bytes) => (1 - bytes / full.y1) * height;
    context.fillStyle = this.dark ? "rgba(16, 20, 24, 0.62)" : "rgba(255, 255, 255, 0.66)";
    context.fillRect(frame.x, 0, x(this.view.x0) - frame.x, height);
    context.fillRect(x(this.view.x1), 0, frame.x + frame.width - x(this.view.x1), height);
    context.strokeStyle = this.colour("ink");
    context.lineWidth = this.ratio;
    const top = Math.max(y(this.view.y1), 0);
    context.strokeRect(
      x(this.view.x0) + 0.5,
      top + 0.5,
      Math.max(x(this.view.x1) - x(this.view.x0) - 1, 2),
      Math.max(Math.min(y(this.view.y0), height) - top - 1, 2),
    );
  }

  overviewFrame() {
    const left = MARGIN.left * this.ratio;
    return { x: left, width: Math.max(1, this.overview.width - left - MARGIN.right * this.ratio) };
  }

  paintOverview(width, height) {
    const made = document.createElement("canvas");
    made.width = width;
    made.height = height;
    const context = made.getContext("2d");
    context.fillStyle = this.colour("page");
    context.fillRect(0, 0, width, height);
    const frame = this.overviewFrame();
    const painter = new Painter(this.model);
    painter.resize(Math.round(frame.width), height);
    painter.paint(this.view.full, this.palette, new Set(), null);
    painter.place(context, Math.round(frame.x), 0);
    return made;
  }

  // --- pointing

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
    this.lastPoint = { x, y };
    const allocation = hit ? hit.allocation : null;
    this.writeTip(allocation, x, y);
    if (allocation === this.hovered) return;
    this.hovered = allocation;
    if (this.pinned === null) this.writeDetails(allocation);
    this.redraw();
  }

  leave() {
    this.hovered = null;
    document.getElementById("tip").hidden = true;
    if (this.pinned === null) this.writeDetails(null);
    this.redraw();
  }

  pin(allocation) {
    this.pinned = allocation;
    document.getElementById("to-pinned").disabled = allocation === null;
    this.writeDetails(allocation === null ? this.hovered : allocation);
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

  // --- what is written beside it

  writeFacts() {
    const { data, model } = this;
    const facts = document.getElementById("facts");
    const peakPhase = data.phases.find(([, first, end]) => first < model.peak && model.peak < end);
    const parts = [["peak ", size(model.total[model.peak]), peakPhase ? ` in ${peakPhase[0]}` : ""]];
    if (data.reserved) parts.push(["reserved ", size(this.reservedPeak), " at most"]);
    parts.push(["", plural(model.count, "allocation"), ""], ["", plural(model.states - 1, "event"), ""]);
    if (data.device) parts.push(["", data.device, ""]);
    parts.forEach(([before, value, after], index) => {
      if (index) facts.append(" · ");
      facts.append(before, element("b", value), after);
    });
  }

  writeLegend() {
    const legend = document.getElementById("legend");
    const atPeak = new Float64Array(this.data.categories.length);
    const ever = new Set(this.data.category);
    const { born, died, category, size: sizes } = this.data;
    for (let i = 0; i < this.model.count; i++) {
      if (born[i] <= this.model.peak && this.model.peak < died[i]) atPeak[category[i]] += sizes[i];
    }
    for (const code of this.data.stacking) {
      if (!ever.has(code)) continue;
      const item = element("li", null, { title: "bytes at the peak" });
      const { name, colour } = this.data.categories[code];
      item.append(chip(colour), name, element("span", size(atPeak[code])));
      legend.append(item);
    }
    if (this.data.reserved) {
      const item = element("li", null, { title: "the most the allocator took from the device" });
      item.append(element("i", null, { class: "dashed" }), "reserved", element("span", size(this.reservedPeak)));
      legend.append(item);
    }
  }

  writeGroups() {
    const list = document.getElementById("groups");
    for (const group of this.data.groups) {
      const item = element("li");
      const button = element("button", null, { type: "button" });
      const { name, colour } = this.data.categories[group.category];
      const title = element("span");
      title.append(element("b", group.count > 1 ? `${count(group.count)} × ${size(group.size)}` : size(group.size)), ` ${name}`);
      button.append(chip(colour), title, element("b", size(group.count * group.size)), element("small", group.place));
      button.addEventListener("click", () => {
        this.pin(group.first);
        this.zoomTo(group.first);
      });
      item.append(button);
      list.append(item);
    }
    if (!this.data.groups.length) list.append(element("li", "Nothing was allocated.", { class: "quiet" }));
  }

  moduleOf(allocation) {
    const module = this.data.module[allocation];
    return module === NONE ? "" : this.data.modules[module];
  }

  writeTip(allocation, x, y) {
    const tip = document.getElementById("tip");
    tip.hidden = allocation === null;
    if (allocation === null) return;
    const { name, colour } = this.data.categories[this.data.category[allocation]];
    const frame = this.frames(this.data.stack[allocation]).find((one) => !one.library);
    // An inferred module is the whole way through the code: too long for a tip.
    const module = this.data.inferred ? "" : this.moduleOf(allocation);
    const place = module || (frame ? `${frame.file}:${frame.line} ${frame.name}` : "");
    const mark = chip(colour);
    mark.style.marginRight = "6px";
    tip.replaceChildren(mark, element("b", size(this.data.size[allocation])), ` ${name}`);
    if (place) tip.append(element("br"), element("span", place, { class: "quiet" }));
    const right = x > this.plot.x + this.plot.width / 2;
    tip.style.left = right ? "auto" : `${x + 14}px`;
    tip.style.right = right ? `${this.canvas.width / this.ratio - x + 14}px` : "auto";
    const low = y > this.plot.y + this.plot.height - 90;
    tip.style.top = low ? "auto" : `${y + 16}px`;
    tip.style.bottom = low ? `${this.canvas.height / this.ratio - y + 12}px` : "auto";
  }

  frames(stack) {
    if (stack === NONE) return [];
    const { frames, strings, stackStart, stackFrame } = this.data;
    const found = [];
    for (let k = stackStart[stack]; k < stackStart[stack + 1]; k++) {
      const [filename, line, name] = frames[stackFrame[k]];
      const path = strings[filename];
      const library = /site-packages|[/\\]torch[/\\]|[/\\]lib[/\\]python/.test(path);
      const parts = path.split(/[/\\]/);
      const short = parts.length > 3 ? `…/${parts.slice(-2).join("/")}` : path;
      found.push({ path, short, file: parts[parts.length - 1], line, name: strings[name], library });
    }
    return found;
  }

  phaseNames(state) {
    const names = this.data.phases.filter(([, first, end]) => first < state && state < end).map(([name]) => name);
    return names[0];
  }

  lifetime(allocation) {
    const { born, died, time } = this.data;
    const { states } = this.model;
    const first = born[allocation];
    const end = died[allocation];
    const from = first === 0 ? "from before the trace" : `from event ${count(first)}`;
    const to = end >= states ? "to the end" : `to event ${count(end)}`;
    const length = end - first;
    const lasted = time && first > 0 && end < states ? `, ${duration(time[end] - time[first])}` : "";
    return `${from} ${to}: ${plural(length, "event")}${lasted}`;
  }

  writeDetails(allocation) {
    const panel = document.getElementById("details");
    const title = document.getElementById("details-title");
    title.textContent = this.pinned === null ? "Allocation" : "Pinned allocation";
    if (allocation === null) {
      panel.replaceChildren(element("p", "Point at the timeline to see what is there. Click to keep it.", { class: "quiet" }));
      return;
    }
    const { data } = this;
    const { name, colour } = data.categories[data.category[allocation]];
    const headline = element("div", size(data.size[allocation]), { class: "headline-size" });
    const kind = element("small");
    kind.append(chip(colour), name);
    headline.append(kind);
    const rows = element("dl");
    const row = (term, text) => text && rows.append(element("dt", term), element("dd", text));
    row("Module", this.moduleOf(allocation) || "—");
    row("Phase", this.lifePhases(allocation));
    row("Lifetime", this.lifetime(allocation));
    row("Bytes", this.exactBytes(allocation));
    if (data.address[allocation]) row("Address", `0x${data.address[allocation].toString(16)}`);
    panel.replaceChildren(headline, rows, ...this.stackLists(allocation));
  }

  lifePhases(allocation) {
    const { born, died } = this.data;
    const made = this.phaseNames(born[allocation]);
    const gone = died[allocation] < this.model.states ? this.phaseNames(died[allocation]) : undefined;
    const parts = [made && `allocated in ${made}`, gone && `released in ${gone}`].filter(Boolean);
    return parts.join(", ") || "—";
  }

  exactBytes(allocation) {
    const counted = this.data.size[allocation];
    const asked = this.data.requested[allocation];
    return counted === asked ? count(counted) : `${count(counted)}, of which ${count(asked)} requested`;
  }

  stackLists(allocation) {
    const lists = [];
    const made = this.frames(this.data.stack[allocation]);
    // Some recorders repeat the stack of the allocation where that of the release should be.
    const same = this.data.freed[allocation] === this.data.stack[allocation];
    const freed = same ? [] : this.frames(this.data.freed[allocation]);
    if (made.length) lists.push(this.stackList(made));
    else lists.push(element("p", this.data.born[allocation] ? "No stack was recorded." : "Allocated before the trace: no stack.", { class: "quiet" }));
    if (freed.length) {
      const heading = element("p", "Released at", { class: "quiet" });
      heading.style.marginTop = "10px";
      lists.push(heading, this.stackList(freed));
    }
    return lists;
  }

  stackList(frames) {
    const list = element("ol", null, { class: "stack" });
    for (const { path, short, line, name, library } of frames) {
      const item = element("li", null, { class: library ? "library" : "own", title: `${path}:${line}` });
      item.append(`${name} `, element("span", `${short}:${line}`));
      list.append(item);
    }
    return list;
  }

  // --- finding

  search(text) {
    const wanted = text.trim().toLowerCase();
    const status = document.getElementById("matches");
    this.matches = [];
    this.found = null;
    status.textContent = "";
    if (wanted) {
      this.found = this.matching(wanted);
      let live = 0;
      const { born, died, size: sizes } = this.data;
      for (let i = 0; i < this.model.count; i++) {
        if (!this.found[i]) continue;
        this.matches.push(i);
        if (born[i] <= this.model.peak && this.model.peak < died[i]) live += sizes[i];
      }
      this.matches.sort((a, b) => sizes[b] - sizes[a]);
      status.textContent = `${plural(this.matches.length, "allocation")}, ${size(live)} at the peak`;
    }
    this.matchIndex = NONE;
    this.redraw();
  }

  // A byte per allocation: 1 where its category, module or a frame of its stack holds the text.
  matching(wanted) {
    const { data } = this;
    const holds = (text) => (text.toLowerCase().includes(wanted) ? 1 : 0);
    const strings = data.strings.map(holds);
    const frames = data.frames.map(([filename, , name]) => strings[filename] | strings[name]);
    const stacks = new Uint8Array(data.stackStart.length - 1);
    for (let stack = 0; stack < stacks.length; stack++) {
      for (let k = data.stackStart[stack]; k < data.stackStart[stack + 1] && !stacks[stack]; k++) {
        stacks[stack] = frames[data.stackFrame[k]];
      }
    }
    const modules = data.modules.map(holds);
    const categories = data.categories.map(({ name }) => holds(name));
    const found = new Uint8Array(this.model.count);
    for (let i = 0; i < found.length; i++) {
      const module = data.module[i] !== NONE && modules[data.module[i]];
      const stack = data.stack[i] !== NONE && stacks[data.stack[i]];
      found[i] = categories[data.category[i]] || module || stack ? 1 : 0;
    }
    return found;
  }

  nextMatch(step) {
    if (!this.matches || !this.matches.length) return;
    this.matchIndex = (this.matchIndex + step + this.matches.length) % this.matches.length;
    this.pin(this.matches[this.matchIndex]);
    this.zoomTo(this.pinned);
  }

  // --- hands

  listen() {
    const on = (id, type, handler) => document.getElementById(id).addEventListener(type, handler);
    const middle = () => [this.plot.x + this.plot.width / 2, this.plot.y + this.plot.height / 2];
    on("zoom-in", "click", () => this.zoomBy(0.6, ...middle()));
    on("zoom-out", "click", () => this.zoomBy(1 / 0.6, ...middle()));
    on("fit", "click", () => this.animate(this.view.full));
    on("to-peak", "click", () => this.zoomToPeak());
    on("to-pinned", "click", () => this.pinned !== null && this.zoomTo(this.pinned));
    on("theme", "click", () => this.setTheme(!this.dark));
    on("stacking", "change", (event) => {
      this.model.stackBy(event.target.value);
      this.painter.restack();
      this.pointer = new Sweep(this.model);
      this.overviewImage = null;
      this.redraw();
    });
    on("search", "input", (event) => this.search(event.target.value));
    on("search", "keydown", (event) => {
      if (event.key === "Enter") this.nextMatch(event.shiftKey ? -1 : 1);
      if (event.key === "Escape") event.target.blur();
    });
    document.addEventListener("keydown", (event) => this.key(event, middle()));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (event) => this.setTheme(event.matches));
    this.listenToCanvas();
    this.listenToOverview();
  }

  key(event, [x, y]) {
    if (event.target.matches("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
    const { view } = this;
    const across = (view.x1 - view.x0) * 0.12;
    const up = (view.y1 - view.y0) * 0.12;
    const actions = {
      "+": () => this.zoomBy(0.7, x, y),
      "=": () => this.zoomBy(0.7, x, y),
      "-": () => this.zoomBy(1 / 0.7, x, y),
      0: () => this.animate(view.full),
      p: () => this.zoomToPeak(),
      ArrowLeft: () => view.pan(-across, 0),
      ArrowRight: () => view.pan(across, 0),
      ArrowUp: () => view.pan(0, up),
      ArrowDown: () => view.pan(0, -up),
      "/": () => document.getElementById("search").focus(),
      Escape: () => this.pin(null),
    };
    if (event.key === "Enter" && !event.target.matches("button") && this.pinned !== null) this.zoomTo(this.pinned);
    if (!(event.key in actions)) return;
    event.preventDefault();
    actions[event.key]();
    this.redraw();
  }

  local(event) {
    const box = this.canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  listenToCanvas() {
    const { canvas } = this;
    const touches = new Map();
    let moved = 0;
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      const [x, y] = this.local(event);
      const lines = event.deltaMode === 1 ? 30 : 1;
      const factor = Math.exp(Math.max(-400, Math.min(400, event.deltaY * lines)) * 0.0022);
      const axis = x < this.plot.x ? "y" : y > this.plot.y + this.plot.height ? "x" : event.shiftKey ? "x" : "both";
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        this.view.pan((event.deltaX / this.plot.width) * (this.view.x1 - this.view.x0), 0);
        this.redraw();
      } else this.zoomBy(factor, x, y, axis);
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      touches.set(event.pointerId, this.local(event));
      if (touches.size === 1) moved = 0;
    });
    canvas.addEventListener("pointermove", (event) => {
      const point = this.local(event);
      if (!touches.has(event.pointerId)) {
        this.hover(...point);
        return;
      }
      const before = [...touches.values()].map((touch) => [...touch]);
      const old = touches.get(event.pointerId);
      moved += Math.abs(point[0] - old[0]) + Math.abs(point[1] - old[1]);
      touches.set(event.pointerId, point);
      if (moved > 5) this.drag(before, [...touches.values()]);
    });
    const end = (event) => {
      if (!touches.delete(event.pointerId)) return;
      canvas.classList.remove("moving");
      if (event.type === "pointerup" && moved <= 5 && touches.size === 0) {
        const hit = this.allocationAt(...this.local(event));
        this.pin(hit && hit.allocation !== this.pinned ? hit.allocation : null);
        // A finger does not hover: what it points at shows when it taps.
        if (event.pointerType !== "mouse") this.writeTip(this.pinned, ...this.local(event));
      }
    };
    canvas.addEventListener("pointerup", end);
    canvas.addEventListener("pointercancel", end);
    canvas.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && this.leave());
    canvas.addEventListener("dblclick", (event) => {
      const hit = this.allocationAt(...this.local(event));
      if (!hit) return;
      this.pin(hit.allocation);
      this.zoomTo(hit.allocation, this.pointer.state);
    });
  }

  // One finger or the mouse moves the view; two also zoom it.
  drag(before, after) {
    const { view, plot } = this;
    this.canvas.classList.add("moving");
    const middle = (points) => [0, 1].map((axis) => points.reduce((sum, point) => sum + point[axis], 0) / points.length);
    const [oldX, oldY] = middle(before);
    const [x, y] = middle(after);
    view.pan(((oldX - x) / plot.width) * (view.x1 - view.x0), ((y - oldY) / plot.height) * (view.y1 - view.y0));
    if (before.length > 1) {
      const spread = (points) => Math.hypot(points[0][0] - points[1][0], points[0][1] - points[1][1]);
      this.zoomBy(spread(before) / Math.max(spread(after), 1), x, y);
    }
    this.redraw();
  }

  listenToOverview() {
    const { overview } = this;
    let dragging = false;
    const centre = (event) => {
      const box = overview.getBoundingClientRect();
      const frame = this.overviewFrame();
      const state = (((event.clientX - box.left) * this.ratio - frame.x) / frame.width) * this.view.full.x1;
      const width = this.view.x1 - this.view.x0;
      this.view.set({ ...this.view.rectangle(), x0: state - width / 2, x1: state + width / 2 });
      this.redraw();
    };
    overview.addEventListener("pointerdown", (event) => {
      overview.setPointerCapture(event.pointerId);
      dragging = true;
      centre(event);
    });
    overview.addEventListener("pointermove", (event) => dragging && centre(event));
    for (const type of ["pointerup", "pointercancel"]) overview.addEventListener(type, () => (dragging = false));
    overview.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.zoomBy(Math.exp(event.deltaY * 0.0022), this.plot.x + this.plot.width / 2, this.plot.y, "x");
    }, { passive: false });
  }
}

// ---------------------------------------------------------------------------------------------------------- start

async function start() {
  const problem = document.getElementById("problem");
  try {
    if (typeof DecompressionStream === "undefined") throw new Error("this browser is older than 2023 and cannot unpack the data");
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
