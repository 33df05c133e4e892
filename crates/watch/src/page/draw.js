"use strict";
// Drawing of the wall, of columns and of costs, for the page of a run and that of a server.

const at = (id) => document.getElementById(id);
const STATES = ["disk", "memory", "reading", "used", "waited"];
const NAMES = ["on disk", "in memory", "being read", "used", "waited for"];

// Colours of the scheme, until it changes.
const known = new Map();
const scheme = window.matchMedia("(prefers-color-scheme: dark)");
scheme.addEventListener("change", () => known.clear());
function colour(name) {
  if (!known.has(name))
    known.set(name, getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim());
  return known.get(name);
}

const seconds = (s) => s >= 1 ? s.toFixed(2) + " s" : (1000 * s).toFixed(1) + " ms";
const bytes = (b) => {
  for (const [unit, size] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]])
    if (b >= size) return (b / size).toFixed(b >= 100 * size ? 0 : 1) + " " + unit;
  return b + " B";
};
const percent = (share) => Math.round(100 * share) + " %";

function made(name, text, className) {
  const element = document.createElement(name);
  if (text !== undefined) element.textContent = text;
  if (className) element.className = className;
  return element;
}

// Writes the states of letters, from this one on: two in each.
function unpack(letters, start, states) {
  for (let i = 0; i < letters.length; i++) {
    const pair = letters.charCodeAt(i) - 65;
    const to = 2 * (start + i);
    if (to < states.length) states[to] = pair % 5;
    if (to + 1 < states.length) states[to + 1] = Math.floor(pair / 5) % 5;
  }
}

function canvasOf(canvas, height) {
  const ratio = window.devicePixelRatio || 1;
  const width = Math.max(1, canvas.clientWidth);
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.height = height + "px";
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  context.clearRect(0, 0, width, height);
  return [context, width, height];
}

// A mark differs by shape too, where it is large enough.
function mark(context, state, x, y, w, h, colours) {
  context.fillStyle = colours[state];
  const small = Math.min(w, h) < 5;
  const gap = Math.min(w, h) >= 4 ? 1 : 0;
  const inset = state === 2 || state === 4 ? Math.min(w, h) / 8 : 0;
  const [l, t, r, b] = [x + inset, y + inset, x + w - gap - inset, y + h - gap - inset];
  if (small || state === 1 || state === 3) {
    context.fillRect(l, t, r - l, b - t);
  } else if (state === 0) {
    const d = Math.max(1, Math.min(w, h) / 4);
    context.fillRect((l + r - d) / 2, (t + b - d) / 2, d, d);
  } else if (state === 2) {
    context.beginPath();
    context.moveTo(l, t); context.lineTo(r, t); context.lineTo((l + r) / 2, b);
    context.fill();
  } else {
    context.lineWidth = Math.max(1.5, Math.min(w, h) / 4);
    context.strokeStyle = colours[state];
    context.beginPath();
    context.moveTo(l, t); context.lineTo(r, b); context.moveTo(r, t); context.lineTo(l, b);
    context.stroke();
  }
}

// Draws a row for each layer. Several experts share a mark where there are too many.
function drawWall(canvas, rows, states) {
  if (rows.length === 0) return;
  const colours = STATES.map(colour);
  const widest = rows.reduce((most, row) => Math.max(most, row[1]), 1);
  const margin = 34;
  const columns = (canvas.clientWidth || 600) - margin - 4;
  const across = Math.max(1, Math.ceil(widest / (2 * columns)));
  const w = Math.min(30, columns / Math.ceil(widest / across));
  const h = Math.max(3, Math.min(w < 6 ? 8 : w, 22, 640 / rows.length));
  const [context] = canvasOf(canvas, Math.ceil(rows.length * h) + 6);
  const counts = [0, 0, 0, 0, 0];
  context.font = "10px system-ui, sans-serif";
  context.textAlign = "right";
  const every = Math.ceil(12 / h);
  let first = 0;
  rows.forEach(([layer, experts], line) => {
    const y = 3 + line * h;
    if (line % every === 0) {
      context.fillStyle = colour("quiet");
      context.fillText(layer, margin - 6, y + Math.max(h, 9) - 1);
    }
    for (let e = 0; e < experts; e += across) {
      let state = 0;
      for (let k = e; k < Math.min(experts, e + across); k++) {
        counts[states[first + k] || 0] += 1;
        state = Math.max(state, states[first + k] || 0);
      }
      mark(context, state, margin + (e / across) * w, y, w, h, colours);
    }
    first += experts;
  });
  const words = counts.map((n, state) => n + " " + NAMES[state]).filter((_, state) => state !== 2 || counts[2]);
  canvas.setAttribute("aria-label", "Experts: " + words.join(", "));
}

// The marks of a wall in words, for these states; `words` has other ones for some.
function makeLegend(list, states, words) {
  for (const state of states) {
    const item = made("li");
    const canvas = made("canvas");
    canvas.width = canvas.height = 28;
    canvas.dataset.state = state;
    item.append(canvas, words[state] || NAMES[state]);
    list.append(item);
  }
}

function drawLegend(list) {
  list.querySelectorAll("canvas").forEach((canvas) => {
    const context = canvas.getContext("2d");
    context.clearRect(0, 0, 28, 28);
    mark(context, Number(canvas.dataset.state), 2, 2, 24, 24, STATES.map(colour));
  });
}

// A chart of columns: `name`, `keys` (a word and a colour each), `parts` (of a column, or null), `unit`
// (a value in words), and if known `top` and `line`: a value drawn across, with its name.
function makeChart(chart, into) {
  const box = made("div");
  const keys = made("p", undefined, "about");
  for (const [word, name] of chart.keys) {
    keys.append(made("span", undefined, "key key-" + name), word);
  }
  if (chart.line) keys.append(made("span", undefined, "key key-line"), chart.line.name);
  chart.canvas = made("canvas");
  chart.canvas.setAttribute("role", "img");
  box.append(made("h2", chart.name), keys, chart.canvas);
  into.append(box);
}

// Draws `count` columns, several in one where there are too many, and a mark at `here` unless it is null.
function drawChart(chart, count, here, of) {
  const [context, width, height] = canvasOf(chart.canvas, 96);
  const columns = Math.max(1, Math.min(count, Math.floor(width)));
  const sums = [];
  let most = chart.top || (chart.line ? chart.line.value * 1.1 : 0);
  for (let c = 0; c < columns && count > 0; c++) {
    const end = Math.max(Math.floor((c + 1) * count / columns), Math.floor(c * count / columns) + 1);
    let sum = null, n = 0;
    for (let t = Math.floor(c * count / columns); t < end; t++) {
      const parts = chart.parts(t);
      if (!parts || !parts.every(Number.isFinite)) continue;
      sum = sum ? sum.map((s, i) => s + parts[i]) : parts.slice();
      n += 1;
    }
    sums.push(sum && sum.map((s) => s / n));
    if (sum && !chart.top) most = Math.max(most, sum.reduce((a, b) => a + b, 0) / n);
  }
  const bottom = height - 2, tall = height - 18;
  const w = width / columns;
  sums.forEach((parts, c) => {
    let y = bottom;
    (parts || []).forEach((part, i) => {
      const h = most > 0 ? tall * Math.min(1, part / most) : 0;
      context.fillStyle = colour(chart.keys[i][1]);
      context.fillRect(c * w, y - h, Math.max(1, w - (w > 4 ? 1 : 0)), h);
      y -= h;
    });
  });
  context.fillStyle = colour("line");
  context.fillRect(0, bottom, width, 1);
  if (chart.line && most > 0) {
    context.strokeStyle = colour("ink");
    context.setLineDash([4, 4]);
    context.beginPath();
    const y = Math.round(bottom - tall * Math.min(1, chart.line.value / most)) + 0.5;
    context.moveTo(0, y);
    context.lineTo(width, y);
    context.stroke();
    context.setLineDash([]);
  }
  context.fillStyle = colour("quiet");
  context.font = "11px system-ui, sans-serif";
  context.fillText(chart.unit(most), 2, 11);
  const last = here === null ? count - 1 : here;
  if (here !== null) {
    const x = (here + 0.5) / Math.max(1, count) * width;
    context.fillStyle = colour("ink");
    context.fillRect(Math.min(width - 1, Math.round(x)), 14, 1, height - 14);
  }
  const parts = count > 0 ? chart.parts(last) : null;
  const value = parts && parts.every(Number.isFinite) ? chart.unit(parts.reduce((a, b) => a + b, 0)) : "none";
  context.fillStyle = colour("ink");
  context.textAlign = "right";
  context.fillText(value, width - 2, 11);
  chart.canvas.setAttribute("aria-label", chart.name + of + value);
}

// What a step cost and why, in words.
function costs(step, first) {
  const parts = [(first ? "with the prompt " : "") + seconds(step.seconds) + " (computing " +
    seconds(step.computing) + ", waiting " + seconds(step.waiting) + ")", bytes(step.bytes) + " read"];
  const chosen = step.hits + step.misses;
  if (chosen) parts.push(step.hits + " of " + chosen + " experts in memory");
  return parts;
}
