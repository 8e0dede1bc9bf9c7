"use strict";

// The memory timeline: every live allocation of every state, stacked. Nothing is loaded from anywhere.
//
// Time is counted in states: state 0 is before the first event of the allocator, and each event leads to the next.
// An allocation is live in the states born … died − 1; allocations are numbered in the order of their birth.
//
// A frame is painted column by column: a sweep moves through the states and keeps the live allocations in linked
// lists, and each column paints the lists as they are in its state. What lies below the first change since the column
// before is taken over from there. So the work is that of what changes in view, whatever else there is.

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
    arrays[name] = new kinds[kind](buffer, 4 + headerLength + offset, length);
  }
  return { ...header, ...arrays };
}

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
  return Math.round(number).toString().replace(/\B(?=(\d{3})+$)/g, ",");
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
