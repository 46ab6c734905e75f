/** What apps use. The modules behind it, for authors of other clients, are `@hushrec/client/protocol/NAME`. */

export * from "./errors.js";
export { Participant, recommend } from "./participant.js";
export { checkReceipt } from "./receipts.js";
export { IndexedStore, MemoryStore } from "./store.js";
export { POLICY } from "./terms.js";
