// Conversations in files: exported as JSON, and imported from it.

function download(name, value) {
  const link = made("a");
  link.href = URL.createObjectURL(new Blob([JSON.stringify(value, null, 2) + "\n"], { type: "application/json" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

function fileNameOf(title) {
  const words = title.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "").slice(0, 40);
  return (words || "conversation") + ".json";
}

// A conversation in a file, in the words of the chat endpoint.
function exported({ title, created, changed, messages }) {
  return {
    title, created: new Date(created).toISOString(), changed: new Date(changed).toISOString(),
    messages: messages.map(({ role, content, reasoning, calls, model, note }) =>
      ({ role, content, reasoning_content: reasoning || undefined, tool_calls: calls, model, note: note || undefined })),
  };
}

// The conversation of a file, made anew of the parts that have the right kind. Throws if it is none.
function imported(given) {
  const text = (value) => typeof value === "string" ? value : undefined;
  const time = (value) => Date.parse(text(value) || "") || Date.now();
  const messages = given.messages.map((message) => {
    if (!["user", "assistant"].includes(message.role)) throw new Error("a message is of neither side");
    const { role, content, reasoning_content: reasoning, tool_calls: calls, model, note } = message;
    const kept = { role, content: text(content) ?? "" };
    if (role === "user") return kept;
    Object.assign(kept, { reasoning: text(reasoning) ?? "", model: text(model), note: text(note) });
    if (Array.isArray(calls)) kept.calls = calls.map((call) => ({ name: String(call.name), arguments: String(call.arguments) }));
    return kept;
  });
  if (!messages.length) throw new Error("it has no messages");
  const times = { created: time(given.created), changed: time(given.changed) };
  return { ...newConversation(), ...times, title: (text(given.title) || "").slice(0, 200), messages };
}

at("export").addEventListener("click", () => download(fileNameOf(titleOf(current)), exported(current)));
at("export-all").addEventListener("click", async () => {
  download("conversations.json", (await storage.all()).map(exported));
});
at("import").addEventListener("click", () => at("import-file").click());
at("import-file").addEventListener("change", async () => {
  const [file] = at("import-file").files;
  if (!file) return;
  try {
    const given = JSON.parse(await file.text());
    const conversations = (Array.isArray(given) ? given : [given]).map(imported);
    for (const conversation of conversations) await storage.write(conversation);
    at("list-about").textContent = "Imported: " + conversations.length;
  } catch (error) {
    at("list-about").textContent = file.name + " has no conversations of this page: " + error.message;
  }
  at("import-file").value = "";
  await changedList();
});
