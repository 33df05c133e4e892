"use strict";
const story = JSON.parse(document.getElementById("data").textContent);
const at = (id) => document.getElementById(id);
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
const STATES = ["disk", "memory", "reading", "used", "waited"];
const NAMES = ["on disk", "in memory", "being read", "used", "waited for"];
const tokens = story.tokens;
const count = tokens.text.length;
// The first token's time is the prompt's.
const isPrompt = (n) => story.timed && story.left_out === 0 && n === 0;
let here = Math.max(0, count - 1);
let playing = null;

const seconds = (s) => s >= 1 ? s.toFixed(2) + " s" : (1000 * s).toFixed(1) + " ms";
const bytes = (b) => {
  for (const [unit, size] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]])
    if (b >= size) return (b / size).toFixed(b >= 100 * size ? 0 : 1) + " " + unit;
  return b + " B";
};

// Frames

function frameOf(n) {
  const ends = story.frames.tokens;
  let low = 0, high = ends.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (ends[middle] <= story.left_out + n + 1) low = middle + 1; else high = middle;
  }
  return low - 1;
}

function statesOf(frame) {
  const letters = frame < 0 ? "" : story.frames.states[frame];
  const states = new Uint8Array(2 * letters.length);
  for (let i = 0; i < letters.length; i++) {
    const pair = letters.charCodeAt(i) - 65;
    states[2 * i] = pair % 5;
    states[2 * i + 1] = Math.floor(pair / 5);
  }
  return states;
}

// Drawing

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

function drawWall() {
  const rows = story.rows;
  if (rows.length === 0) return;
  const colours = STATES.map(colour);
  const canvas = at("wall");
  const widest = rows.reduce((most, row) => Math.max(most, row[1]), 1);
  const margin = 34;
  const columns = (canvas.clientWidth || 600) - margin - 4;
  const across = Math.max(1, Math.ceil(widest / (2 * columns)));
  const w = Math.min(30, columns / Math.ceil(widest / across));
  const h = Math.max(3, Math.min(w < 6 ? 8 : w, 22, 640 / rows.length));
  const [context] = canvasOf(canvas, Math.ceil(rows.length * h) + 6);
  const states = statesOf(frameOf(here));
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

// Each chart: its heading, the keys of its colours, and for a token the parts of its column.
const charts = [];
if (story.timed) {
  const other = (n) => Math.max(0, tokens.seconds[n] - tokens.computing[n] - tokens.waiting[n]);
  charts.push({
    name: "Time of a token", keys: [["computing", "computing"], ["waiting for the disk", "waited"], ["other", "other"]],
    parts: (n) => isPrompt(n) ? null : [tokens.computing[n], tokens.waiting[n], other(n)], unit: seconds,
  }, {
    name: "Computing", keys: [["share of the time", "computing"]], top: 1,
    parts: (n) => [tokens.computing[n] / tokens.seconds[n]], unit: (share) => Math.round(100 * share) + " %",
  }, {
    name: "Disk", keys: [["share of the time with a read", "reading"]], top: 1,
    parts: (n) => [tokens.reading[n] / tokens.seconds[n]], unit: (share) => Math.round(100 * share) + " %",
  }, {
    name: "Read from the disk", keys: [["GB/s", "reading"]],
    parts: (n) => [tokens.bytes[n] / 1e9 / tokens.seconds[n]], unit: (rate) => rate.toFixed(2) + " GB/s",
  });
} else if (story.has_places) {
  charts.push({
    name: "Misses of a pass", keys: [["experts", "waited"]],
    parts: (n) => tokens.hits[n] + tokens.misses[n] ? [tokens.misses[n]] : null, unit: (n) => Math.round(n) + "",
  });
}
if (story.timed || story.has_places) charts.push({
  name: "Hits", keys: [["chosen experts that were in memory", "memory"]], top: 1,
  parts: (n) => tokens.hits[n] + tokens.misses[n] ? [tokens.hits[n] / (tokens.hits[n] + tokens.misses[n])] : null,
  unit: (share) => Math.round(100 * share) + " %",
});

function makeCharts() {
  for (const chart of charts) {
    const box = document.createElement("div");
    const heading = document.createElement("h2");
    heading.textContent = chart.name;
    const keys = document.createElement("p");
    keys.className = "about";
    for (const [word, name] of chart.keys) {
      const key = document.createElement("span");
      key.className = "key";
      key.style.background = "var(--" + name + ")";
      keys.append(key, word);
    }
    chart.canvas = document.createElement("canvas");
    chart.canvas.setAttribute("role", "img");
    const go = (event) => {
      if (event.buttons === 0 && event.type !== "click") return;
      const box = chart.canvas.getBoundingClientRect();
      show(Math.floor((event.clientX - box.left) / box.width * count));
    };
    chart.canvas.addEventListener("click", go);
    chart.canvas.addEventListener("pointermove", go);
    box.append(heading, keys, chart.canvas);
    at("charts").append(box);
  }
}

function drawChart(chart) {
  const [context, width, height] = canvasOf(chart.canvas, 96);
  const columns = Math.max(1, Math.min(count, Math.floor(width)));
  const sums = [];
  let most = chart.top || 0;
  for (let c = 0; c < columns; c++) {
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
  const left = 0, bottom = height - 2, tall = height - 18;
  const w = (width - left) / columns;
  sums.forEach((parts, c) => {
    let y = bottom;
    (parts || []).forEach((part, i) => {
      const h = most > 0 ? tall * Math.min(1, part / most) : 0;
      context.fillStyle = colour(chart.keys[i][1]);
      context.fillRect(left + c * w, y - h, Math.max(1, w - (w > 4 ? 1 : 0)), h);
      y -= h;
    });
  });
  context.fillStyle = colour("line");
  context.fillRect(0, bottom, width, 1);
  context.fillStyle = colour("quiet");
  context.font = "11px system-ui, sans-serif";
  context.fillText(chart.unit(most), 2, 11);
  const x = (here + 0.5) / Math.max(1, count) * width;
  context.fillStyle = colour("ink");
  context.fillRect(Math.min(width - 1, Math.round(x)), 14, 1, height - 14);
  const parts = chart.parts(here);
  const value = parts && parts.every(Number.isFinite) ? chart.unit(parts.reduce((a, b) => a + b, 0)) : "none";
  context.textAlign = "right";
  context.fillText(value, width - 2, 11);
  chart.canvas.setAttribute("aria-label", chart.name + " of this token: " + value);
}

// Words

function describe(n) {
  const parts = [];
  const number = story.left_out + n + 1;
  const total = story.left_out + count;
  parts.push("Token " + number + " of " + total + ": " + JSON.stringify(tokens.text[n]));
  if (story.timed) {
    parts.push((isPrompt(n) ? "with the prompt " : "") + seconds(tokens.seconds[n]) + " (computing " +
      seconds(tokens.computing[n]) + ", waiting " + seconds(tokens.waiting[n]) + ")");
    parts.push(bytes(tokens.bytes[n]) + " read");
  }
  const chosen = tokens.hits[n] + tokens.misses[n];
  if (chosen && (story.timed || story.has_places)) parts.push(tokens.hits[n] + " of " + chosen + " experts in memory");
  else if (chosen) parts.push(chosen + " experts used");
  return parts.join("; ");
}

function showBudget() {
  const frame = frameOf(here);
  const memory = frame < 0 ? null : story.frames.memory[frame];
  if (memory === null) return;
  if (!story.budget) {
    at("budget-words").textContent = bytes(memory) + " in use";
    return;
  }
  at("resident").style.width = Math.min(100, 100 * memory / story.budget) + "%";
  at("budget-words").textContent = bytes(memory) + " of the budget of " + bytes(story.budget);
}

function show(n) {
  if (count === 0) return;
  at("text").querySelector(".here")?.classList.remove("here");
  here = Math.max(0, Math.min(count - 1, n));
  const span = at("text").querySelector('[data-n="' + here + '"]');
  span?.classList.add("here");
  at("position").value = here;
  at("position").setAttribute("aria-valuetext", "token " + (story.left_out + here + 1));
  at("token").textContent = describe(here);
  const box = at("text");
  if (span && (span.offsetTop < box.offsetTop + box.scrollTop || span.offsetTop > box.offsetTop + box.scrollTop + box.clientHeight - 30))
    box.scrollTop = span.offsetTop - box.offsetTop - box.clientHeight / 2;
  drawWall();
  showBudget();
  charts.forEach(drawChart);
}

function play() {
  if (playing !== null) {
    clearInterval(playing);
    playing = null;
  } else {
    if (here === count - 1) show(0);
    playing = setInterval(() => here < count - 1 ? show(here + 1) : play(), 125);
  }
  at("play").textContent = playing === null ? "Play" : "Pause";
}

function begin() {
  document.title = "SWS: " + story.model;
  at("model").textContent = story.model;
  at("summary").textContent = story.summary;
  for (const note of story.notes) {
    const item = document.createElement("li");
    item.textContent = note;
    at("notes").append(item);
  }
  at("wall-part").hidden = story.rows.length === 0 || story.frames.tokens.length === 0;
  at("budget-part").hidden = !story.frames.memory.some((memory) => memory !== null);
  at("budget").hidden = !story.budget;
  STATES.forEach((_, state) => {
    const shown = state === 0 || state === 3 || story.timed || (story.has_places && state !== 2);
    if (!shown) return;
    const item = document.createElement("li");
    const canvas = document.createElement("canvas");
    canvas.width = canvas.height = 28;
    canvas.dataset.state = state;
    const known = story.timed || story.has_places;
    item.append(canvas, state === 0 && !known ? "not used" : state === 3 && known ? "used, was in memory" : NAMES[state]);
    at("legend").append(item);
  });
  const opening = document.createElement("span");
  opening.className = "opening";
  opening.textContent = (story.left_out ? "… " : "") + story.opening;
  at("text").append(opening);
  tokens.text.forEach((text, n) => {
    const span = document.createElement("span");
    span.dataset.n = n;
    if (tokens.level[n]) span.className = "level" + tokens.level[n];
    span.textContent = text;
    at("text").append(span);
  });
  const [a, b, c] = story.levels;
  at("text-about").textContent = (story.timed || story.has_places)
    ? "Marked: tokens that " + (story.timed ? "took" : "missed") + " over " + a + " times (dotted line), " + b + " times (line) and " + c + " times (bold) as much as usual."
    : "";
  at("position").max = Math.max(0, count - 1);
  at("position").addEventListener("input", () => show(Number(at("position").value)));
  at("play").addEventListener("click", play);
  at("text").addEventListener("click", (event) => {
    const n = event.target.dataset?.n;
    if (n !== undefined) show(Number(n));
  });
  at("text").addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -count, End: count }[event.key];
    if (step) {
      event.preventDefault();
      show(here + step);
    }
  });
  at("control").hidden = count === 0;
  makeCharts();
  redraw();
}

function redraw() {
  document.querySelectorAll("#legend canvas").forEach((canvas) => {
    const context = canvas.getContext("2d");
    context.clearRect(0, 0, 28, 28);
    mark(context, Number(canvas.dataset.state), 2, 2, 24, 24, STATES.map(colour));
  });
  show(here);
}

begin();
window.addEventListener("resize", redraw);
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
