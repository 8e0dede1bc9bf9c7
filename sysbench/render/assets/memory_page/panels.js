// What is written beside the picture. Text is only ever set as text: names come from anywhere.
class Panels {
  constructor(page) {
    this.page = page;
  }

  writeFacts() {
    const { data, model } = this.page;
    const facts = document.getElementById("facts");
    const peakPhase = data.phases.find(([, first, end]) => first < model.peak && model.peak < end);
    const parts = [["peak ", size(model.total[model.peak]), peakPhase ? ` in ${peakPhase[0]}` : ""]];
    if (data.reserved) parts.push(["reserved ", size(this.page.reservedPeak), " at most"]);
    parts.push(["", plural(model.count, "allocation"), ""], ["", plural(model.states - 1, "event"), ""]);
    if (data.device) parts.push(["", data.device, ""]);
    parts.forEach(([before, value, after], index) => {
      if (index) facts.append(" · ");
      facts.append(before, element("b", value), after);
    });
  }

  writeLegend() {
    const legend = document.getElementById("legend");
    const atPeak = new Float64Array(this.page.data.categories.length);
    const ever = new Set(this.page.data.category);
    const { born, died, category, size: sizes } = this.page.data;
    for (let i = 0; i < this.page.model.count; i++) {
      if (born[i] <= this.page.model.peak && this.page.model.peak < died[i]) atPeak[category[i]] += sizes[i];
    }
    for (const code of this.page.data.stacking) {
      if (!ever.has(code)) continue;
      const item = element("li", null, { title: "bytes at the peak" });
      const { name, colour } = this.page.data.categories[code];
      item.append(chip(colour), name, element("span", size(atPeak[code])));
      legend.append(item);
    }
    if (this.page.data.reserved) {
      const item = element("li", null, { title: "peak of reserved memory" });
      item.append(element("i", null, { class: "dashed" }), "reserved", element("span", size(this.page.reservedPeak)));
      legend.append(item);
    }
  }

  writeGroups() {
    const list = document.getElementById("groups");
    for (const group of this.page.data.groups) {
      const item = element("li");
      const button = element("button", null, { type: "button" });
      const { name, colour } = this.page.data.categories[group.category];
      const title = element("span");
      const times = group.count > 1 ? `${count(group.count)} × ` : "";
      title.append(element("b", times + size(group.size)), ` ${name}`);
      button.append(chip(colour), title, element("b", size(group.count * group.size)), element("small", group.place));
      button.addEventListener("click", () => {
        this.page.pin(group.first);
        this.page.zoomTo(group.first);
      });
      item.append(button);
      list.append(item);
    }
    if (!this.page.data.groups.length) list.append(element("li", "Nothing was allocated.", { class: "quiet" }));
  }

  moduleOf(allocation) {
    const module = this.page.data.module[allocation];
    return module === NONE ? "" : this.page.data.modules[module];
  }

  writeTip(allocation, x, y) {
    const tip = document.getElementById("tip");
    tip.hidden = allocation === null;
    if (allocation === null) return;
    const { name, colour } = this.page.data.categories[this.page.data.category[allocation]];
    const frame = this.frames(this.page.data.stack[allocation]).find((one) => !one.library);
    const module = this.moduleOf(allocation);
    const place = module || (frame ? `${frame.file}:${frame.line} ${frame.name}` : "");
    const mark = chip(colour);
    mark.style.marginRight = "6px";
    tip.replaceChildren(mark, element("b", size(this.page.data.size[allocation])), ` ${name}`);
    if (place) tip.append(element("br"), element("span", place, { class: "quiet" }));
    const right = x > this.page.plot.x + this.page.plot.width / 2;
    tip.style.left = right ? "auto" : `${x + 14}px`;
    tip.style.right = right ? `${this.page.canvas.width / this.page.ratio - x + 14}px` : "auto";
    const low = y > this.page.plot.y + this.page.plot.height - 90;
    tip.style.top = low ? "auto" : `${y + 16}px`;
    tip.style.bottom = low ? `${this.page.canvas.height / this.page.ratio - y + 12}px` : "auto";
  }

  frames(stack) {
    if (stack === NONE) return [];
    const { frames, strings, stackStart, stackFrame } = this.page.data;
    const found = [];
    for (let k = stackStart[stack]; k < stackStart[stack + 1]; k++) {
      const [filename, line, name, library] = frames[stackFrame[k]];
      const path = strings[filename];
      const parts = path.split(/[/\\]/);
      const short = parts.length > 3 ? `…/${parts.slice(-2).join("/")}` : path;
      found.push({ path, short, file: parts[parts.length - 1], line, name: strings[name], library });
    }
    return found;
  }

  phaseNames(state) {
    const names = this.page.data.phases.filter(([, first, end]) => first < state && state < end).map(([name]) => name);
    return names[0];
  }

  lifetime(allocation) {
    const { born, died, time } = this.page.data;
    const { states } = this.page.model;
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
    title.textContent = this.page.pinned === null ? "Allocation" : "Pinned allocation";
    if (allocation === null) {
      const invitation = "Hover over the timeline to inspect an allocation; click to pin it.";
      panel.replaceChildren(element("p", invitation, { class: "quiet" }));
      return;
    }
    const { data } = this.page;
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
    const { born, died } = this.page.data;
    const made = this.phaseNames(born[allocation]);
    const gone = died[allocation] < this.page.model.states ? this.phaseNames(died[allocation]) : undefined;
    const parts = [made && `allocated in ${made}`, gone && `released in ${gone}`].filter(Boolean);
    return parts.join(", ") || "—";
  }

  exactBytes(allocation) {
    const counted = this.page.data.size[allocation];
    const asked = this.page.data.requested[allocation];
    return counted === asked ? count(counted) : `${count(counted)}, of which ${count(asked)} requested`;
  }

  stackLists(allocation) {
    const lists = [];
    const made = this.frames(this.page.data.stack[allocation]);
    // Some recorders repeat the stack of the allocation where that of the release should be.
    const same = this.page.data.freed[allocation] === this.page.data.stack[allocation];
    const freed = same ? [] : this.frames(this.page.data.freed[allocation]);
    if (made.length) lists.push(this.stackList(made));
    else {
      const inTrace = this.page.data.born[allocation] > 0;
      const reason = inTrace ? "No stack was recorded." : "Allocated before the trace: no stack.";
      lists.push(element("p", reason, { class: "quiet" }));
    }
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
}
