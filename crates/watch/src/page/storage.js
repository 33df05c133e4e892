// Conversations in this browser's IndexedDB, or in memory where it has none (some private windows).
//
// Two stores: `heads` has what the list shows, `conversations` the messages.

const storage = {
  base: null,
  memory: new Map(),

  // Opens the database. False means that conversations last as long as the page.
  async open() {
    try {
      const opening = indexedDB.open("sws", 1);
      opening.onupgradeneeded = () => {
        opening.result.createObjectStore("heads", { keyPath: "id" });
        opening.result.createObjectStore("conversations", { keyPath: "id" });
      };
      this.base = await finished(opening);
    } catch {
      this.base = null;
    }
    return this.base !== null;
  },

  // What the list shows of all conversations, the latest first.
  async heads() {
    const heads = this.base
      ? await finished(this.base.transaction("heads").objectStore("heads").getAll())
      : [...this.memory.values()].map(headOf);
    return heads.sort((a, b) => b.changed - a.changed);
  },

  // A conversation, or undefined.
  async read(id) {
    if (!this.base) return structuredClone(this.memory.get(id));
    return finished(this.base.transaction("conversations").objectStore("conversations").get(id));
  },

  async all() {
    if (!this.base) return [...this.memory.values()];
    return finished(this.base.transaction("conversations").objectStore("conversations").getAll());
  },

  async write(conversation) {
    if (!this.base) return void this.memory.set(conversation.id, structuredClone(conversation));
    await this.change((heads, conversations) => {
      heads.put(headOf(conversation));
      conversations.put(conversation);
    });
  },

  async remove(id) {
    if (!this.base) return void this.memory.delete(id);
    await this.change((heads, conversations) => {
      heads.delete(id);
      conversations.delete(id);
    });
  },

  async clear() {
    if (!this.base) return void this.memory.clear();
    await this.change((heads, conversations) => {
      heads.clear();
      conversations.clear();
    });
  },

  // Both stores change, or neither.
  change(of) {
    const transaction = this.base.transaction(["heads", "conversations"], "readwrite");
    const done = new Promise((resolve, reject) => {
      transaction.oncomplete = resolve;
      transaction.onerror = transaction.onabort = () => reject(transaction.error);
    });
    of(transaction.objectStore("heads"), transaction.objectStore("conversations"));
    return done;
  },
};

function finished(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

function headOf({ id, title, created, changed }) {
  return { id, title, created, changed };
}
