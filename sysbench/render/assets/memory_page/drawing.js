const MARGIN = { left: 86, right: 14, top: 22, bottom: 40 };

// Draws what the painter does not: axes, phases, lines, outlines, and the overview below.
class Drawing {
  constructor(page) {
    this.page = page;
  }

  draw() {
    const begun = performance.now();
    const context = this.page.canvas.getContext("2d");
    const { ratio, plot } = this.page;
    const marked = new Set([this.page.pinned, this.page.hovered].filter((allocation) => allocation !== null));
    this.page.painter.resize(Math.round(plot.width * ratio), Math.round(plot.height * ratio));
    this.page.painter.paint(this.page.view, this.page.palette, marked, this.page.found);
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, this.page.canvas.width, this.page.canvas.height);
    context.fillStyle = this.page.colour("page");
    context.fillRect(0, 0, this.page.canvas.width, this.page.canvas.height);
    this.drawPhases(context);
    this.page.painter.place(context, Math.round(plot.x * ratio), Math.round(plot.y * ratio));
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.drawLines(context);
    this.drawOutlines(context);
    this.drawAxes(context);
    this.drawOverview();
    const { x0, x1, y0, y1 } = this.page.view;
    this.page.canvas.dataset.view = [x0, x1, y0, y1].join(" ");
    performance.measure("draw", { start: begun, end: performance.now() });
  }

  toX(state) {
    const { plot, view } = this.page;
    return plot.x + ((state - view.x0) / (view.x1 - view.x0)) * plot.width;
  }

  toY(bytes) {
    const { plot, view } = this.page;
    return plot.y + ((view.y1 - bytes) / (view.y1 - view.y0)) * plot.height;
  }

  inside(context, drawn) {
    context.save();
    context.beginPath();
    context.rect(this.page.plot.x, this.page.plot.y, this.page.plot.width, this.page.plot.height);
    context.clip();
    drawn();
    context.restore();
  }

  drawPhases(context) {
    const { plot, ratio } = this.page;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.font = "11px system-ui, sans-serif";
    context.textAlign = "center";
    context.textBaseline = "middle";
    this.page.data.phases.forEach(([name, first, end, darker]) => {
      const left = Math.max(plot.x, this.toX(first + 1));
      const right = Math.min(plot.x + plot.width, this.toX(end));
      if (right - left < 0.5) return;
      context.fillStyle = this.page.colour(darker ? "grid" : "phase");
      context.fillRect(left, plot.y, right - left, plot.height);
      context.fillRect(left, 2, right - left, plot.y - 4);
      context.fillStyle = this.page.colour("quiet");
      if (context.measureText(name).width + 8 < right - left) context.fillText(name, (left + right) / 2, plot.y / 2);
    });
  }

  drawLines(context) {
    const { plot, data, view } = this.page;
    this.inside(context, () => {
      if (data.reserved) {
        context.strokeStyle = this.page.colour("quiet");
        context.lineWidth = 1.25;
        context.setLineDash([5, 3]);
        context.beginPath();
        const states = this.page.painter.columnState;
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
    const { plot } = this.page;
    const { peak, total } = this.page.model;
    const x = this.toX(peak + 0.5);
    const y = this.toY(total[peak]);
    const within = peak + 1 >= view.x0 && peak <= view.x1 && y >= plot.y - 1 && y <= plot.y + plot.height;
    if (!within) return;
    const label = `peak ${size(total[peak])}`;
    context.font = "600 12px system-ui, sans-serif";
    const width = context.measureText(label).width;
    const left = Math.max(plot.x + 2, Math.min(plot.x + plot.width - width - 12, x - width / 2 - 5));
    const top = Math.max(plot.y + 2, y - 30);
    context.fillStyle = this.page.colour("page");
    context.strokeStyle = this.page.colour("ink");
    context.lineWidth = 1;
    context.beginPath();
    context.roundRect(left, top, width + 10, 18, 4);
    context.fill();
    context.stroke();
    context.fillStyle = this.page.colour("ink");
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
    if (x < this.page.plot.x || x > this.page.plot.x + this.page.plot.width) return;
    context.strokeStyle = context.fillStyle = "#d1242f";
    context.lineWidth = 1.5;
    context.beginPath();
    context.moveTo(x, this.page.plot.y);
    context.lineTo(x, this.page.plot.y + this.page.plot.height);
    context.stroke();
    context.font = "600 12px system-ui, sans-serif";
    context.textAlign = x > this.page.plot.x + this.page.plot.width / 2 ? "right" : "left";
    context.textBaseline = "top";
    const label = ` out of memory: ${size(requested)} asked for `;
    context.fillText(label, x, this.page.plot.y + 4);
  }

  drawOutlines(context) {
    const { ratio, plot } = this.page;
    this.inside(context, () => {
      for (const [allocation, spans] of this.page.painter.outline) {
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
        context.lineWidth = allocation === this.page.pinned ? 4 : 3;
        context.strokeStyle = this.page.colour("page");
        context.stroke(path);
        context.lineWidth = allocation === this.page.pinned ? 2 : 1.25;
        context.strokeStyle = this.page.colour("ink");
        context.stroke(path);
      }
    });
  }

  drawAxes(context) {
    const { plot, view } = this.page;
    context.font = "11.5px system-ui, sans-serif";
    context.fillStyle = this.page.colour("quiet");
    context.strokeStyle = this.page.colour("grid");
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
    context.strokeStyle = this.page.colour("quiet");
    context.strokeRect(plot.x - 0.5, plot.y - 0.5, plot.width + 1, plot.height + 1);
  }

  // Ticks in the unit of the top; far in, as what lies above the bottom, since 40.12345 GiB says nothing.
  drawByteAxis(context) {
    const { plot, view } = this.page;
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
      const above = tick === origin ? size(tick) : `+${size(tick - origin)}`;
      context.fillText(relative ? above : (tick / unit).toFixed(decimals), plot.x - 6, y);
    }
    context.save();
    context.translate(9, plot.y + plot.height / 2);
    context.rotate(-Math.PI / 2);
    context.textAlign = "center";
    context.fillText(relative ? "allocated" : `allocated, ${UNITS[power]}`, 0, 0);
    context.restore();
  }

  drawOverview() {
    const context = this.page.overview.getContext("2d");
    const { width, height } = this.page.overview;
    if (!this.page.overviewImage) this.page.overviewImage = this.paintOverview(width, height);
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.drawImage(this.page.overviewImage, 0, 0);
    const { full } = this.page.view;
    const frame = this.overviewFrame();
    const x = (state) => frame.x + (state / full.x1) * frame.width;
    const y = (bytes) => (1 - bytes / full.y1) * height;
    context.fillStyle = this.page.dark ? "rgba(16, 20, 24, 0.62)" : "rgba(255, 255, 255, 0.66)";
    context.fillRect(frame.x, 0, x(this.page.view.x0) - frame.x, height);
    context.fillRect(x(this.page.view.x1), 0, frame.x + frame.width - x(this.page.view.x1), height);
    context.strokeStyle = this.page.colour("ink");
    context.lineWidth = this.page.ratio;
    const top = Math.max(y(this.page.view.y1), 0);
    context.strokeRect(
      x(this.page.view.x0) + 0.5,
      top + 0.5,
      Math.max(x(this.page.view.x1) - x(this.page.view.x0) - 1, 2),
      Math.max(Math.min(y(this.page.view.y0), height) - top - 1, 2),
    );
  }

  overviewFrame() {
    const left = MARGIN.left * this.page.ratio;
    return { x: left, width: Math.max(1, this.page.overview.width - left - MARGIN.right * this.page.ratio) };
  }

  paintOverview(width, height) {
    const made = document.createElement("canvas");
    made.width = width;
    made.height = height;
    const context = made.getContext("2d");
    context.fillStyle = this.page.colour("page");
    context.fillRect(0, 0, width, height);
    const frame = this.overviewFrame();
    const painter = new Painter(this.page.model);
    painter.resize(Math.round(frame.width), height);
    painter.paint(this.page.view.full, this.page.palette, new Set(), null);
    painter.place(context, Math.round(frame.x), 0);
    return made;
  }
}
