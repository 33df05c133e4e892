// A headless Chromium, spoken to over a pipe.

import { spawn } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

export class Browser {
  static async start(program) {
    const browser = new Browser();
    // The profile of an ordinary user has no part in it.
    browser.profile = mkdtempSync(join(tmpdir(), "sws-screens-"));
    const options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
      "--disable-dev-shm-usage", "--disable-background-networking", "--remote-debugging-pipe",
      "--user-data-dir=" + browser.profile, "about:blank"];
    browser.child = spawn(program, options, { stdio: ["ignore", "ignore", "ignore", "pipe", "pipe"] });
    browser.calls = new Map();
    browser.number = 0;
    browser.problems = [];
    let rest = "";
    browser.child.stdio[4].setEncoding("utf8").on("data", (data) => {
      const parts = (rest + data).split("\0");
      rest = parts.pop();
      parts.forEach((part) => browser.heard(JSON.parse(part)));
    });
    const { targetInfos } = await browser.call("Target.getTargets");
    const page = targetInfos.find((target) => target.type === "page");
    const { sessionId } = await browser.call("Target.attachToTarget", { targetId: page.targetId, flatten: true });
    browser.session = sessionId;
    for (const domain of ["Page", "Runtime", "Log"]) await browser.call(domain + ".enable");
    return browser;
  }

  call(method, params = {}) {
    const id = ++this.number;
    const message = { id, method, params, sessionId: this.session };
    this.child.stdio[3].write(JSON.stringify(message) + "\0");
    return new Promise((done, failed) => this.calls.set(id, { done, failed }));
  }

  heard(message) {
    if (message.id) {
      const { done, failed } = this.calls.get(message.id);
      this.calls.delete(message.id);
      if (message.error) failed(new Error(JSON.stringify(message.error)));
      else done(message.result);
    } else if (message.method === "Runtime.exceptionThrown") {
      const { exceptionDetails: details } = message.params;
      this.problems.push(details.exception?.description || details.text);
    } else if (message.method === "Log.entryAdded" && message.params.entry.level === "error") {
      this.problems.push(message.params.entry.text + " " + (message.params.entry.url || ""));
    }
  }

  // The size of a screen, and its scheme: `light` or `dark`.
  async screen(width, height, scheme) {
    const mobile = width < 600;
    await this.call("Emulation.setDeviceMetricsOverride", { width, height, deviceScaleFactor: mobile ? 2 : 1, mobile });
    await this.call("Emulation.setEmulatedMedia", { features: [{ name: "prefers-color-scheme", value: scheme }] });
  }

  async open(url) {
    await this.call("Page.navigate", { url });
  }

  // The value of an expression in the page.
  async value(expression) {
    const { result, exceptionDetails } = await this.call("Runtime.evaluate",
      { expression, awaitPromise: true, returnByValue: true });
    if (exceptionDetails) throw new Error(expression + ": " + (exceptionDetails.exception?.description || ""));
    return result.value;
  }

  // Waits until an expression in the page is true.
  async until(expression, seconds = 60) {
    for (let n = 0; n < 10 * seconds; n++) {
      if (await this.value("(() => { try { return Boolean(" + expression + "); } catch { return false; } })()")) return;
      await pause(100);
    }
    throw new Error("it never came true: " + expression + "; state " + await this.value("document.body.innerText.slice(0, 400)"));
  }

  async type(selector, text) {
    await this.value("document.querySelector(" + JSON.stringify(selector) + ").focus()");
    await this.call("Input.insertText", { text });
  }

  // Presses a key; `modifiers` is 8 with Shift.
  async press(key, modifiers = 0) {
    const codes = { Enter: 13, Escape: 27, ArrowLeft: 37, ArrowRight: 39, Home: 36, End: 35 };
    const about = { key, code: key, windowsVirtualKeyCode: codes[key], text: key === "Enter" ? "\r" : undefined, modifiers };
    await this.call("Input.dispatchKeyEvent", { type: "keyDown", ...about });
    await this.call("Input.dispatchKeyEvent", { type: "keyUp", ...about });
  }

  async picture(path) {
    const { cssContentSize: { width, height } } = await this.call("Page.getLayoutMetrics");
    const clip = { x: 0, y: 0, width, height, scale: 1 };
    const { data } = await this.call("Page.captureScreenshot", { clip, captureBeyondViewport: true });
    writeFileSync(path, Buffer.from(data, "base64"));
  }

  async stop() {
    const over = new Promise((done) => this.child.once("exit", done));
    this.session = undefined;
    this.call("Browser.close").catch(() => {});
    await Promise.race([over, pause(5000)]);
    this.child.kill("SIGKILL");
    // Its last processes may still write.
    for (let n = 0; n < 20; n++) {
      try {
        rmSync(this.profile, { recursive: true, force: true });
        return;
      } catch {
        await pause(100);
      }
    }
  }
}

export const pause = (ms) => new Promise((done) => setTimeout(done, ms));
