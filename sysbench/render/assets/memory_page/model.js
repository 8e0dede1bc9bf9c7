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
