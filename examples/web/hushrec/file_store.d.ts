import type { Store } from "./index.js";

/** The store of a client in Node: one file of mode 0600 in a folder of mode 0700, which are made if they are missing. */
export class FileStore implements Store {
  constructor(folder: string);
  get(name: string): Promise<any>;
  put(name: string, value: unknown): Promise<void>;
  /** Forgets everything, the keys too. */
  clear(): Promise<void>;
}
