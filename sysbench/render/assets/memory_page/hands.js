// What hands do: the mouse, fingers, keys and buttons.
class Hands {
  constructor(page) {
    this.page = page;
  }

  listen() {
    const on = (id, type, handler) => document.getElementById(id).addEventListener(type, handler);
    const middle = () => [this.page.plot.x + this.page.plot.width / 2, this.page.plot.y + this.page.plot.height / 2];
    on("zoom-in", "click", () => this.page.zoomBy(0.6, ...middle()));
    on("zoom-out", "click", () => this.page.zoomBy(1 / 0.6, ...middle()));
    on("fit", "click", () => this.page.animate(this.page.view.full));
    on("to-peak", "click", () => this.page.zoomToPeak());
    on("to-pinned", "click", () => this.page.pinned !== null && this.page.zoomTo(this.page.pinned));
    on("theme", "click", () => this.page.setTheme(!this.page.dark));
    on("stacking", "change", (event) => {
      this.page.model.stackBy(event.target.value);
      this.page.painter.restack();
      this.page.pointer = new Sweep(this.page.model);
      this.page.overviewImage = null;
      this.page.redraw();
    });
    on("search", "input", (event) => this.page.finder.search(event.target.value));
    on("search", "keydown", (event) => {
      if (event.key === "Enter") this.page.finder.nextMatch(event.shiftKey ? -1 : 1);
      if (event.key === "Escape") event.target.blur();
    });
    document.addEventListener("keydown", (event) => this.key(event, middle()));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (event) => this.page.setTheme(event.matches));
    this.listenToCanvas();
    this.listenToOverview();
  }

  key(event, [x, y]) {
    if (event.target.matches("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
    const { view } = this.page;
    const across = (view.x1 - view.x0) * 0.12;
    const up = (view.y1 - view.y0) * 0.12;
    const actions = {
      "+": () => this.page.zoomBy(0.7, x, y),
      "=": () => this.page.zoomBy(0.7, x, y),
      "-": () => this.page.zoomBy(1 / 0.7, x, y),
      0: () => this.page.animate(view.full),
      p: () => this.page.zoomToPeak(),
      ArrowLeft: () => view.pan(-across, 0),
      ArrowRight: () => view.pan(across, 0),
      ArrowUp: () => view.pan(0, up),
      ArrowDown: () => view.pan(0, -up),
      "/": () => document.getElementById("search").focus(),
      Escape: () => this.page.pin(null),
    };
    const pinned = event.target.matches("button") ? null : this.page.pinned;
    if (event.key === "Enter" && pinned !== null) this.page.zoomTo(pinned);
    if (!(event.key in actions)) return;
    event.preventDefault();
    actions[event.key]();
    this.page.redraw();
  }

  local(event) {
    const box = this.page.canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  listenToCanvas() {
    const { canvas } = this.page;
    const touches = new Map();
    let moved = 0;
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      const [x, y] = this.local(event);
      const lines = event.deltaMode === 1 ? 30 : 1;
      const factor = Math.exp(Math.max(-400, Math.min(400, event.deltaY * lines)) * 0.0022);
      const below = y > this.page.plot.y + this.page.plot.height;
      const axis = x < this.page.plot.x ? "y" : below || event.shiftKey ? "x" : "both";
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        this.page.view.pan((event.deltaX / this.page.plot.width) * (this.page.view.x1 - this.page.view.x0), 0);
        this.page.redraw();
      } else this.page.zoomBy(factor, x, y, axis);
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      touches.set(event.pointerId, this.local(event));
      if (touches.size === 1) moved = 0;
    });
    canvas.addEventListener("pointermove", (event) => {
      const point = this.local(event);
      if (!touches.has(event.pointerId)) {
        this.page.hover(...point);
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
        const hit = this.page.allocationAt(...this.local(event));
        this.page.pin(hit && hit.allocation !== this.page.pinned ? hit.allocation : null);
        // A finger does not hover: what it points at shows when it taps.
        if (event.pointerType !== "mouse") this.page.panels.writeTip(this.page.pinned, ...this.local(event));
      }
    };
    canvas.addEventListener("pointerup", end);
    canvas.addEventListener("pointercancel", end);
    canvas.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && this.page.leave());
    canvas.addEventListener("dblclick", (event) => {
      const hit = this.page.allocationAt(...this.local(event));
      if (!hit) return;
      this.page.pin(hit.allocation);
      this.page.zoomTo(hit.allocation, this.page.pointer.state);
    });
  }

  // One finger or the mouse moves the view; two also zoom it.
  drag(before, after) {
    const { view, plot } = this.page;
    this.page.canvas.classList.add("moving");
    const mean = (points, axis) => points.reduce((sum, point) => sum + point[axis], 0) / points.length;
    const middle = (points) => [mean(points, 0), mean(points, 1)];
    const [oldX, oldY] = middle(before);
    const [x, y] = middle(after);
    view.pan(((oldX - x) / plot.width) * (view.x1 - view.x0), ((y - oldY) / plot.height) * (view.y1 - view.y0));
    if (before.length > 1) {
      const spread = (points) => Math.hypot(points[0][0] - points[1][0], points[0][1] - points[1][1]);
      this.page.zoomBy(spread(before) / Math.max(spread(after), 1), x, y);
    }
    this.page.redraw();
  }

  listenToOverview() {
    const { overview } = this.page;
    let dragging = false;
    const centre = (event) => {
      const box = overview.getBoundingClientRect();
      const frame = this.page.drawing.overviewFrame();
      const state = (((event.clientX - box.left) * this.page.ratio - frame.x) / frame.width) * this.page.view.full.x1;
      const width = this.page.view.x1 - this.page.view.x0;
      this.page.view.set({ ...this.page.view.rectangle(), x0: state - width / 2, x1: state + width / 2 });
      this.page.redraw();
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
      const { plot } = this.page;
      this.page.zoomBy(Math.exp(event.deltaY * 0.0022), plot.x + plot.width / 2, plot.y, "x");
    }, { passive: false });
  }
}
