// The chat of the page of a server.

let said = [];
let asking = null;
let talks = true;

async function about() {
  try {
    const props = await (await fetch("props", { headers: headers() })).json();
    talks = Boolean(props.has_chat_template);
  } catch {
    return;
  }
  at("chat-head").textContent = talks ? "Chat" : "Continue a text";
  at("chat-about").textContent = talks ? "" : "This model has no chat template: it continues what you write.";
}

async function ask(question) {
  const mine = asking = new AbortController();
  at("send").hidden = true;
  at("stop").hidden = false;
  const box = at("chat");
  const asked = made("p", question, talks ? "user" : undefined);
  const answer = made("p");
  const thoughts = made("details");
  thoughts.append(made("summary", "Thoughts"), made("span"));
  thoughts.hidden = true;
  if (talks) box.append(asked, thoughts, answer);
  else box.append(answer);
  let text = talks ? "" : question;
  answer.textContent = text;
  const note = made("p", "", "note");
  box.append(note);
  const down = () => { box.scrollTop = box.scrollHeight; };
  down();
  said.push({ role: "user", content: question });
  const body = talks
    ? { messages: said, stream: true, return_progress: true }
    : { prompt: question, stream: true, max_tokens: 200 };
  try {
    const response = await fetch(talks ? "v1/chat/completions" : "v1/completions", {
      method: "POST", headers: headers({ "Content-Type": "application/json" }), body: JSON.stringify(body), signal: mine.signal,
    });
    if (!response.ok) throw new Error(await failureOf(response));
    for await (const [, data] of eventsOf(response)) {
      if (data === "[DONE]") break;
      const event = JSON.parse(data);
      if (event.error) throw new Error(event.error.message);
      const progress = event.prompt_progress;
      if (progress) note.textContent = "reading the prompt, " + percent(progress.processed / Math.max(1, progress.total));
      const choice = event.choices?.[0];
      const delta = choice?.delta || {};
      if (delta.reasoning_content) {
        thoughts.hidden = false;
        thoughts.lastChild.textContent += delta.reasoning_content;
      }
      const more = delta.content || choice?.text || "";
      if (more) {
        note.textContent = "";
        text += more;
        answer.textContent = text;
        down();
      }
      if (choice?.finish_reason === "length") note.textContent = "(cut off at the limit of tokens)";
    }
  } catch (error) {
    note.textContent = mine.signal.aborted ? "(stopped)" : error.message;
    note.classList.toggle("failed", !mine.signal.aborted);
  }
  said.push({ role: "assistant", content: text });
  if (!note.textContent) note.remove();
  if (asking === mine) asking = null;
  at("send").hidden = false;
  at("stop").hidden = true;
}

at("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const question = at("question").value;
  if (!question.trim() || asking) return;
  at("question").value = "";
  ask(question);
});
at("question").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    at("ask").requestSubmit();
  } else if (event.key === "Escape") {
    asking?.abort();
  }
});
at("stop").addEventListener("click", () => asking?.abort());
at("clear").addEventListener("click", () => {
  asking?.abort();
  said = [];
  at("chat").textContent = "";
  at("question").focus();
});
about();
