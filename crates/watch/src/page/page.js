const story = JSON.parse(at("data").textContent);
const tokens = story.tokens;
const count = tokens.text.length;
// The first token's time is the prompt's.
const isPrompt = (n) => story.timed && story.left_out === 0 && n === 0;
let here = Math.max(0, count - 1);
let playing = null;

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
  unpack(letters, 0, states);
  return states;
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
    parts: (n) => [tokens.computing[n] / tokens.seconds[n]], unit: percent,
  }, {
    name: "Disk", keys: [["share of the time with a read", "reading"]], top: 1,
    parts: (n) => [tokens.reading[n] / tokens.seconds[n]], unit: percent,
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
  unit: percent,
});

function makeCharts() {
  for (const chart of charts) {
    makeChart(chart, at("charts"));
    const go = (event) => {
      if (event.buttons === 0 && event.type !== "click") return;
      const box = chart.canvas.getBoundingClientRect();
      show(Math.floor((event.clientX - box.left) / box.width * count));
    };
    chart.canvas.addEventListener("click", go);
    chart.canvas.addEventListener("pointermove", go);
  }
}

// Words

function describe(n) {
  const parts = [];
  const number = story.left_out + n + 1;
  const total = story.left_out + count;
  parts.push("Token " + number + " of " + total + ": " + JSON.stringify(tokens.text[n]));
  const step = { hits: tokens.hits[n], misses: tokens.misses[n] };
  const chosen = step.hits + step.misses;
  if (story.timed) {
    for (const name of ["seconds", "computing", "waiting", "bytes"]) step[name] = tokens[name][n];
    parts.push(...costs(step, isPrompt(n)));
  } else if (chosen && story.has_places) {
    parts.push(step.hits + " of " + chosen + " experts in memory");
  } else if (chosen) {
    parts.push(chosen + " experts used");
  }
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
  drawWall(at("wall"), story.rows, statesOf(frameOf(here)));
  showBudget();
  charts.forEach((chart) => drawChart(chart, count, here, " of this token: "));
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
  const isKnown = story.timed || story.has_places;
  const shown = [0, 1, 2, 3, 4].filter((state) =>
    state === 0 || state === 3 || story.timed || (story.has_places && state !== 2));
  makeLegend(at("legend"), shown, isKnown ? { 3: "used, was in memory" } : { 0: "not used" });
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
  drawLegend(at("legend"));
  show(here);
}

begin();
window.addEventListener("resize", redraw);
scheme.addEventListener("change", redraw);
