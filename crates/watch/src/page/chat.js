// Asking the model: requests, streamed answers, stopping and trying again.

// The answer that is being written, with its conversation and what stops it. There is one at a time.
let running = null;
// False if the model has no chat template: it then continues texts.
let talks = true;
// Tokens that the model's context has room for.
let context = 0;
// Milliseconds between two times that a growing answer is kept.
const KEEP_EVERY = 5000;
let refreshDue = false, refreshNot = 0;

// Facts about the model that a first question waits for.
let knowing = null;

async function about() {
  try {
    const ask = async (path) => {
      const response = await fetch(path, { headers: headers() });
      if (!response.ok) throw new Error(await failureOf(response));
      return response.json();
    };
    showModels((await ask("v1/models")).data);
    const { model } = requestSettings();
    const props = await ask(model ? "props?model=" + encodeURIComponent(model) : "props");
    const before = talks;
    talks = Boolean(props.has_chat_template);
    context = props.n_ctx || 0;
    showDefaults(props.default_generation_settings);
    if (talks !== before) showMessages();
  } catch {
    return;
  }
  at("chat-about").textContent = talks ? "" : "This model has no chat template: it continues what you write.";
}

async function ask(question) {
  await knowing;
  const line = question.trim().split("\n")[0];
  current.title ||= line.length > 60 ? line.slice(0, 59).trimEnd() + "…" : line;
  const asked = { role: "user", content: question };
  current.messages.push(asked);
  addMessage(asked);
  await answer(current);
}

// Asks for the last answer again.
function retry(message, anew) {
  if (running) return;
  cutFrom(current.messages.indexOf(message));
  if (anew) showMessages();
  at("question").focus();
  answer(current);
}

function requestOf(conversation) {
  const messages = conversation.messages.slice(conversation.from, -1);
  const stream = { stream: true, stream_options: { include_usage: true }, ...requestSettings() };
  if (!talks) return { max_tokens: 200, ...stream, prompt: messages[messages.length - 1].content };
  const sent = messages.map(({ role, content, reasoning }) => ({ role, content, reasoning_content: reasoning || undefined }));
  if (settings.system) sent.unshift({ role: "system", content: settings.system });
  return { ...stream, messages: sent, return_progress: true };
}

async function answer(conversation) {
  const message = { role: "assistant", content: "", reasoning: "", running: true };
  const mine = running = { conversation, message, controller: new AbortController() };
  conversation.messages.push(message);
  addMessage(message);
  showRunning();
  at("chat").scrollTop = at("chat").scrollHeight;
  saveConversation(conversation);
  try {
    const response = await fetch(talks ? "v1/chat/completions" : "v1/completions", {
      method: "POST", headers: headers({ "Content-Type": "application/json" }),
      body: JSON.stringify(requestOf(conversation)), signal: mine.controller.signal,
    }).catch((error) => {
      throw error.name === "AbortError" ? error : new Error("the server cannot be reached");
    });
    if (!response.ok) throw await refusalOf(response);
    await readAnswer(response, mine);
  } catch (error) {
    message.failed = !mine.controller.signal.aborted;
    message.note = message.failed ? error.message : "(stopped)";
    message.code = error.refusal?.code;
    message.lengths = error.refusal && { prompt: error.refusal.n_prompt_tokens, context: error.refusal.n_ctx };
  }
  message.running = false;
  running = null;
  refreshViews();
  showRunning();
  await saveConversation(conversation);
}

// The error of a response, with what the server says of it.
async function refusalOf(response) {
  let refusal = {};
  try {
    refusal = (await response.json()).error || {};
  } catch {
    // A proxy answers without JSON.
  }
  const error = new Error(refusal.message || "status " + response.status);
  error.refusal = refusal;
  return error;
}

async function readAnswer(response, { conversation, message }) {
  let kept = performance.now();
  for await (const [, data] of eventsOf(response)) {
    if (data === "[DONE]") return;
    const event = JSON.parse(data);
    if (event.error) throw new Error(event.error.message);
    takeEvent(event, message);
    refreshSoon();
    if (performance.now() - kept > KEEP_EVERY) {
      kept = performance.now();
      saveConversation(conversation);
    }
  }
  throw new Error("the server ended the answer early");
}

function takeEvent(event, message) {
  if (event.model) message.model = event.model;
  const progress = event.prompt_progress;
  if (progress) message.note = "reading the prompt, " + percent(progress.processed / Math.max(1, progress.total));
  const choice = event.choices?.[0];
  const delta = choice?.delta || {};
  const text = delta.content || choice?.text || "";
  if (text || delta.reasoning_content || delta.tool_calls) message.note = "";
  message.content += text;
  message.reasoning += delta.reasoning_content || "";
  for (const { index, function: called } of delta.tool_calls || []) {
    message.calls ||= [];
    const call = message.calls[index || 0] ||= { name: "", arguments: "" };
    call.name += called?.name || "";
    call.arguments += called?.arguments || "";
  }
  if (choice?.finish_reason) message.note = choice.finish_reason === "length" ? "(cut off at the limit of tokens)" : "";
  if (event.usage) message.figures = figuresOf(event);
}

// The end of a stream in words.
function figuresOf({ usage, timings, x_sws: engine }) {
  const parts = [usage.completion_tokens + " tokens"];
  if (timings?.predicted_per_second) parts.push(timings.predicted_per_second.toFixed(1) + " tok/s");
  if (Number.isFinite(engine?.hit_rate)) parts.push(percent(engine.hit_rate) + " hits");
  if (usage.total_tokens && context) parts.push(usage.total_tokens + " of " + context + " in the context");
  if (engine?.bytes_read) parts.push(bytes(engine.bytes_read) + " read");
  return parts.join(" · ");
}

// Draws the answer at most once a frame, and for at most a tenth of the time.
function refreshSoon() {
  if (refreshDue) return;
  refreshDue = true;
  setTimeout(() => requestAnimationFrame(() => {
    refreshDue = false;
    if (!running) return;
    const began = performance.now();
    refreshViews();
    refreshNot = performance.now() + 9 * (performance.now() - began);
  }), Math.max(0, refreshNot - performance.now()));
}

function refreshViews() {
  const box = at("chat");
  const follows = box.scrollTop + box.clientHeight > box.scrollHeight - 60;
  // Of the other views only those next to the end change: their buttons.
  const last = current.messages.slice(running?.conversation === current ? -1 : -3);
  for (const message of last) views.get(message)?.refresh();
  if (follows) box.scrollTop = box.scrollHeight;
}

function showRunning() {
  at("send").hidden = Boolean(running);
  at("stop").hidden = !running;
  at("chat").classList.toggle("running", Boolean(running));
  at("chat").setAttribute("aria-busy", String(Boolean(running)));
  for (const message of current.messages.slice(-3)) views.get(message)?.refresh();
}

function sendOnEnter(event, form) {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  form.requestSubmit();
}

at("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const question = at("question").value;
  if (!question.trim() || running) return;
  at("question").value = "";
  at("question").focus();
  ask(question);
});
at("question").addEventListener("keydown", (event) => sendOnEnter(event, at("ask")));
at("stop").addEventListener("click", () => {
  running?.controller.abort();
  at("question").focus();
});
// Escape stops the answer, except where it closes a dialog or gives up a token.
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && running && !event.defaultPrevented && !event.target.closest("dialog, #engine")) running.controller.abort();
});
