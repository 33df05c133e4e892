// The page of a server in a headless Chromium: what it shows, what its buttons do, and pictures of it.
// Usage: node tests/screens/live.mjs URL [DIR] [KEY]
//
// URL is that of a server without texts, DIR gets the pictures, KEY is the server's key if it has one.
// AXE=path/to/axe.min.js (of the npm package axe-core) checks accessibility too.

import { readFileSync } from "node:fs";
import { Browser, pause } from "./browser.mjs";
import { tryChat } from "./chat.mjs";

const [url, dir, key] = process.argv.slice(2);
const browser = await Browser.start(process.env.BROWSER || "chromium");
let failed = false;
const check = (what, holds) => {
  console.log((holds ? "ok      " : "FAILED  ") + what);
  failed ||= !holds;
};
const text = (id) => browser.value("document.getElementById(" + JSON.stringify(id) + ").textContent");
// Pixels of a canvas that were drawn on.
const drawn = (id) => browser.value(`(() => {
  const canvas = document.querySelector(${JSON.stringify(id)});
  const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  let count = 0;
  for (let i = 3; i < data.length; i += 4) count += data[i] > 0;
  return count;
})()`);
// Violations of axe's rules.
const axe = process.env.AXE ? readFileSync(process.env.AXE, "utf8") : null;
if (!axe) console.log("skipped accessibility, as AXE names no axe.min.js");
const audit = async (what) => {
  if (!axe) return;
  const found = await browser.value(`(async () => {
    if (!window.axe) { ${axe}; }
    const { violations } = await axe.run();
    return violations.map(({ id, nodes }) => id + ": " + nodes.map((node) => node.html.slice(0, 100)).join(" "));
  })()`);
  check("axe finds nothing in " + what, found.length === 0);
  found.forEach((line) => console.log(line));
};
const widest = () => browser.value("document.documentElement.scrollWidth - window.innerWidth");

try {
  await browser.screen(1400, 1000, "light");
  await browser.open(url);
  if (key) {
    await browser.until('!document.getElementById("key-form").hidden');
    check("a server with keys asks for one", (await text("state")) === "an API key is needed");
    // Refused requests are errors to a browser.
    browser.problems.length = 0;
    await browser.type("#key", key);
    await browser.press("Enter");
  }
  await browser.until('document.getElementById("state").textContent === "idle"');
  check("the model is named", (await text("model")).length > 0);
  check("the engine is a click away", await browser.value('document.getElementById("engine").hidden'));
  await browser.value('document.getElementById("engine-toggle").click()');
  // Chats end.
  await browser.value('document.getElementById("settings-open").click()');
  await browser.type("#set-max_tokens", "400");
  await browser.value('document.getElementById("settings-form").requestSubmit()');

  // A text, by the keyboard alone. The page itself cancels it, as a fast model would end between two looks.
  await browser.value(`new MutationObserver((_, observer) => {
    const button = document.querySelector("#requests button");
    if (!button || document.querySelectorAll("#text span").length < 20) return;
    window.listed = document.getElementById("requests-about").textContent;
    observer.disconnect();
    button.click();
  }).observe(document.body, { subtree: true, childList: true, characterData: true })`);
  await browser.type("#question", "Tell a long story of the wolf and the fox");
  await browser.press("Enter");
  await browser.until("window.listed");
  check("its request is listed", (await browser.value("listed")).includes("1 of"));
  await browser.until('document.getElementById("state").textContent === "idle" && document.getElementById("stop").hidden');
  const cancelled = await browser.value("document.querySelector('#chat .note')?.textContent || ''");
  check("a button cancels it: " + cancelled, cancelled.includes("cancelled"));
  check("a text appears", (await text("chat")).length > 60);
  const dense = await browser.value('document.getElementById("wall-part").hidden');
  for (const id of [...(dense ? [] : ["#wall"]), "#pass", "#charts canvas"]) check(id + " is drawn", (await drawn(id)) > 100);
  const label = await browser.value('document.getElementById("wall").getAttribute("aria-label")');
  check("the wall is told in words", dense || /\d+ used/.test(label));

  // A token, and why it took its time.
  await browser.value('document.getElementById("text").focus()');
  for (const pressed of ["End", "ArrowLeft", "ArrowLeft"]) await browser.press(pressed);
  check("a token is chosen by keys", (await browser.value('document.querySelectorAll("#text .here").length')) === 1);
  check("its cost is told", /computing .*Why: /.test(await text("token")));
  await browser.press("Escape");
  check("and given up", (await browser.value('document.querySelectorAll("#text .here").length')) === 0);

  await browser.type("#question", "Once upon a time");
  await browser.press("Enter");
  await browser.until('["writing", "idle"].includes(document.getElementById("state").textContent) && document.querySelectorAll("#chat .answer").length === 2');
  for (const [name, width, height] of [["desktop", 1400, 1000], ["phone", 390, 844]]) {
    for (const scheme of ["light", "dark"]) {
      await browser.screen(width, height, scheme);
      await pause(400);
      check("nothing is wider than a " + name, (await widest()) <= 0);
      await audit(`the engine on a ${name}, ${scheme}`);
      if (dir) await browser.picture(`${dir}/server-${name}-${scheme}.png`);
    }
  }
  await browser.until('document.getElementById("state").textContent === "idle"');
  await browser.screen(1400, 1000, "light");

  // Text of a model is no part of a page.
  await browser.type("#question", "<img src=x onerror=alert(1)><b>bold</b>");
  await browser.press("Enter");
  await browser.until('document.getElementById("chat").textContent.includes("<b>bold")');
  check("texts stay texts", (await browser.value('document.querySelectorAll("#chat b, #chat img").length')) === 0);
  await browser.until('document.getElementById("stop").hidden');
  // The settings of the tests to come are others.
  await browser.value("localStorage.clear()");
  await tryChat(browser, { url, dir, check, audit });
  check("no error, and nothing against the policy", browser.problems.length === 0);
  browser.problems.forEach((problem) => console.log(problem));
} catch (error) {
  check(error.message, false);
  browser.problems.forEach((problem) => console.log(problem));
} finally {
  await browser.stop();
}
process.exit(failed ? 1 : 0);
