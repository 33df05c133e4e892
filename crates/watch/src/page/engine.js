// What the engine does: charts of the latest passes, a pass layer by layer, memory, and requests.

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

// A graphics card

function drawCard() {
  const card = now.card;
  at("card-words").hidden = !card;
  if (!card) return;
  const recent = whiles.slice(-20);
  const sum = (name) => recent.reduce((all, step) => all + (step[name] || 0), 0);
  const all = sum("hits") + sum("misses");
  at("card-words").textContent = card.has_failed ? "The graphics card has failed, and is left alone." :
    "On the graphics card: " + card.held + " experts, " + bytes(card.bytes) + " of " + bytes(card.limit) + "; " +
    (all ? percent(sum("on_tier") / all) + " of the experts of the last two seconds and " : "") +
    card.hits + " since the start were computed there.";
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
