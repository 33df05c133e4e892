// The page of a server: its events, requests with a button to cancel them, and a chat.

const TOKENS = 600;
const PASSES = 600;
const TEXTS = 6;
const WALLS = 256;

let hello = null;
let states = new Uint8Array(0);
let now = { texts: [0, 0], requests: [], memory: null, running: null, at: 0 };
let passes = [], whiles = [], layers = [], walls = [];
let tokens = [];
let lost = 0;
let chosen = null;
let key = sessionStorage.getItem("sws-key") || "";
let due = false, wallDrawn = 0;
const calm = window.matchMedia("(prefers-reduced-motion: reduce)");

const headers = (more) => key ? { ...more, Authorization: "Bearer " + key } : { ...more };

// Server-sent events of a response, whose header can have a key.
async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    let end;
    while ((end = rest.indexOf("\n\n")) >= 0) {
      let name = "message", data = "";
      for (const line of rest.slice(0, end).split("\n")) {
        if (line.startsWith("event: ")) name = line.slice(7);
        else if (line.startsWith("data: ")) data += line.slice(6);
      }
      rest = rest.slice(end + 2);
      if (data) yield [name, data];
    }
  }
}

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

async function failureOf(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return "status " + response.status;
  }
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
  const count = hello.rows.reduce((sum, row) => sum + row[1], 0);
  states = new Uint8Array(count);
  now.requests = [];
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
  if (frame.requests) now.requests = frame.requests;
  lost += frame.lost || 0;
  for (const [start, letters] of frame.wall || []) unpack(letters, start, states);
  keep(whiles, frame.step, 300);
  for (const pass of frame.passes || []) keep(passes, pass, PASSES);
  if (frame.layers?.length) layers = frame.layers;
  if (frame.tokens?.length) {
    keep(walls, states.slice(), WALLS);
    for (const token of frame.tokens) say(token, walls[walls.length - 1]);
    trim();
  }
  draw();
}

function keep(list, value, most) {
  list.push(value);
  if (list.length > most) list.splice(0, list.length - most);
}

// Tokens: a paragraph for each request

const passOf = (number) => passes.findLast((pass) => pass.number === number);

function usual() {
  const costs = passes.filter((pass) => !pass.prompt).slice(-256).map((pass) => pass.step.seconds).sort((a, b) => a - b);
  return costs.length ? costs[costs.length >> 1] : 0;
}

function say(token, wall) {
  const box = at("text");
  const name = token.request || "others";
  let text = [...box.children].find((child) => child.dataset.request === name);
  if (!text) {
    text = made("p");
    text.dataset.request = name;
    box.append(text);
    while (box.children.length > TEXTS) box.firstChild.remove();
  }
  const pass = passOf(token.pass);
  const span = made("span", token.text === null ? "·" : token.text);
  const level = pass && !pass.prompt ? hello.levels.filter((times) => pass.step.seconds > times * usual()).length : 0;
  if (level && usual() > 0) span.className = "level" + level;
  span.dataset.n = "";
  span.token = { ...token, pass, wall };
  text.append(span);
  tokens.push(span);
}

function trim() {
  const box = at("text");
  const follows = !chosen && box.scrollTop + box.clientHeight > box.scrollHeight - 60;
  while (tokens.length > TOKENS) tokens.shift().remove();
  tokens = tokens.filter((span) => span.isConnected);
  for (const text of [...box.children]) if (!text.childElementCount) text.remove();
  if (chosen && !chosen.isConnected) choose(null);
  if (follows) box.scrollTop = box.scrollHeight;
}

function choose(span) {
  chosen?.classList.remove("here");
  chosen = span;
  chosen?.classList.add("here");
  chosen?.scrollIntoView({ block: "nearest" });
  wallDrawn = 0;
  draw();
}

// Why a pass took its time, in a sentence.
function why(pass) {
  if (pass.prompt) return "it computed " + pass.tokens + " tokens of a prompt";
  const times = pass.step.seconds / (usual() || pass.step.seconds);
  if (times < hello.levels[0]) return "as usual";
  const { computing, waiting, misses } = pass.step;
  const rest = pass.step.seconds - computing - waiting;
  const cause = waiting >= computing && waiting >= rest
    ? "waiting for the disk, as " + misses + " experts were not in memory"
    : computing >= rest ? "computing" : "work between passes";
  return times.toFixed(1) + " times as long as usual, mostly " + cause;
}

function describe(span) {
  const { pass, text } = span.token;
  const parts = [text === null ? "A token of another client" : JSON.stringify(text)];
  if (!pass) return parts[0] + "; its pass is no longer kept";
  parts.push(...costs(pass.step, pass.prompt));
  if (pass.texts > 1) parts.push("shared by " + pass.texts + " texts");
  return parts.join("; ") + ". Why: " + why(pass) + ".";
}

at("text").addEventListener("click", (event) => {
  if (event.target.token) choose(event.target === chosen ? null : event.target);
});
at("text").addEventListener("keydown", (event) => {
  const from = chosen ? tokens.indexOf(chosen) : tokens.length;
  const to = { ArrowLeft: from - 1, ArrowRight: from + 1, Home: 0, End: tokens.length - 1 }[event.key];
  if (event.key === "Escape") choose(null);
  if (to === undefined || !tokens.length) return;
  event.preventDefault();
  choose(tokens[Math.max(0, Math.min(tokens.length - 1, to))]);
});

// Charts of the latest passes

const charts = [];
const told = () => passes.filter((pass) => !pass.prompt);
let shown = [];

function makeCharts() {
  const plan = hello.plan;
  const line = (value) => value ? { name: "the plan, for one text", value } : null;
  charts.push({
    name: "Time of a pass", keys: [["computing", "computing"], ["waiting for the disk", "waited"], ["other", "other"]],
    parts: (n) => {
      const { computing, waiting, seconds } = shown[n].step;
      return [computing, waiting, Math.max(0, seconds - computing - waiting)];
    }, unit: seconds,
  });
  if (hello.rows.length) charts.push({
    name: "Hits", keys: [["chosen experts that were in memory", "memory"]], top: 1, line: line(plan?.hit_rate),
    parts: (n) => {
      const { hits, misses } = shown[n].step;
      return hits + misses ? [hits / (hits + misses)] : null;
    }, unit: percent,
  });
  charts.push({
    name: "Read for a token", keys: [["bytes", "reading"]], line: line(plan?.bytes),
    parts: (n) => [shown[n].step.bytes / Math.max(1, shown[n].tokens)], unit: (b) => bytes(Math.round(b)),
  }, {
    name: "Disk", keys: [["GB/s, of the last half minute", "reading"]], frames: true,
    parts: (n) => [whiles[n].seconds > 0 ? whiles[n].bytes / 1e9 / whiles[n].seconds : 0], unit: (rate) => rate.toFixed(2) + " GB/s",
  });
  for (const chart of charts) makeChart(chart, at("charts"));
}

// The budget

const COLOURS = { "expert slots": "memory", "keys and values": "reading", "pinned weights": "computing", "ring for streamed weights": "waited", "unused": "spare" };
let uses = [];

function makeUses() {
  at("uses-list").textContent = "";
  // Small ones share a line.
  const large = hello.uses.filter(([words, n]) => COLOURS[words] && n > 0);
  const rest = hello.uses.filter(([words]) => !COLOURS[words]).reduce((sum, use) => sum + use[1], 0);
  const order = Object.keys(COLOURS);
  large.sort((a, b) => order.indexOf(a[0]) - order.indexOf(b[0]));
  uses = large.filter(([words]) => words !== "unused");
  if (rest) uses.push(["program, activations, tables", rest]);
  uses.push(...large.filter(([words]) => words === "unused"));
  for (const [words, n] of uses) {
    const item = made("li");
    item.append(made("span", undefined, "key key-" + (COLOURS[words] || "other")), words + " " + bytes(n));
    at("uses-list").append(item);
  }
}

function drawUses() {
  const [memory, budget] = [now.memory, hello.budget];
  at("budget-part").hidden = !memory && !budget;
  at("uses").hidden = !budget;
  at("budget-words").textContent = (memory ? bytes(memory) + " in use" : "") +
    (budget ? (memory ? ", of " : "") + "the budget of " + bytes(budget) : ", without a budget");
  if (!budget) return;
  const [context, width, height] = canvasOf(at("uses"), 34);
  let x = 0;
  for (const [words, n] of uses) {
    const w = width * n / budget;
    context.fillStyle = COLOURS[words] === "spare" ? colour("panel") : colour(COLOURS[words] || "other");
    context.fillRect(x, 6, Math.max(0, w - 1), height - 12);
    x += w;
  }
  if (memory) {
    const tick = Math.min(width - 2, width * memory / budget);
    context.fillStyle = colour("ink");
    context.fillRect(tick, 0, 2, height);
  }
  at("uses").setAttribute("aria-label", "Parts of the budget; a line marks the memory in use: " + at("budget-words").textContent);
}

// The last pass

function drawPass() {
  at("pass-part").hidden = layers.length === 0;
  if (!layers.length) return;
  const [context, width] = canvasOf(at("pass"), 52);
  const sum = (i) => layers.reduce((all, layer) => all + layer[i], 0);
  const total = Math.max(1, sum(0));
  let x = 0;
  for (const [time, waiting, reading] of layers) {
    const w = width * time / total;
    const gap = w > 4 ? 1 : 0;
    const part = (share) => Math.max(0, Math.min(w - gap, width * share / total));
    context.fillStyle = colour("waited");
    context.fillRect(x, 2, part(waiting), 22);
    context.fillStyle = colour("computing");
    context.fillRect(x + part(waiting), 2, Math.max(0, w - gap - part(waiting)), 22);
    context.fillStyle = colour("reading");
    context.fillRect(x, 28, part(reading), 22);
    context.fillStyle = colour("line");
    context.fillRect(x, 51, Math.max(1, w - gap), 1);
    x += w;
  }
  const [all, waiting, reading] = [0, 1, 2].map((i) => seconds(sum(i) / 1e6));
  const words = layers.length + " layers in " + all + "; waiting " + waiting + ", a read on the device " + reading;
  at("pass-words").textContent = words;
  at("pass").setAttribute("aria-label", "A pass: " + words);
}

// Requests

function drawRequests() {
  const [running, waiting] = now.texts;
  const words = running + waiting === 0 ? "none" : running + " of " + hello.texts + " texts running, " + waiting + " waiting";
  if (at("requests-about").textContent !== words) at("requests-about").textContent = words;
  const list = at("requests");
  const left = new Map([...list.children].map((item) => [item.dataset.id, item]));
  for (const request of now.requests) {
    let item = left.get(request.id);
    left.delete(request.id);
    if (!item) {
      item = made("li");
      item.dataset.id = request.id;
      const cancel = made("button", "Cancel");
      cancel.type = "button";
      cancel.setAttribute("aria-label", "Cancel " + request.id);
      cancel.addEventListener("click", () => {
        cancel.disabled = true;
        fetch("v1/requests/" + encodeURIComponent(request.id), { method: "DELETE", headers: headers() });
      });
      item.append(made("span"), made("span", request.endpoint + " " + request.id, "where"), cancel);
      list.append(item);
    }
    const age = Math.max(0, now.at - request.queued);
    const doing = {
      waiting: "waiting, place " + request.place,
      prompt: "prompt, " + request.done + " of " + request.prompt + " tokens",
    }[request.state] || request.made + " tokens after " + request.prompt;
    item.firstChild.textContent = doing + ", " + Math.round(age) + " s";
  }
  for (const item of left.values()) item.remove();
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
  if (lost) figures.push(lost + " events lost");
  at("figures").textContent = figures.join(" · ");
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
  drawRequests();
  for (const chart of charts) drawChart(chart, chart.frames ? whiles.length : shown.length, null, ", the latest: ");
}

at("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  key = at("key").value.trim();
  sessionStorage.setItem("sws-key", key);
  at("key").value = "";
  listen();
  about();
});
window.addEventListener("resize", draw);
scheme.addEventListener("change", () => {
  drawLegend(at("legend"));
  draw();
});

makeLegend(at("legend"), [0, 1, 2, 3, 4], { 3: "used by the last pass" });
drawLegend(at("legend"));
listen();
