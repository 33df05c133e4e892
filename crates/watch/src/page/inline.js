// Markdown within a line of text: emphasis, code, links, line breaks.
//
// A model's text never becomes markup: each piece of it is a text node, and a link leads to an address of
// the web or is text. The time is in proportion to the length of the text, whatever is in it.

const MOST_NESTED_MARKS = 12;
const ENTITIES = { "&amp;": "&", "&lt;": "<", "&gt;": ">", "&quot;": "\"", "&apos;": "'", "&#39;": "'", "&nbsp;": "\u00a0" };
const SPECIAL = /[\\`*_~[\]\n]|!(?=\[)|<(?=br|http)|https?:[/]{2}|&(?:amp|lt|gt|quot|apos|nbsp|#39);/gi;
const ADDRESS = /https?:[/]{2}[^\s<>"`]{1,2000}/iy;
const DESTINATION = /\([ \n]?(?:<([^<>\n]{0,1000})>|((?:[^\s()<>]|\([^\s()<>]{0,100}\)){0,500}))(?:[ \n]"[^"]{0,300}")?[ \n]?\)/y;

// Appends the nodes of a text to an element.
function appendInline(text, into) {
  emitInline(new InlineScanner(text).tokens(), into);
}

// The address of a link, or null if it is none of the web.
function webAddress(text) {
  if (!/^https?:[/]{2}/i.test(text)) return null;
  try {
    const address = new URL(text);
    return /^https?:$/.test(address.protocol) ? address.href : null;
  } catch {
    return null;
  }
}

// Divides a text into tokens: `text`, `code`, `break`, `link`, `run` (of marks of emphasis), and `bracket`
// with its `closing` if they are a link.
class InlineScanner {
  constructor(text) {
    this.text = text;
    this.place = 0;
    this.found = [];
    // Runs without a pair yet, and open brackets, each with the number of runs before it.
    this.runs = [];
    this.brackets = [];
    // For each length of a run of backticks, where such runs begin.
    this.ticks = new Map();
    for (const { index, 0: run } of text.matchAll(/`+/g)) {
      if (!this.ticks.has(run.length)) this.ticks.set(run.length, { places: [], next: 0 });
      this.ticks.get(run.length).places.push(index);
    }
  }

  tokens() {
    while (this.place < this.text.length) {
      SPECIAL.lastIndex = this.place;
      const match = SPECIAL.exec(this.text);
      const end = match ? match.index : this.text.length;
      if (end > this.place) this.say(this.text.slice(this.place, end));
      this.place = end;
      if (match) this.special(match[0]);
    }
    pairRuns(this.runs);
    return this.found;
  }

  say(text, length = text.length) {
    this.found.push({ kind: "text", text });
    this.place += length;
  }

  special(mark) {
    if (mark[0] === "\\") this.escaped();
    else if (mark[0] === "`") this.code();
    else if (mark === "\n") this.lineBreak(1);
    else if (mark === "[" || mark === "!") this.bracket(mark === "!");
    else if (mark === "]") this.closing();
    else if (mark[0] === "&") this.say(ENTITIES[mark.toLowerCase()], mark.length);
    else if (mark === "<") this.angle();
    else if (mark.length > 1) this.address();
    else this.run(mark);
  }

  // Brackets keep their backslash: behind one, they are mostly mathematics.
  escaped() {
    const next = this.text[this.place + 1] || "";
    if (/[\\`*_{}#+\-.!|<>~$"'&]/.test(next)) this.say(next, 2);
    else this.say("\\");
  }

  lineBreak(length) {
    this.found.push({ kind: "break" });
    this.place += length;
  }

  code() {
    let end = this.place;
    while (this.text[end] === "`") end += 1;
    const length = end - this.place;
    const same = this.ticks.get(length);
    while (same && same.places[same.next] < end) same.next += 1;
    const close = same?.places[same.next];
    if (close === undefined) return this.say(this.text.slice(this.place, end));
    let code = this.text.slice(end, close).replaceAll("\n", " ");
    if (code.startsWith(" ") && code.endsWith(" ") && code.trim()) code = code.slice(1, -1);
    this.found.push({ kind: "code", text: code });
    this.place = close + length;
  }

  angle() {
    const tag = /^<br ?[/]?>/i.exec(this.text.slice(this.place, this.place + 6));
    if (tag) return this.lineBreak(tag[0].length);
    ADDRESS.lastIndex = this.place + 1;
    const match = ADDRESS.exec(this.text);
    const address = match && this.text[ADDRESS.lastIndex] === ">" ? webAddress(match[0]) : null;
    if (!address) return this.say("<");
    this.found.push({ kind: "link", text: match[0], address });
    this.place += match[0].length + 2;
  }

  // An address without brackets. The punctuation of its sentence is no part of it.
  address() {
    ADDRESS.lastIndex = this.place;
    let [text] = ADDRESS.exec(this.text) || [this.text.slice(this.place, this.place + 4)];
    let end = text.length;
    while (end > 0 && (".,:;!?'*_~]".includes(text[end - 1]) || (text[end - 1] === ")" && !text.includes("(")))) end -= 1;
    text = text.slice(0, end);
    const address = this.brackets.length ? null : webAddress(text);
    if (!address) return this.say(text || this.text[this.place]);
    this.found.push({ kind: "link", text, address });
    this.place += text.length;
  }

  bracket(image) {
    const token = { kind: "bracket", image, text: image ? "![" : "[", runs: this.runs.length };
    this.found.push(token);
    this.brackets.push(token);
    this.place += token.text.length;
  }

  closing() {
    const open = this.brackets.pop();
    DESTINATION.lastIndex = this.place + 1;
    const match = open && DESTINATION.exec(this.text);
    const address = match && webAddress(match[1] ?? match[2]);
    if (!address) return this.say("]");
    pairRuns(this.runs.splice(open.runs));
    // A link has no links. An image in one is its words.
    if (open.image && this.brackets.length) open.plain = true;
    else this.brackets.length = 0;
    open.address = address;
    this.found.push({ kind: "closing" });
    this.place += 1 + match[0].length;
  }

  // Marks of emphasis. Unlike in CommonMark, punctuation before or behind them changes nothing: languages
  // without spaces could not be emphasised otherwise.
  run(mark) {
    let end = this.place;
    while (this.text[end] === mark) end += 1;
    const length = end - this.place;
    const before = this.text[this.place - 1] || " ", after = this.text[end] || " ";
    let opens = /\S/.test(after), closes = /\S/.test(before);
    if (mark === "_" && /[\p{L}\p{N}]/u.test(before)) opens = false;
    if (mark === "_" && /[\p{L}\p{N}]/u.test(after)) closes = false;
    if (mark === "~" && length !== 2) opens = closes = false;
    const token = { kind: "run", mark, length, left: length, opens, closes, begins: [], ends: [] };
    this.found.push(token);
    if (opens || closes) this.runs.push(token);
    this.place = end;
  }
}

// Pairs runs of marks as CommonMark does. `nothing` has the height of `open` below which there is no
// partner for a kind of run, so that nothing is searched twice.
function pairRuns(runs) {
  const open = [];
  const nothing = new Map();
  for (const run of runs) {
    const kind = run.mark + run.opens + run.length % 3;
    while (run.closes && run.left > 0) {
      let place = open.length - 1;
      const floor = nothing.get(kind) || 0;
      while (place >= floor && !areApair(open[place], run)) place -= 1;
      if (place < floor) {
        nothing.set(kind, open.length);
        break;
      }
      const partner = open[place];
      const strength = Math.min(2, partner.left, run.left);
      const name = run.mark === "~" ? "del" : strength === 2 ? "strong" : "em";
      partner.begins.push(name);
      run.ends.push(name);
      partner.left -= strength;
      run.left -= strength;
      open.length = partner.left > 0 ? place + 1 : place;
      for (const [other, height] of nothing) if (height > open.length) nothing.set(other, open.length);
    }
    if (run.opens && run.left > 0) open.push(run);
  }
}

function areApair(first, second) {
  if (first.mark !== second.mark) return false;
  const both = first.closes || second.opens;
  return !both || (first.length + second.length) % 3 !== 0 || (first.length % 3 === 0 && second.length % 3 === 0);
}

// Makes nodes of tokens. Beyond a depth no browser should have to bear, marks change nothing.
function emitInline(tokens, into) {
  const open = [into];
  const begin = (name) => {
    const parent = open[open.length - 1];
    const element = open.length <= MOST_NESTED_MARKS ? made(name) : parent;
    if (element !== parent) parent.append(element);
    open.push(element);
    return element;
  };
  for (const token of tokens) {
    const parent = open[open.length - 1];
    if (token.kind === "text") parent.append(token.text);
    else if (token.kind === "code") parent.append(made("code", token.text));
    else if (token.kind === "break") parent.append(made("br"));
    else if (token.kind === "link") link(parent.appendChild(made("a", token.text)), token.address);
    else if (token.kind === "run") {
      for (const _ of token.ends) open.pop();
      if (token.left) open[open.length - 1].append(token.mark.repeat(token.left));
      for (const name of token.begins.reverse()) begin(name);
    } else if (token.kind === "bracket") {
      if (!token.address) parent.append(token.text);
      else if (token.plain) begin("span");
      else if (open.length <= MOST_NESTED_MARKS) link(begin("a"), token.address);
      else begin("span");
    } else if (token.kind === "closing") {
      const element = open.pop();
      if (element.tagName === "A" && !element.textContent.trim()) element.textContent = element.href;
    }
  }
}

function link(element, address) {
  element.href = address;
  element.title = address;
  element.target = "_blank";
  element.rel = "noopener noreferrer nofollow";
}
