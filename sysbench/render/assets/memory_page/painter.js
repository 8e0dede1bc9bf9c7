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
        if (lowRow - highRow > 2 && lowRow <= height) {
          pixels[end - 1] = (shown ? palette.edge : palette.fadedEdge)[kind];
        }
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
