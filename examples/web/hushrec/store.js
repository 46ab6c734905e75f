/** Where a client keeps its keys, membership and model: in memory, or in the browser's IndexedDB. */

/** get(name), put(name, value) and clear(); values are structured-cloneable, CryptoKeys included. */
export class MemoryStore {
  #values = new Map();

  async get(name) {
    return this.#values.get(name);
  }

  async put(name, value) {
    this.#values.set(name, value);
  }

  async clear() {
    this.#values.clear();
  }
}

const done = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });

/** The same in one IndexedDB database. A `put` is on disk when it returns. */
export class IndexedStore {
  #database;

  constructor(database) {
    this.#database = database;
  }

  static async open(name) {
    const request = indexedDB.open(name, 1);
    request.onupgradeneeded = () => request.result.createObjectStore("values");
    return new IndexedStore(await done(request));
  }

  async #write(act) {
    const transaction = this.#database.transaction("values", "readwrite", { durability: "strict" });
    act(transaction.objectStore("values"));
    await new Promise((resolve, reject) => {
      transaction.oncomplete = resolve;
      transaction.onerror = transaction.onabort = () => reject(transaction.error);
    });
  }

  get(name) {
    return done(this.#database.transaction("values").objectStore("values").get(name));
  }

  put(name, value) {
    return this.#write((values) => values.put(value, name));
  }

  clear() {
    return this.#write((values) => values.clear());
  }
}
