// Listening to the server's events, and drawing what they say.

const TOKENS = 600;
const PASSES = 600;
const TEXTS = 6;
const WALLS = 256;

let hello = null;
let states = new Uint8Array(0);
let now = { texts: [0, 0], requests: [], memory: null, drives: [], running: null, at: 0 };
let passes = [], whiles = [], layers = [], walls = [];
let tokens = [];
let lost = 0;
let chosen = null;
let due = false, wallDrawn = 0;
const calm = window.matchMedia("(prefers-reduced-motion: reduce)");

// Listening, while the page is seen

let listening = null;
async function listen() {
  if (listening || document.hidden) return;
  const mine = listening = new AbortController();
  try {
    const response = await fetch("events", { headers: headers(), signal: mine.signal });
    if (response.status === 401) {
      at("key-form").hidden = false;
      tell(key ? "the API key is wrong" : "an API key is needed", true);
      listening = null;
      return;
    }
    if (!response.ok) {
      tell((await failureOf(response)) || "not connected", true);
    } else {
      at("key-form").hidden = true;
      for await (const [name, data] of eventsOf(response)) {
        const event = JSON.parse(data);
        if (name === "hello") greet(event);
        else if (name === "frame" && hello) take(event);
      }
      tell("the server has ended", true);
    }
  } catch (error) {
    if (!mine.signal.aborted) tell("not connected", true);
  }
  if (listening !== mine) return;
  listening = null;
  setTimeout(listen, 2000);
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    listening?.abort();
    listening = null;
  } else {
    listen();
  }
});

function tell(words, off) {
  if (at("state").textContent !== words) at("state").textContent = words;
  at("state").classList.toggle("off", Boolean(off));
}

function greet(event) {
  hello = event;
  knowing = about();
  const count = hello.rows.reduce((sum, row) => sum + row[1], 0);
  states = new Uint8Array(count);
  now.requests = [];
  now.card = null;
  document.title = "SWS: " + hello.model;
  at("model").textContent = hello.model;
  at("wall-part").hidden = count === 0;
  at("wall-about").textContent = "A row for each of " + hello.rows.length + " layers, a column for each expert.";
  const [a, b, c] = hello.levels;
  at("tokens-about").textContent = "Marked: over " + a + " times (dotted line), " + b + " times (line) and " + c +
    " times (bold) as long as usual. Choose one to see why.";
  charts.length = 0;
  at("charts").textContent = "";
  makeCharts();
  makeUses();
  draw();
}

function take(frame) {
  now.at = frame.at;
  now.texts = frame.texts;
  now.running = frame.running || null;
  if (frame.memory) now.memory = frame.memory;
  now.drives = frame.drives || [];
  if (frame.tier) now.card = frame.tier;
  if (frame.requests) now.requests = frame.requests;
  lost += frame.lost || 0;
  for (const [start, letters] of frame.wall || []) unpack(letters, start, states);
  keep(whiles, frame.step, 300);
  for (const pass of frame.passes || []) keep(passes, pass, PASSES);
  if (frame.layers?.length) layers = frame.layers;
  if (frame.tokens?.length) {
    keep(walls, states.slice(), WALLS);
    const follows = followsTokens();
    for (const token of frame.tokens) say(token, walls[walls.length - 1]);
    trim(follows);
  }
  draw();
}

function keep(list, value, most) {
  list.push(value);
  if (list.length > most) list.splice(0, list.length - most);
}

// All together, when the browser draws next

function draw() {
  if (due) return;
  due = true;
  requestAnimationFrame(() => {
    due = false;
    if (hello) redraw();
  });
}

function redraw() {
  const [running, waiting] = now.texts;
  const reading = now.requests.find((request) => request.state === "prompt");
  const writes = now.requests.some((request) => request.state === "generation");
  if (listening) tell(reading && !writes
    ? "reading a prompt, " + percent(reading.done / Math.max(1, reading.prompt))
    : running ? "writing" : waiting ? "waiting" : "idle");
  shown = told();
  const recent = whiles.slice(-20);
  const sum = (name) => recent.reduce((all, step) => all + step[name], 0);
  const written = shown.filter((pass) => pass.at > now.at - 5);
  const rate = written.reduce((all, pass) => all + pass.tokens, 0) / Math.max(1, Math.min(5, now.at - (written[0]?.at || now.at)));
  const figures = [rate.toFixed(rate < 10 ? 1 : 0) + " tok/s"];
  if (sum("hits") + sum("misses")) figures.push(percent(sum("hits") / (sum("hits") + sum("misses"))) + " hits");
  if (sum("seconds") > 0) figures.push((sum("bytes") / 1e9 / sum("seconds")).toFixed(2) + " GB/s", percent(sum("waiting") / sum("seconds")) + " waiting");
  if (now.drives.length) {
    const drives = now.drives.map((drive, n) => (n ? "copy " + n : "own") + " " + bytes(drive.bytes) + (drive.left_out ? ", left out" : ""));
    figures.push("drives: " + drives.join("; "));
  }
  if (lost) figures.push(lost + " events lost");
  at("figures").textContent = figures.join(" · ");
  if (!at("engine").hidden) drawEngine();
}

function drawEngine() {
  const still = calm.matches ? 1000 : 0;
  if (performance.now() - wallDrawn >= still) {
    drawWall(at("wall"), hello.rows, chosen?.token.wall || states);
    wallDrawn = performance.now();
  }
  const about = chosen ? "As it was when the chosen token was written. Escape returns to now." :
    "A row for each of " + hello.rows.length + " layers, a column for each expert.";
  if (at("wall-about").textContent !== about) at("wall-about").textContent = about;
  at("token").textContent = chosen ? describe(chosen) : tokens.length ? describe(tokens[tokens.length - 1]) : "";
  at("tokens-part").hidden = tokens.length === 0;
  drawPass();
  drawUses();
  drawCard();
  drawRequests();
  for (const chart of charts) drawChart(chart, chart.frames ? whiles.length : shown.length, null, ", the latest: ");
}

at("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  key = at("key").value.trim();
  sessionStorage.setItem("sws-key", key);
  at("key").value = "";
  listen();
});

// The engine is one click away, beside the chat or, on narrow screens, in its place.
function showEngine(seen) {
  at("engine").hidden = !seen;
  at("engine-toggle").setAttribute("aria-expanded", String(seen));
  document.body.classList.toggle("engine", seen);
  localStorage.setItem("sws-engine", seen ? "shown" : "");
  wallDrawn = 0;
  at("text").scrollTop = at("text").scrollHeight;
  draw();
}

at("engine-toggle").addEventListener("click", () => showEngine(at("engine").hidden));
window.addEventListener("resize", draw);
scheme.addEventListener("change", () => {
  drawLegend(at("legend"));
  draw();
});

makeLegend(at("legend"), [0, 1, 2, 3, 4], { 3: "used by the last pass" });
drawLegend(at("legend"));
showEngine(localStorage.getItem("sws-engine") === "shown");
startConversations();
listen();
