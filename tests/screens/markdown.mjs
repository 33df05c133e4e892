// The Markdown of the server's page, in a headless Chromium: what it makes of texts, hostile ones too,
// that a growing text ends like a whole one, and that long ones take little time.
// Usage: node tests/screens/markdown.mjs

import { readFileSync } from "node:fs";
import { Browser } from "./browser.mjs";

const page = new URL("../../crates/watch/src/page/", import.meta.url);
const program = ["draw.js", "inline.js", "markdown.js"].map((name) => readFileSync(new URL(name, page), "utf8")).join("\n");

// Texts, and what is made of them without the attributes of links, tables and code.
const CASES = [
  ["plain", "<p>plain</p>"],
  ["two\nlines", "<p>two<br>lines</p>"],
  ["one\n\ntwo", "<p>one</p><p>two</p>"],
  ["# A\n### B\n#### C #\nText", "<h3>A</h3><h4>B</h4><h5>C</h5><p>Text</p>"],
  ["#hash", "<p>#hash</p>"],
  ["*a* **b** ***c*** _d_ __e__ ~~f~~", "<p><em>a</em> <strong>b</strong> <em><strong>c</strong></em> <em>d</em> <strong>e</strong> <del>f</del></p>"],
  ["**a *b* c**", "<p><strong>a <em>b</em> c</strong></p>"],
  ["a_b_c 2 * 3 * 4 ~x~ **", "<p>a_b_c 2 * 3 * 4 ~x~ **</p>"],
  ["**文：**字", "<p><strong>文：</strong>字</p>"],
  ["*a **b*", "<p>*a *<em>b</em></p>"],
  ["`a *b*` ``c ` d`` `e", "<p><code>a *b*</code> <code>c ` d</code> `e</p>"],
  ["\\*a\\* \\(x_1\\)", "<p>*a* \\(x_1\\)</p>"],
  ["a &lt;b&gt; &amp;amp; &copy;", "<p>a &lt;b&gt; &amp;amp; &amp;copy;</p>"],
  ["[a *b*](https://x.example/a_(b))", '<p><a href="https://x.example/a_(b)">a <em>b</em></a></p>'],
  ["[a](<https://x.example/ b> \"t\")", '<p><a href="https://x.example/%20b">a</a></p>'],
  ["[](http://x.example)", '<p><a href="http://x.example/">http://x.example/</a></p>'],
  ["[a] [b](c) [d](/e) [f](//g.example)", "<p>[a] [b](c) [d](/e) [f](//g.example)</p>"],
  ["![a](https://x.example/i.png)", '<p><a href="https://x.example/i.png">a</a></p>'],
  ["[![a](https://x.example/i.png)](https://y.example/)", '<p><a href="https://y.example/"><span>a</span></a></p>'],
  ["See https://x.example/a_b_c. (https://y.example)", '<p>See <a href="https://x.example/a_b_c">https://x.example/a_b_c</a>. (<a href="https://y.example/">https://y.example</a>)</p>'],
  ["<https://x.example> **https://y.example**", '<p><a href="https://x.example/">https://x.example</a> <strong><a href="https://y.example/">https://y.example</a></strong></p>'],
  ["- a\n- b\n  - c\n    - d\n- e", "<ul><li><p>a</p></li><li><p>b</p><ul><li><p>c</p><ul><li><p>d</p></li></ul></li></ul></li><li><p>e</p></li></ul>"],
  ["1. a\n  - b\n2. c", "<ol><li><p>a</p><ul><li><p>b</p></li></ul></li><li><p>c</p></li></ol>"],
  ["1. a\n```sh\nb\n```\n2. c", '<ol><li><p>a</p></li></ol><div><span>sh</span><button>Copy</button><pre><code>b</code></pre></div><ol start="2"><li><p>c</p></li></ol>'],
  ["1. a\n\n   ```\n   b\n     c\n   ```\n\n2. d", "<ol><li><p>a</p><div><span></span><button>Copy</button><pre><code>b\n  c</code></pre></div></li><li><p>d</p></li></ol>"],
  ["- [ ] a\n- [x] b", "<ul><li><p>☐ a</p></li><li><p>☑ b</p></li></ul>"],
  ["text\n- a\nmore", "<p>text</p><ul><li><p>a<br>more</p></li></ul>"],
  ["born in\n1986. Then", "<p>born in<br>1986. Then</p>"],
  ["> a\n> > b\n\nc", "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote><p>c</p>"],
  ["a\n---\nb\n* * *", "<p>a</p><hr><p>b</p><hr>"],
  ["| a | b |\n|---|--:|\n| 1 | `x` \\| y |\n| 2 |\n\nend", "<table><tbody><tr><th>a</th><th>b</th></tr><tr><td>1</td><td><code>x</code> | y</td></tr><tr><td>2</td><td></td></tr></tbody></table><p>end</p>"],
  ["a | b\n--- |", "<p>a | b<br>--- |</p>"],
  ["```rust\nfn <b>() {}\n\n`x`\n```\nafter", "<div><span>rust</span><button>Copy</button><pre><code>fn &lt;b&gt;() {}\n\n`x`</code></pre></div><p>after</p>"],
  ["````\n```\n````", "<div><span></span><button>Copy</button><pre><code>```</code></pre></div>"],
  ["~~~\nopen", "<div><span></span><button>Copy</button><pre><code>open</code></pre></div>"],
  ["a\n\n    code\n      more\n\nb", "<p>a</p><div><span></span><button>Copy</button><pre><code>code\n  more</code></pre></div><p>b</p>"],
  // Hostile ones
  ["<script>alert(1)</script><img src=x onerror=alert(1)>", "<p>&lt;script&gt;alert(1)&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;</p>"],
  ["[a](javascript:alert(1)) [b](JaVaScRiPt:alert(1)) [c](data:text/html,x) [d](vbscript:x)", "<p>[a](javascript:alert(1)) [b](JaVaScRiPt:alert(1)) [c](data:text/html,x) [d](vbscript:x)</p>"],
  ["[a](java\nscript:x) <javascript:x> [b](file:///etc/passwd) ![c](javascript:x)", "<p>[a](java<br>script:x) &lt;javascript:x&gt; [b](file:///etc/passwd) ![c](javascript:x)</p>"],
  ["[a](https://x.example/\"onmouseover=alert(1))", '<p><a href="https://x.example/%22onmouseover=alert(1)">a</a></p>'],
  ["```\"><script>\nx\n```", "<div><span>\"&gt;&lt;script&gt;</span><button>Copy</button><pre><code>x</code></pre></div>"],
];

// Texts of at least 100 kB in which naive parsers take minutes.
const LONG = `({
  "one line": "a".repeat(1e5), "stars": "*".repeat(1e5), "stars and letters": "*a ".repeat(4e4), "open and closed": "*a_ ".repeat(3e4),
  "marks between letters": "a**b_".repeat(2e4), "brackets": "[".repeat(1e5), "closing brackets": "]".repeat(1e5), "pairs": "[]".repeat(5e4),
  "links": "[](".repeat(4e4), "long links": ("[](" + "a(b)".repeat(300)).repeat(90), "images": "![".repeat(5e4), "backticks": "\`".repeat(1e5),
  "backticks of all lengths": Array.from({ length: 440 }, (_, n) => "\`".repeat(n + 1)).join(" "), "open code": "\`a ".repeat(4e4),
  "backslashes": "\\\\".repeat(1e5), "addresses": "https://".repeat(13e3), "addresses and brackets": "https://a)) ".repeat(9e3),
  "angles": "<http://".repeat(13e3), "entities": "&amp".repeat(25e3), "quotes": ">".repeat(1e5), "quotes in lines": "> > > > > > > > > > > a\\n".repeat(5e3),
  "items": "- ".repeat(5e4) + "a", "items in lines": "- a\\n".repeat(25e3), "stairs": Array.from({ length: 440 }, (_, n) => " ".repeat(n) + "- a").join("\\n"),
  "numbers": "1. ".repeat(33e3), "spaces": " ".repeat(1e5) + "a", "hashes": "# " + "#".repeat(1e5) + "a", "spaces and hashes": "# a" + " #".repeat(5e4),
  "rules": "- ".repeat(5e4) + "-", "pipes": "|".repeat(1e5) + "\\n" + "|-".repeat(5e4), "a table": "| a | b |\\n|---|---|\\n" + "| 1 | 2 |\\n".repeat(1e4),
  "lines of pipes": "| a\\n".repeat(25e3), "fences": "\`\`\`\\n".repeat(25e3), "a code block": "\`\`\`\\n" + "let a = 1;\\n".repeat(1e4), "breaks": "\\n".repeat(1e5), "lines": "a\\n".repeat(5e4),
  "tildes": "~~a".repeat(33e3), "underscores": "_".repeat(1e5) + "a", "nested links": "[a".repeat(3e4) + "](https://x.example)".repeat(2e3),
})`;

const browser = await Browser.start(process.env.BROWSER || "chromium");
let failed = false;
const check = (what, holds) => {
  if (!holds) console.log("FAILED  " + what);
  failed ||= !holds;
};

try {
  await browser.value(program + `
    ;globalThis.shown = (text, step) => {
      const box = document.createElement("div");
      const view = new MarkdownView(box);
      for (let end = step; end < text.length; end += step) view.update(text.slice(0, end));
      view.update(text);
      return box;
    };
    globalThis.plain = (box) => {
      const copy = box.cloneNode(true);
      for (const element of copy.querySelectorAll("*"))
        for (const { name } of [...element.attributes]) if (!["href", "start"].includes(name)) element.removeAttribute(name);
      // Boxes of tables and the heads of code.
      for (const element of copy.querySelectorAll("div")) if (element.lastChild.tagName !== "PRE") element.replaceWith(...element.childNodes);
      return copy.innerHTML;
    };
    globalThis.depth = (node) => 1 + Math.max(0, ...[...node.children].slice(0, 50).map(depth));
  `);
  for (const [text, expected] of CASES) {
    const given = await browser.value(`plain(shown(${JSON.stringify(text)}, 1e9))`);
    check(JSON.stringify(text) + "\n  expected " + expected + "\n  is       " + given, given === expected);
    const grown = await browser.value(`shown(${JSON.stringify(text)}, 1).innerHTML === shown(${JSON.stringify(text)}, 1e9).innerHTML`);
    check("grows to the same: " + JSON.stringify(text), grown);
  }
  // All of them in turn, and pieces of them in a random order that is the same each time.
  const differing = await browser.value(`(() => {
    const texts = ${JSON.stringify(CASES.map(([text]) => text))};
    let state = 7;
    const random = (below) => (state = (state * 1103515245 + 12345) % 2147483648, Math.floor(state / 2147483648 * below));
    const pieces = texts.flatMap((text) => text.split(/(?<=[\\n ])/));
    const made = [texts.join("\\n\\n"), texts.join("\\n")];
    for (let n = 0; n < 400; n++) made.push(Array.from({ length: 12 }, () => pieces[random(pieces.length)] + ["", "\\n", "\\n\\n", " "][random(4)]).join(""));
    return made.find((text) => shown(text, 1).innerHTML !== shown(text, 1e9).innerHTML) || null;
  })()`);
  check("a growing text ends like a whole one: " + JSON.stringify(differing), differing === null);
  const foreign = await browser.value(`(() => {
    const box = shown(${JSON.stringify(CASES.map(([text]) => text).join("\n\n"))}, 1e9);
    const links = [...box.querySelectorAll("a")].every((a) => /^https?:$/.test(a.protocol) && a.rel.includes("noopener"));
    const events = [...box.querySelectorAll("*")].some((element) => [...element.attributes].some(({ name }) => name.startsWith("on")));
    return !links || events || box.querySelector("script, img, iframe, style, form") !== null;
  })()`);
  check("nothing foreign is in the page", !foreign);
  const times = await browser.value(`Object.entries(${LONG}).map(([name, text]) => {
    const began = performance.now();
    const whole = shown(text, 1e9);
    const ms = performance.now() - began;
    const growing = performance.now();
    shown(text, text.length / 20);
    return [name, ms, performance.now() - growing, depth(whole)];
  })`);
  for (const [name, ms, growing, depth] of times) {
    if (process.env.TIMES) console.log(name.padEnd(26), ms.toFixed(0).padStart(6), "ms at once", growing.toFixed(0).padStart(6), "ms in 20 parts, depth", depth);
    check(`100 kB of ${name} take ${ms.toFixed(0)} ms`, ms < 2000);
    check(`100 kB of ${name} in 20 parts take ${growing.toFixed(0)} ms`, growing < 20000);
    check(`${name} nest ${depth} deep`, depth < 60);
  }
  check("no error", browser.problems.length === 0);
  browser.problems.forEach((problem) => console.log(problem));
} catch (error) {
  check(error.message, false);
} finally {
  await browser.stop();
}
console.log(failed ? "markdown: failed" : `markdown: ${CASES.length} texts are as expected`);
process.exit(failed ? 1 : 0);
