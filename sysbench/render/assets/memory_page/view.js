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
