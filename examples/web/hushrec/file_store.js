/** Where a client in Node keeps its keys, membership and model. */

import { randomBytes } from "node:crypto";
import { chmodSync, existsSync, mkdirSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fromBase64Url, toBase64Url } from "./codec.js";
import { identityOf } from "./identity.js";

/** The store of a client in one file of mode 0600: JSON, bytes as {"bytes": base64url}. */
export class FileStore {
  #path;
  #values;

  constructor(folder) {
    mkdirSync(folder, { recursive: true, mode: 0o700 });
    chmodSync(folder, 0o700);
    this.#path = join(folder, "client.json");
    const revive = (_, value) => (typeof value?.bytes === "string" ? fromBase64Url(value.bytes) : value);
    this.#values = existsSync(this.#path) ? JSON.parse(readFileSync(this.#path, "utf8"), revive) : {};
    this.#values.secrets ??= [randomBytes(32), randomBytes(32)].map((secret) => new Uint8Array(secret));
  }

  async get(name) {
    return name === "identity" ? identityOf(...this.#values.secrets) : this.#values[name];
  }

  async put(name, value) {
    if (name !== "identity") this.#values[name] = value;
    this.#write();
  }

  /** Forgets everything, the keys too. */
  async clear() {
    this.#values = { secrets: [randomBytes(32), randomBytes(32)].map((secret) => new Uint8Array(secret)) };
    this.#write();
  }

  #write() {
    const encode = (_, one) => (one instanceof Uint8Array ? { bytes: toBase64Url(one) } : one);
    writeFileSync(`${this.#path}.new`, JSON.stringify(this.#values, encode), { mode: 0o600, flush: true });
    renameSync(`${this.#path}.new`, this.#path);
  }
}
