// A figure as large as the window, to be zoomed and moved: with the wheel, with fingers, with keys.
class Enlarged {
  constructor(dialog) {
    this.dialog = dialog;
    this.stage = dialog.querySelector(".stage");
    this.touches = new Map();
    dialog.addEventListener("close", () => this.putBack());
    dialog.addEventListener("click", (event) => this.does(event.target.closest("[data-does]")?.dataset.does));
    dialog.addEventListener("keydown", (event) => this.key(event));
    this.listenToPointers();
  }

  // The drawing itself moves here and back again: a copy would have the same names in it twice.
  open(figure) {
    this.drawing = figure.querySelector("svg, img");
    this.place = document.createComment("the figure is enlarged");
    this.drawing.replaceWith(this.place);
    this.stage.replaceChildren(this.drawing);
    document.getElementById("large-caption").textContent = captionOf(figure);
    this.view = this.drawing.viewBox ? wholeOf(this.drawing.viewBox.baseVal) : new View(0, 0, 1, 1);
    this.dialog.showModal();
    this.stage.focus();
  }

  putBack() {
    this.view.fit();
    this.show();
    this.place.replaceWith(this.drawing);
    this.touches.clear();
  }

  show() {
    if (this.drawing.viewBox) {
      this.drawing.setAttribute("viewBox", this.view);
    } else {
      const { x, y, zoom } = this.view;
      this.drawing.style.transform = zoom === 1 ? "" : `scale(${zoom}) translate(${-x * 100}%, ${-y * 100}%)`;
    }
  }

  does(what) {
    const { view } = this;
    const middle = [view.x + view.width / 2, view.y + view.height / 2];
    if (what === "in") view.zoomBy(1.5, ...middle);
    if (what === "out") view.zoomBy(1 / 1.5, ...middle);
    if (what === "fit") view.fit();
    if (what === "left" || what === "right") view.moveBy((what === "left" ? -0.15 : 0.15) * view.width, 0);
    if (what === "up" || what === "down") view.moveBy(0, (what === "up" ? -0.15 : 0.15) * view.height);
    if (what === "close") this.dialog.close();
    else this.show();
  }

  key(event) {
    const keys = {
      "+": "in", "=": "in", "-": "out", 0: "fit",
      ArrowLeft: "left", ArrowRight: "right", ArrowUp: "up", ArrowDown: "down",
    };
    if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in keys)) return;
    event.preventDefault();
    this.does(keys[event.key]);
  }

  // Units of the figure for a pixel of the screen, across and down.
  perPixel() {
    const box = this.stage.getBoundingClientRect();
    const units = [this.view.width / box.width, this.view.height / box.height];
    // A drawing keeps its proportions and has room to spare on two sides; pixels fill the stage.
    return this.drawing.viewBox ? units.fill(Math.max(...units)) : units;
  }

  // The point of the figure that is under one of the screen.
  under(point) {
    const box = this.stage.getBoundingClientRect();
    const [across, down] = this.perPixel();
    return [
      this.view.x + this.view.width / 2 + (point.clientX - box.left - box.width / 2) * across,
      this.view.y + this.view.height / 2 + (point.clientY - box.top - box.height / 2) * down,
    ];
  }

  listenToPointers() {
    const { stage, touches } = this;
    stage.addEventListener("wheel", (event) => {
      event.preventDefault();
      const lines = event.deltaMode === 1 ? 30 : 1;
      this.view.zoomBy(Math.exp(Math.max(-300, Math.min(300, -event.deltaY * lines)) * 0.0025), ...this.under(event));
      this.show();
    }, { passive: false });
    stage.addEventListener("pointerdown", (event) => {
      stage.setPointerCapture(event.pointerId);
      touches.set(event.pointerId, event);
      stage.classList.add("moving");
    });
    stage.addEventListener("pointermove", (event) => {
      if (!touches.has(event.pointerId)) return;
      const before = [...touches.values()];
      touches.set(event.pointerId, event);
      this.drag(before, [...touches.values()]);
    });
    const end = (event) => {
      touches.delete(event.pointerId);
      stage.classList.toggle("moving", touches.size > 0);
    };
    stage.addEventListener("pointerup", end);
    stage.addEventListener("pointercancel", end);
    stage.addEventListener("dblclick", (event) => {
      if (this.view.zoom > 1.01) this.view.fit();
      else this.view.zoomBy(3, ...this.under(event));
      this.show();
    });
  }

  // One finger or the mouse moves the figure; two also zoom it.
  drag(before, after) {
    const middle = (points, key) => points.reduce((sum, point) => sum + point[key], 0) / points.length;
    const [across, down] = this.perPixel();
    this.view.moveBy(
      (middle(before, "clientX") - middle(after, "clientX")) * across,
      (middle(before, "clientY") - middle(after, "clientY")) * down,
    );
    if (after.length > 1) {
      const spread = ([one, other]) => Math.hypot(one.clientX - other.clientX, one.clientY - other.clientY);
      const at = { clientX: middle(after, "clientX"), clientY: middle(after, "clientY") };
      this.view.zoomBy(spread(after) / Math.max(spread(before), 1), ...this.under(at));
    }
    this.show();
  }
}

function captionOf(figure) {
  return figure.querySelector("figcaption > span").textContent;
}

function wholeOf(box) {
  return new View(box.x, box.y, box.width, box.height);
}

function listenToFigures() {
  const enlarged = new Enlarged(document.getElementById("large"));
  for (const figure of document.querySelectorAll("figure")) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "small";
    button.textContent = "Enlarge";
    button.setAttribute("aria-label", `Enlarge: ${captionOf(figure)}`);
    button.addEventListener("click", () => enlarged.open(figure));
    const picture = figure.querySelector(".picture");
    picture.addEventListener("click", () => enlarged.open(figure));
    figure.querySelector("figcaption").append(button);
  }
}
