// The messages of a conversation: questions to edit, answers with their reasoning, tool calls and buttons.

// The view of each message that is shown.
let views = new Map();

function showMessages() {
  const box = at("chat");
  box.textContent = "";
  views = new Map();
  for (const message of current.messages) addMessage(message);
  box.scrollTop = box.scrollHeight;
}

function addMessage(message) {
  if (current.from > 0 && message === current.messages[current.from]) {
    at("chat").append(made("p", "The model no longer gets the messages above.", "left-out"));
  }
  const view = message.role === "user" ? questionView(message) : answerView(message);
  views.set(message, view);
  at("chat").append(view.element);
  view.refresh();
}

function messageButton(words, label, into, action) {
  const button = made("button", words);
  button.type = "button";
  button.setAttribute("aria-label", label);
  button.addEventListener("click", () => action(button));
  into.append(button);
  return button;
}

function questionView(message) {
  const element = made("article", undefined, "question");
  element.setAttribute("aria-label", talks ? "Question" : "Text");
  const words = made("div", message.content, "words");
  const tools = made("div", undefined, "tools");
  messageButton("Copy", "Copy this question", tools, (button) => copy(message.content, button));
  messageButton("Edit", "Edit this question", tools, () => editQuestion(message, element)).className = "not-running";
  element.append(words, tools);
  return { element, refresh() {} };
}

// Puts a field in the place of a question. Sending it replaces all that follows.
function editQuestion(message, element) {
  if (running) return;
  const old = [...element.childNodes];
  const form = made("form", undefined, "edit");
  const field = made("textarea");
  field.value = message.content;
  field.rows = Math.min(12, message.content.split("\n").length + 1);
  field.setAttribute("aria-label", "Edited question");
  const tools = made("div", undefined, "buttons");
  const close = () => {
    element.replaceChildren(...old);
    element.querySelector(".not-running").focus();
  };
  messageButton("Cancel", "Cancel the edit", tools, close);
  const send = made("button", "Send");
  tools.append(send);
  form.append(field, made("p", "What follows is replaced.", "about"), tools);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (!field.value.trim() || running) return;
    cutFrom(current.messages.indexOf(message));
    at("question").focus();
    ask(field.value);
  });
  form.addEventListener("keydown", (event) => {
    if (event.key === "Escape") close();
    else if (event.target === field) sendOnEnter(event, form);
  });
  element.replaceChildren(form);
  field.focus();
}

// Removes the messages from this one on.
function cutFrom(place) {
  for (const message of current.messages.splice(place)) {
    views.get(message)?.element.remove();
    views.delete(message);
  }
  if (current.from < place) return;
  if (current.from > place) current.from = 0;
  showMessages();
}

function answerView(message) {
  const element = made("article", undefined, "answer");
  element.setAttribute("aria-label", talks ? "Answer" : "Continuation");
  const reasoning = made("details", undefined, "reasoning");
  const thought = made("div", "", "words");
  const summary = made("summary", "Reasoning");
  reasoning.append(summary, thought);
  const calls = made("div");
  const words = made("div", undefined, talks ? "markdown" : "words");
  const note = made("p", "", "note");
  const ways = made("div", undefined, "buttons");
  const tools = made("div", undefined, "tools");
  const figures = made("span", "", "figures");
  const copying = messageButton("Copy", "Copy this answer", tools, (button) => copy(message.content, button));
  const retrying = messageButton("Retry", "Retry this answer", tools, () => retry(message));
  retrying.className = "not-running";
  tools.append(figures);
  element.append(reasoning, calls, words, note, ways, tools);
  const markdown = talks ? new MarkdownView(words) : null;
  let shownCalls = "";
  const refresh = () => {
    reasoning.hidden = !message.reasoning;
    summary.textContent = message.running && !message.content ? "Reasoning …" : "Reasoning";
    growText(thought, message.reasoning || "");
    if (shownCalls !== (shownCalls = JSON.stringify(message.calls || []))) {
      calls.replaceChildren(...(message.calls || []).map(callNode));
    }
    if (markdown) markdown.update(message.content);
    else growText(words, message.content);
    note.textContent = message.note || (message.running && !message.content && !message.reasoning ? "waiting" : "");
    note.classList.toggle("failed", Boolean(message.failed));
    ways.replaceChildren(...(message.running ? [] : waysOut(message)));
    tools.hidden = Boolean(message.running);
    copying.hidden = !message.content;
    retrying.hidden = message !== current.messages[current.messages.length - 1];
    figures.textContent = message.figures || "";
  };
  return { element, refresh };
}

// Shows a text that mostly grows, without making anew what is there.
function growText(element, text) {
  const node = element.firstChild || element.appendChild(document.createTextNode(""));
  if (text.length === node.length) return;
  if (text.length > node.length && text.startsWith(node.data)) node.appendData(text.slice(node.length));
  else node.data = text;
}

function callNode(call) {
  const box = made("details", undefined, "call");
  box.open = true;
  let words = call.arguments;
  try {
    words = JSON.stringify(JSON.parse(words), null, 2);
  } catch {
    // Arguments that are no JSON are shown as they came.
  }
  const text = made("pre", words);
  text.tabIndex = 0;
  text.setAttribute("role", "group");
  text.setAttribute("aria-label", "Arguments of " + call.name);
  box.append(made("summary", "Tool call: " + call.name), text);
  return box;
}

// Ways out of a conversation that is longer than the context: the person chooses.
function waysOut(message) {
  const last = current.messages[current.messages.length - 1];
  if (message.code !== "context_length_exceeded" || message !== last) return [];
  const box = made("div");
  const question = current.messages[current.messages.length - 2];
  const from = shorterFrom(message);
  if (from !== null) {
    const count = from - current.from;
    const words = "Leave out the oldest " + (count === 1 ? "message" : count + " messages");
    messageButton(words, words, box, () => {
      current.from = from;
      retry(message, true);
    });
  }
  messageButton("New conversation", "Ask in a new conversation", box, () => beginConversation(question?.content));
  return [...box.childNodes];
}

// The first message to send so that a quarter of the context is free, or null if only the question is left.
function shorterFrom(message) {
  const lengths = current.messages.slice(current.from, -1).map(({ content, reasoning }) => content.length + (reasoning || "").length);
  const all = lengths.reduce((sum, length) => sum + length, 0);
  const { prompt, context } = message.lengths || {};
  const share = prompt && context ? Math.max(0, 1 - 0.75 * context / prompt) : 0.5;
  let gone = 0;
  const question = current.messages.length - 2;
  for (let from = current.from; from < question; from++) {
    gone += lengths[from - current.from];
    if (gone >= share * all && current.messages[from + 1].role === "user") return from + 1;
  }
  return question > current.from ? question : null;
}

// Copy buttons of code blocks.
at("chat").addEventListener("click", (event) => {
  const button = event.target.closest(".copy-code");
  if (button) copy(button.closest(".code").querySelector("code").textContent, button);
});
