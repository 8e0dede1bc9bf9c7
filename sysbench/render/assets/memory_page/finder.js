// Finds allocations by category, module, function or file; whatever else there is fades.
class Finder {
  constructor(page) {
    this.page = page;
    this.matches = [];
    this.matchIndex = NONE;
  }

  search(text) {
    const wanted = text.trim().toLowerCase();
    const status = document.getElementById("matches");
    this.matches = [];
    this.page.found = null;
    status.textContent = "";
    if (wanted) {
      this.page.found = this.matching(wanted);
      let live = 0;
      const { born, died, size: sizes } = this.page.data;
      for (let i = 0; i < this.page.model.count; i++) {
        if (!this.page.found[i]) continue;
        this.matches.push(i);
        if (born[i] <= this.page.model.peak && this.page.model.peak < died[i]) live += sizes[i];
      }
      this.matches.sort((a, b) => sizes[b] - sizes[a]);
      status.textContent = `${plural(this.matches.length, "allocation")}, ${size(live)} at the peak`;
    }
    this.matchIndex = NONE;
    this.page.redraw();
  }

  // A byte per allocation: 1 where its category, module or a frame of its stack holds the text.
  matching(wanted) {
    const { data } = this.page;
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
    const found = new Uint8Array(this.page.model.count);
    for (let i = 0; i < found.length; i++) {
      const module = data.module[i] !== NONE && modules[data.module[i]];
      const stack = data.stack[i] !== NONE && stacks[data.stack[i]];
      found[i] = categories[data.category[i]] || module || stack ? 1 : 0;
    }
    return found;
  }

  nextMatch(step) {
    if (!this.matches.length) return;
    this.matchIndex = (this.matchIndex + step + this.matches.length) % this.matches.length;
    this.page.pin(this.matches[this.matchIndex]);
    this.page.zoomTo(this.page.pinned);
  }
}
