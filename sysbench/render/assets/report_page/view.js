// The part of a figure that is looked at: a rectangle within the whole one, in its own units.
const MOST_ZOOM = 24;

class View {
  constructor(x, y, width, height) {
    this.whole = { x, y, width, height };
    this.fit();
  }

  fit() {
    Object.assign(this, this.whole);
  }

  get zoom() {
    return this.whole.width / this.width;
  }

  // By a factor, around a point of the figure that stays where it is.
  zoomBy(factor, x, y) {
    const zoom = Math.min(MOST_ZOOM, Math.max(1, this.zoom * factor));
    const share = this.whole.width / zoom / this.width;
    this.x = x - (x - this.x) * share;
    this.y = y - (y - this.y) * share;
    this.width *= share;
    this.height *= share;
    this.stayInside();
  }

  moveBy(x, y) {
    this.x += x;
    this.y += y;
    this.stayInside();
  }

  stayInside() {
    const { x, y, width, height } = this.whole;
    this.x = Math.min(Math.max(this.x, x), x + width - this.width);
    this.y = Math.min(Math.max(this.y, y), y + height - this.height);
  }

  toString() {
    return [this.x, this.y, this.width, this.height].map((each) => each.toFixed(3)).join(" ");
  }
}
