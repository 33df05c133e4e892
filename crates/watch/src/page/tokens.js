// Tokens of the server's page, coloured by cost; a chosen one says why it took its time.

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

// The tokens follow the text unless the person has gone elsewhere.
function followsTokens() {
  const box = at("text");
  return !chosen && box.scrollTop + box.clientHeight > box.scrollHeight - 60;
}

function trim(follows) {
  const box = at("text");
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
