// The list of conversations: begin, open, rename, delete.
//
// A conversation has an `id`, a `title`, times in milliseconds (`created`, `changed`), `messages`, and
// `from`: the first message that the model still gets.

let heads = [];
let current = newConversation();
// Conversations that are being written: what is in the browser is older.
const saving = new Map();
// Other tabs of this server show the same list.
const others = new BroadcastChannel("sws-conversations");

function newConversation() {
  const now = Date.now();
  const id = now.toString(36) + "-" + Math.random().toString(36).slice(2, 10);
  return { id, title: "", created: now, changed: now, messages: [], from: 0 };
}

const titleOf = (conversation) => conversation.title || "New conversation";

async function saveConversation(conversation) {
  if (conversation.deleted || !conversation.messages.length) return;
  conversation.changed = Date.now();
  saving.set(conversation.id, conversation);
  try {
    await storage.write(conversation);
  } catch (error) {
    at("list-about").textContent = "The browser did not keep this conversation: " + error.message;
    return;
  }
  saving.delete(conversation.id);
  await changedList();
}

async function changedList() {
  others.postMessage("changed");
  await readList();
}

async function readList() {
  heads = await storage.heads();
  showList();
}

others.addEventListener("message", readList);

function showList() {
  const list = at("conversations");
  const there = new Map([...list.children].map((item) => [item.dataset.id, item]));
  for (const [place, head] of heads.entries()) {
    const item = there.get(head.id) || conversationItem(head);
    there.delete(head.id);
    const button = item.firstChild;
    if (button.textContent !== titleOf(head)) button.textContent = titleOf(head);
    button.title = titleOf(head) + ", " + new Date(head.changed).toLocaleString();
    if (head.id === current.id) button.setAttribute("aria-current", "true");
    else button.removeAttribute("aria-current");
    // Moving an item would take its focus.
    if (list.children[place] !== item) list.insertBefore(item, list.children[place] || null);
  }
  for (const item of there.values()) item.remove();
  at("export-all").hidden = at("delete-all").hidden = heads.length === 0;
  at("chat-head").textContent = titleOf(current);
  at("chat-actions").hidden = !heads.some((head) => head.id === current.id);
}

function conversationItem(head) {
  const item = made("li");
  item.dataset.id = head.id;
  const button = made("button");
  button.type = "button";
  button.addEventListener("click", () => openConversation(head.id));
  item.append(button);
  return item;
}

// Shows a conversation. One that is being answered is still in memory.
function show(conversation) {
  current = conversation;
  sessionStorage.setItem("sws-conversation", conversation.id);
  showMessages();
  showList();
  toggleList(false);
}

async function openConversation(id) {
  if (id === current.id) return toggleList(false);
  const conversation = running?.conversation.id === id ? running.conversation : saving.get(id) || await storage.read(id);
  if (!conversation) return readList();
  for (const message of conversation.messages) {
    if (message.running && message !== running?.message) {
      message.running = false;
      message.note = "(interrupted)";
    }
  }
  show(conversation);
}

function beginConversation(question = "") {
  show(newConversation());
  at("question").value = question;
  at("question").focus();
}

function toggleList(open) {
  at("list-toggle").setAttribute("aria-expanded", String(open));
  at("list").classList.toggle("open", open);
}

async function deleteConversation(conversation) {
  if (!await decide("Delete the conversation “" + titleOf(conversation) + "”?", "Delete")) return;
  conversation.deleted = true;
  if (running?.conversation === conversation) running.controller.abort();
  await storage.remove(conversation.id);
  await changedList();
  beginConversation();
}

at("new").addEventListener("click", () => beginConversation());
at("list-toggle").addEventListener("click", () => {
  toggleList(at("list-toggle").getAttribute("aria-expanded") !== "true");
});
at("rename").addEventListener("click", async () => {
  const title = await decide("A name for this conversation", "Rename", titleOf(current));
  if (title === null) return;
  current.title = title;
  await saveConversation(current);
});
at("delete").addEventListener("click", () => deleteConversation(current));
at("delete-all").addEventListener("click", async () => {
  if (!await decide("Delete all " + heads.length + " conversations of this browser?", "Delete all")) return;
  current.deleted = true;
  if (running) {
    running.conversation.deleted = true;
    running.controller.abort();
  }
  await storage.clear();
  await changedList();
  beginConversation();
});

async function startConversations() {
  if (!await storage.open()) at("list-about").textContent = "This browser keeps nothing: conversations end with the page.";
  await readList();
  const last = sessionStorage.getItem("sws-conversation");
  if (heads.some((head) => head.id === last)) await openConversation(last);
  else show(current);
  // On a touch screen the keyboard would cover half of the page.
  if (!window.matchMedia("(pointer: coarse)").matches && document.activeElement === document.body) at("question").focus();
}
