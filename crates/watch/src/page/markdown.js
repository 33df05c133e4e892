// Markdown as DOM nodes: headings, paragraphs, lists, quotes, tables, rules, fenced code.
//
// `MarkdownView` shows a text that grows. Blocks that no later text can change are made once; the rest is
// made anew, so that a long answer costs no more per token than a short one. HTML in a text stays text,
// and images are links: nothing is loaded.

const MOST_NESTED_BLOCKS = 8;
const MOST_TABLE_COLUMNS = 64;
const FENCE = /^ {0,3}(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]|$)/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])(?:( +)(?=\S)|\s*$)/;
const QUOTE = /^ {0,3}> ?/;

class MarkdownView {
  constructor(into) {
    this.into = into;
    this.restart();
  }

  restart() {
    this.into.textContent = "";
    // Of the text, these letters are in the first `kept` nodes, the last of whose headings has this level.
    this.done = 0;
    this.kept = 0;
    this.level = 2;
    this.tail = [];
  }

  // Shows a text: the last one, or a longer one that begins with it.
  update(text) {
    if (text.length < this.done) this.restart();
    const lines = text.slice(this.done).split("\n");
    const blocks = blocksOf(lines, 0);
    const old = this.tail;
    this.tail = blocks.map((block, number) => {
      const before = old[number];
      if (before?.block.kind === "code" && block.kind === "code" && before.block.words === block.words) {
        growCode(before.node, before.block.text, block.text);
        return { block, node: before.node };
      }
      return { block, node: null };
    });
    let level = this.level;
    for (const [number, entry] of this.tail.entries()) {
      const context = { level };
      entry.node ||= blockNode(entry.block, context);
      entry.level = level = context.level;
      const there = this.into.childNodes[this.kept + number];
      if (there !== entry.node) there ? there.replaceWith(entry.node) : this.into.append(entry.node);
    }
    while (this.into.childNodes.length > this.kept + blocks.length) this.into.lastChild.remove();
    this.settle(lines);
  }

  // A block is settled if the next one has begun two lines before the end: a table has two at least.
  settle(lines) {
    let settled = 0;
    while (settled + 1 < this.tail.length && this.tail[settled + 1].block.line + 1 < lines.length - 1) settled += 1;
    if (!settled) return;
    const next = this.tail[settled].block.line;
    for (let line = 0; line < next; line++) this.done += lines[line].length + 1;
    this.level = this.tail[settled - 1].level;
    this.kept += settled;
    this.tail.splice(0, settled);
  }
}

// Blocks of lines: each with `kind` and the `line` at which it begins.
function blocksOf(lines, depth) {
  const blocks = [];
  let line = 0;
  while (line < lines.length) {
    if (isBlank(lines[line])) {
      line += 1;
      continue;
    }
    const block = blockAt(lines, line, depth);
    block.line = line;
    blocks.push(block);
    line = block.end;
  }
  return blocks;
}

const isBlank = (line) => line.trim() === "";

function blockAt(lines, line, depth) {
  const text = lines[line];
  if (FENCE.test(text)) return fenceAt(lines, line);
  if (HEADING.test(text)) return headingAt(lines, line);
  if (isRule(text)) return { kind: "rule", end: line + 1 };
  if (depth < MOST_NESTED_BLOCKS && QUOTE.test(text)) return quoteAt(lines, line, depth);
  if (depth < MOST_NESTED_BLOCKS && ITEM.test(text)) return listAt(lines, line, depth);
  if (isTable(lines, line)) return tableAt(lines, line);
  if (text.startsWith("    ")) return indentedAt(lines, line);
  return paragraphAt(lines, line);
}

function isRule(line) {
  if (line.length > 200 || line.startsWith("    ")) return false;
  const marks = line.replace(/\s/g, "");
  return marks.length >= 3 && "-*_".includes(marks[0]) && marks === marks[0].repeat(marks.length);
}

// A line that ends a paragraph. An empty item and a number other than 1 do not.
function interrupts(lines, line) {
  const text = lines[line];
  const item = ITEM.exec(text);
  return isBlank(text) || FENCE.test(text) || HEADING.test(text) || isRule(text) || QUOTE.test(text) ||
    Boolean(item?.[3] && (!/\d/.test(item[2]) || parseInt(item[2], 10) === 1)) || isTable(lines, line);
}

function fenceAt(lines, line) {
  const [, fence, info] = FENCE.exec(lines[line]);
  const indent = lines[line].indexOf(fence[0]);
  const code = [];
  let end = line + 1;
  for (; end < lines.length; end++) {
    const text = lines[end].trim();
    if (text.length >= fence.length && text === fence[0].repeat(text.length)) break;
    code.push(withoutIndent(lines[end], indent));
  }
  const words = info.trim().split(/\s/)[0].slice(0, 30);
  return { kind: "code", words, text: code.join("\n"), end: Math.min(lines.length, end + 1) };
}

function withoutIndent(line, most) {
  let indent = 0;
  while (indent < most && line[indent] === " ") indent += 1;
  return line.slice(indent);
}

function indentedAt(lines, line) {
  const code = [];
  let end = line;
  while (end < lines.length && (lines[end].startsWith("    ") || isBlank(lines[end]))) code.push(lines[end++].slice(4));
  while (isBlank(code[code.length - 1])) code.pop();
  return { kind: "code", words: "", text: code.join("\n"), end: line + code.length };
}

function headingAt(lines, line) {
  const marks = HEADING.exec(lines[line])[1].length;
  let text = lines[line].trim().slice(marks).trim();
  let end = text.length;
  while (text[end - 1] === "#") end -= 1;
  if (end === 0 || text[end - 1] === " ") text = text.slice(0, end).trimEnd();
  return { kind: "heading", marks, text, end: line + 1 };
}

function quoteAt(lines, line, depth) {
  const inside = [];
  let end = line;
  while (end < lines.length && QUOTE.test(lines[end])) inside.push(lines[end++].replace(QUOTE, ""));
  return { kind: "quote", blocks: blocksOf(inside, depth + 1), end };
}

// A list. Two spaces are enough for what belongs to an item, as models seldom count them.
function listAt(lines, line, depth) {
  const [, base, first] = ITEM.exec(lines[line]);
  const kindOf = (marker) => marker[marker.length - 1];
  const items = [];
  let isLoose = false, inner = 0, end = line;
  for (; end < lines.length; end++) {
    const text = lines[end];
    if (isBlank(text)) {
      items[items.length - 1].push("");
      continue;
    }
    const indent = text.length - text.trimStart().length;
    const item = indent < base.length + 2 ? ITEM.exec(text) : null;
    if (item && kindOf(item[2]) === kindOf(first) && !isRule(text)) {
      isLoose ||= items.length > 0 && items[items.length - 1].at(-1) === "";
      inner = item[1].length + item[2].length + Math.min(4, (item[3] || " ").length);
      items.push([text.slice(item[1].length + item[2].length + (item[3] || "").length)]);
    } else if (indent >= base.length + 2) {
      items[items.length - 1].push(withoutIndent(text, inner));
    } else {
      if (isBlank(lines[end - 1]) || item || interrupts(lines, end)) break;
      items[items.length - 1].push(text.trimStart());
    }
  }
  while (isBlank(lines[end - 1])) end -= 1;
  const number = parseInt(first, 10);
  const parts = items.map((inside) => blocksOf(inside, depth + 1));
  return { kind: "list", number, isLoose, items: parts, end };
}

// The cells of a row, or null if it is none.
function cellsOf(line) {
  if (!line.includes("|")) return null;
  let text = line.trim();
  if (text.startsWith("|")) text = text.slice(1);
  const cells = [""];
  for (const part of text.split(/(\\\||\|)/)) {
    if (part === "|") cells.push("");
    else cells[cells.length - 1] += part === "\\|" ? "|" : part;
  }
  if (cells.length > 1 && isBlank(cells[cells.length - 1])) cells.pop();
  return cells.map((cell) => cell.trim());
}

function isTable(lines, line) {
  const below = lines[line + 1];
  if (below === undefined || below.length > 4000 || !/^[\s|:-]+$/.test(below) || !below.includes("-")) return false;
  const cells = cellsOf(lines[line]), marks = cellsOf(below);
  return Boolean(cells && marks && cells.length === marks.length && cells.length <= MOST_TABLE_COLUMNS &&
    marks.every((mark) => /^:?-+:?$/.test(mark)));
}

function tableAt(lines, line) {
  const sides = cellsOf(lines[line + 1]).map((mark) =>
    mark.endsWith(":") ? (mark.startsWith(":") ? "center" : "right") : "left");
  const rows = [cellsOf(lines[line])];
  let end = line + 2;
  for (; end < lines.length; end++) {
    const cells = isBlank(lines[end]) ? null : cellsOf(lines[end]);
    if (!cells) break;
    rows.push(sides.map((_, column) => cells[column] || ""));
  }
  return { kind: "table", sides, rows, end };
}

function paragraphAt(lines, line) {
  let end = line + 1;
  while (end < lines.length && !interrupts(lines, end)) end += 1;
  return { kind: "paragraph", text: lines.slice(line, end).map((text) => text.trim()).join("\n"), end };
}

// The node of a block. Headings are below that of the chat, and skip no level.
function blockNode(block, context) {
  if (block.kind === "code") return codeNode(block);
  if (block.kind === "rule") return made("hr");
  if (block.kind === "heading") return headingNode(block, context);
  if (block.kind === "quote") return nested(made("blockquote"), block.blocks, context);
  if (block.kind === "list") return listNode(block, context);
  if (block.kind === "table") return tableNode(block);
  const paragraph = made("p");
  appendInline(block.text, paragraph);
  return paragraph;
}

function nested(element, blocks, context) {
  for (const block of blocks) element.append(blockNode(block, context));
  return element;
}

function headingNode(block, context) {
  context.level = Math.min(6, block.marks + 2, context.level + 1);
  const heading = made("h" + context.level, undefined, "size" + block.marks);
  appendInline(block.text, heading);
  return heading;
}

function listNode(block, context) {
  const list = made(Number.isNaN(block.number) ? "ul" : "ol", undefined, block.isLoose ? "loose" : undefined);
  if (block.number !== 1 && !Number.isNaN(block.number)) list.start = block.number;
  for (const inside of block.items) {
    const first = inside[0];
    const task = first?.kind === "paragraph" && /^\[([ xX])\] /.exec(first.text);
    if (task) first.text = (task[1] === " " ? "☐ " : "☑ ") + first.text.slice(4);
    list.append(nested(made("li"), inside, context));
  }
  return list;
}

function tableNode(block) {
  const table = made("table");
  for (const [number, cells] of block.rows.entries()) {
    const row = table.insertRow();
    for (const [column, text] of cells.entries()) {
      const cell = made(number ? "td" : "th", undefined, block.sides[column]);
      if (!number) cell.scope = "col";
      appendInline(text, cell);
      row.append(cell);
    }
  }
  const box = made("div", undefined, "table");
  box.tabIndex = 0;
  box.setAttribute("role", "group");
  box.setAttribute("aria-label", "Table");
  box.append(table);
  return box;
}

function codeNode(block) {
  const box = made("div", undefined, "code");
  const head = made("div", undefined, "code-head");
  const copy = made("button", "Copy", "copy-code");
  copy.type = "button";
  copy.setAttribute("aria-label", "Copy this code");
  head.append(made("span", block.words), copy);
  const text = made("pre");
  text.tabIndex = 0;
  text.setAttribute("role", "group");
  text.setAttribute("aria-label", block.words ? "Code, " + block.words : "Code");
  text.append(made("code", block.text));
  box.append(head, text);
  return box;
}

// Changes the text of a code block, whose node, button and selection stay.
function growCode(node, before, after) {
  if (before === after) return;
  const code = node.querySelector("code");
  if (code.firstChild && after.startsWith(before)) code.firstChild.appendData(after.slice(before.length));
  else code.textContent = after;
}
