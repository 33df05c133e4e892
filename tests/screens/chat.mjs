// The chat of the server's page, with scripted answers in the place of a model's: Markdown, reasoning, tool
// calls, copying, stopping, editing, trying again, conversations that are kept, and a full context.

import { mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pause } from "./browser.mjs";

const ANSWER = `# A heading

Some **bold** text with \`code\`, and a [link](https://example.com/).

1. First
   - inside
2. Second

| expert | hits |
|---|--:|
| 1 | 90 % |

\`\`\`rust
fn main() { println!("<b>hello</b>"); }
\`\`\`

<script>alert(1)</script> [bad](javascript:alert(1))`;

// Answers in the page: two models, and streams by a word in the question.
const SCRIPT = `(() => {
  const real = window.fetch;
  const answer = ${JSON.stringify(ANSWER)};
  window.asked = [];
  const event = (value) => "data: " + JSON.stringify(value) + "\\n\\n";
  const part = (delta, finish_reason = null) => event({ model: "scripted", choices: [{ index: 0, delta, finish_reason }] });
  const stream = (parts, signal, pause) => {
    const encoder = new TextEncoder();
    let next = 0;
    return new Response(new ReadableStream({
      start(controller) {
        signal.addEventListener("abort", () => { try { controller.error(new DOMException("stopped", "AbortError")); } catch {} });
      },
      async pull(controller) {
        await new Promise((done) => setTimeout(done, pause));
        if (signal.aborted) return;
        if (next === parts.length) controller.close();
        else controller.enqueue(encoder.encode(parts[next++]));
      },
    }));
  };
  window.fetch = async (path, options = {}) => {
    if (path.startsWith("props")) return new Response(JSON.stringify({ ...await (await real("props", options)).json(), has_chat_template: true }));
    if (path === "v1/models") return new Response(JSON.stringify({ data: [{ id: "one" }, { id: "two" }] }));
    if (path !== "v1/chat/completions") return real(path, options);
    const body = JSON.parse(options.body);
    asked.push(body);
    const question = body.messages.at(-1).content;
    if (question.includes("too long") && body.messages.length > 3) {
      const error = { message: "the prompt has 900 tokens, and the context has room for 600", code: "context_length_exceeded", n_prompt_tokens: 900, n_ctx: 600 };
      return new Response(JSON.stringify({ error }), { status: 400 });
    }
    if (question.includes("fails")) return stream([part({ content: "Half" }), event({ error: { message: "the disk is gone" } })], options.signal, 5);
    if (question.includes("slow")) return stream(Array.from({ length: 500 }, (_, n) => part({ content: "word" + n + " " })), options.signal, 20);
    if (question.includes("call")) {
      const call = { index: 0, id: "c1", type: "function", function: { name: "weather", arguments: '{"city":"<Oslo>"}' } };
      return stream([part({ reasoning_content: "They want " }), part({ reasoning_content: "<b>weather</b>." }), part({ tool_calls: [call] }), part({}, "tool_calls"), "data: [DONE]\\n\\n"], options.signal, 5);
    }
    const words = "Answer " + asked.length + "\\n\\n" + answer;
    const parts = words.match(/[^]{1,7}/g).map((content) => part({ content }));
    const usage = { usage: { completion_tokens: 42 }, timings: { predicted_per_second: 12.34 }, x_sws: { hit_rate: 0.9, bytes_read: 1048576 }, choices: [] };
    return stream([...parts, part({}, "stop"), event(usage), "data: [DONE]\\n\\n"], options.signal, 2);
  };
})()`;

const LAST = "[...document.querySelectorAll('#chat .answer')].at(-1)";
const IDLE = "document.getElementById('stop').hidden";

export async function tryChat(browser, { url, dir, check, audit }) {
  const count = (selector) => browser.value(`document.querySelectorAll(${JSON.stringify(selector)}).length`);
  const click = (selector) => browser.value(`document.querySelector(${JSON.stringify(selector)}).click()`);
  const words = (expression) => browser.value(`(${expression})?.textContent`);
  const asked = (expression) => browser.value("asked.at(-1)." + expression);
  const send = async (question, until = IDLE) => {
    // What the chosen model is may be asked first.
    const before = await browser.value("asked.length");
    await browser.type("#question", question);
    await browser.press("Enter");
    await browser.until(`document.getElementById('question').value === '' && asked.length > ${before} && ${until}`);
  };
  const listed = () => browser.value("[...document.querySelectorAll('#conversations button')].map((button) => button.textContent)");
  const downloads = mkdtempSync(join(tmpdir(), "sws-downloads-"));
  const scripted = await browser.call("Page.addScriptToEvaluateOnNewDocument", { source: SCRIPT });
  await browser.call("Browser.grantPermissions", { permissions: ["clipboardReadWrite", "clipboardSanitizedWrite"] }).catch(() => {});
  const begin = async () => {
    await browser.open(url);
    await browser.until("document.querySelectorAll('#model-choice option').length === 2 && document.getElementById('chat-head').textContent");
  };

  try {
    await browser.screen(1400, 1000, "light");
    await begin();
    check("several models are a choice", await browser.value("!document.getElementById('model-choice').hidden"));
    await browser.value("(() => { const choice = document.getElementById('model-choice'); choice.value = 'two'; choice.dispatchEvent(new Event('change')); })()");
    await click("#new");

    // An answer, with Markdown.
    await browser.type("#question", "A line");
    await browser.press("Enter", 8);
    await browser.value("document.getElementById('question').value.includes('\\n') || (() => { throw new Error('Shift and Enter begin no line'); })()");
    await send("and Markdown");
    check("the chosen model is asked", (await asked("model")) === "two");
    check("a break is kept", (await asked("messages.at(-1).content")) === "A line\nand Markdown");
    for (const [what, selector] of [["heading", "h3"], ["bold text", "strong"], ["code", "p code"], ["list in a list", "ol ul"], ["table", "td.right"], ["code block", "pre code"]]) {
      check("an answer has a " + what, (await count("#chat .markdown " + selector)) === 1);
    }
    check("links lead to the web alone", (await browser.value("[...document.querySelectorAll('#chat a')].map((a) => a.href).join()")) === "https://example.com/");
    check("nothing of an answer is markup", (await count("#chat script, #chat b, #chat img")) === 0);
    check("its figures are told", (await words(LAST + ".querySelector('.figures')")) === "42 tokens · 12.3 tok/s · 90 % hits · 1.0 MiB read");
    await click("#chat .copy-code");
    await browser.until("document.querySelector('#chat .copy-code').textContent === 'Copied'");
    check("code is copied", (await browser.value("navigator.clipboard.readText()")) === 'fn main() { println!("<b>hello</b>"); }');
    await browser.value(LAST + ".querySelector('[aria-label=\"Copy this answer\"]').click()");
    await pause(100);
    check("an answer is copied", (await browser.value("navigator.clipboard.readText()")) === "Answer 1\n\n" + ANSWER);

    // Reasoning and tool calls.
    await send("call a tool");
    check("reasoning is folded", await browser.value(LAST + ".querySelector('.reasoning').open === false"));
    check("reasoning is text", (await words(LAST + ".querySelector('.reasoning .words')")) === "They want <b>weather</b>.");
    check("a tool call is shown", (await words(LAST + ".querySelector('.call')")).replace(/\s/g, "") === 'Toolcall:weather{"city":"<Oslo>"}');
    await send("and then");
    check("reasoning goes back with the conversation", (await asked("messages[3].reasoning_content")) === "They want <b>weather</b>.");

    // Stopping, failing, trying again, editing.
    await browser.type("#question", "slow");
    await browser.press("Enter");
    await browser.until(LAST + ".textContent.includes('word5 ')");
    check("send is stop meanwhile", await browser.value("document.getElementById('send').hidden && !document.getElementById('stop').hidden"));
    await browser.press("Escape");
    await browser.until(IDLE);
    check("Escape stops", (await words(LAST + ".querySelector('.note')")) === "(stopped)");
    await send("this fails");
    check("a failure is told, beside what came before", /Half.*the disk is gone/.test(await words(LAST)));
    const before = await browser.value("asked.length");
    await browser.value(LAST + ".querySelector('[aria-label=\"Retry this answer\"]').click()");
    await browser.until(`asked.length === ${before + 1} && ${IDLE}`);
    check("an answer is tried again in its place", (await count("#chat .answer")) === 5 && (await asked("messages.length")) === 9);
    await browser.value("document.querySelectorAll('#chat [aria-label=\"Edit this question\"]')[1].click()");
    check("a question has a field", await browser.value("document.activeElement.value === 'call a tool'"));
    await browser.press("Escape");
    check("and is left alone", (await count("#chat .edit")) === 0 && (await count("#chat .answer")) === 5);
    await browser.value("document.querySelectorAll('#chat [aria-label=\"Edit this question\"]')[1].click()");
    await browser.call("Input.insertText", { text: "Another: " });
    await browser.press("Enter");
    await browser.until(`asked.length === ${before + 2} && ${IDLE}`);
    check("an edited question begins anew from there", (await count("#chat .answer")) === 2 && (await asked("messages.length")) === 3);

    // A full context.
    await send("too long");
    check("a full context is told", (await words(LAST + ".querySelector('.note')")).includes("room for 600"));
    const ways = await browser.value(`[...${LAST}.querySelectorAll('.buttons button')].map((button) => button.textContent).join()`);
    check("with two ways out: " + ways, ways === "Leave out the oldest 2 messages,New conversation");
    if (dir) await browser.picture(`${dir}/chat-full.png`);
    await browser.value(LAST + ".querySelector('.buttons button').click()");
    await browser.until("document.querySelector('#chat .left-out') && " + IDLE);
    check("the oldest are left out, and stay to be read", (await asked("messages.length")) === 3 && (await count("#chat .question")) === 3);
    await audit("a conversation");

    // Settings.
    await click("#settings-open");
    await audit("settings");
    check("settings show the server's", (await browser.value("Number(document.getElementById('set-temperature').placeholder)")) >= 0);
    if (dir) await browser.picture(`${dir}/chat-settings.png`);
    await browser.type("#set-system", "Be brief.");
    await browser.value("document.getElementById('set-temperature').value = '0.25'; document.getElementById('set-seed').value = '7'");
    await browser.value("document.getElementById('settings-form').requestSubmit()");
    await click("#new");
    await send("with settings");
    check("settings are sent", (await asked("temperature")) === 0.25 && (await asked("seed")) === 7 && (await asked("top_p")) === undefined);
    check("the system message is sent", (await asked("messages[0].content")) === "Be brief.");

    // Kept in the browser.
    await click("#rename");
    await browser.value("document.getElementById('decision-value').value = 'Renamed'");
    await browser.press("Enter");
    await browser.until("document.getElementById('chat-head').textContent === 'Renamed'");
    await pause(300);
    await begin();
    await browser.until("document.querySelectorAll('#chat .answer').length === 1");
    check("a reloaded page has the conversation", (await words("document.getElementById('chat-head')")) === "Renamed");
    check("and the others", (await listed()).includes("A line"));
    check("and the choice of a model", (await browser.value("document.getElementById('model-choice').value")) === "two");
    await click("#new");
    await browser.value("[...document.querySelectorAll('#conversations button')].find((button) => button.textContent === 'A line').click()");
    await browser.until("document.querySelectorAll('#chat .question').length === 3");
    check("what was left out stays so", (await count("#chat .left-out")) === 1);

    // Another conversation while one is answered.
    await click("#new");
    await browser.type("#question", "slow and elsewhere");
    await browser.press("Enter");
    await browser.until(LAST + "?.textContent.includes('word5 ')");
    await browser.value("[...document.querySelectorAll('#conversations button')].find((button) => button.textContent === 'A line').click()");
    await browser.until("document.querySelectorAll('#chat .question').length === 3");
    await browser.value("[...document.querySelectorAll('#conversations button')].find((button) => button.textContent.startsWith('slow and')).click()");
    await browser.until(LAST + "?.textContent.includes('word20 ')");
    await browser.press("Escape");
    await browser.until(IDLE);

    // Files.
    await browser.call("Browser.setDownloadBehavior", { behavior: "allow", downloadPath: downloads });
    await click("#export");
    for (let n = 0; n < 50 && !readdirSync(downloads).some((name) => name.endsWith(".json")); n++) await pause(100);
    const [name] = readdirSync(downloads);
    const file = JSON.parse(readFileSync(join(downloads, name), "utf8"));
    check("a conversation is exported: " + name, name === "slow-and-elsewhere.json" && file.messages[1].content.startsWith("word0 word1"));

    // Pictures of the first conversation.
    await browser.value("[...document.querySelectorAll('#conversations button')].find((button) => button.textContent === 'Renamed').click()");
    await browser.until("document.querySelectorAll('#chat .answer').length === 1");
    await browser.value("document.getElementById('chat').scrollTop = 0");
    for (const [screen, width, height] of [["desktop", 1400, 1000], ["phone", 390, 844]]) {
      for (const scheme of ["light", "dark"]) {
        await browser.screen(width, height, scheme);
        await pause(300);
        check("nothing is wider than a " + screen, (await browser.value("document.documentElement.scrollWidth - window.innerWidth")) <= 0);
        await audit(`the chat on a ${screen}, ${scheme}`);
        if (dir) await browser.picture(`${dir}/chat-${screen}-${scheme}.png`);
      }
    }
    await click("#list-toggle");
    check("a phone shows the list in the place of the chat", await browser.value("document.getElementById('list').clientWidth > 300 && document.getElementById('chat-part').clientWidth === 0"));
    await audit("the list on a phone");
    if (dir) await browser.picture(`${dir}/chat-phone-list.png`);
    await click("#list-toggle");

    // Deleting.
    await browser.screen(1400, 1000, "light");
    const kept = (await listed()).length;
    await click("#delete");
    await audit("a decision");
    await browser.press("Escape");
    await pause(200);
    check("nothing is deleted unasked", (await listed()).length === kept);
    await click("#delete");
    await click("#decision-yes");
    await browser.until(`document.querySelectorAll("#conversations button").length === ${kept - 1}`);
    check("one is deleted", !(await listed()).includes("Renamed"));
    await click("#delete-all");
    await click("#decision-yes");
    await browser.until('document.querySelectorAll("#conversations button").length === 0');
    await begin();
    await pause(300);
    check("all are deleted", (await listed()).length === 0 && (await count("#chat *")) === 0);

    // And one comes back from its file.
    const { result: { objectId } } = await browser.call("Runtime.evaluate", { expression: "document.getElementById('import-file')" });
    await browser.call("DOM.setFileInputFiles", { files: [join(downloads, name)], objectId });
    await browser.until('document.querySelectorAll("#conversations button").length === 1');
    await click("#conversations button");
    await browser.until("document.querySelectorAll('#chat .answer').length === 1");
    check("an exported conversation is imported", (await words(LAST + ".querySelector('.markdown')")).startsWith("word0 word1"));
    check("no error in the chat", browser.problems.length === 0);
  } finally {
    await browser.call("Page.removeScriptToEvaluateOnNewDocument", scripted);
    rmSync(downloads, { recursive: true, force: true });
  }
}
