/** A client's keys: an Ed25519 identity, which WebCrypto does not export, and the seed of its mailbox's sealing key. */

import { PolicyError } from "./errors.js";
import { generate, importSecret, publicOf, rawPublic } from "./keys.js";
import { sealingKey } from "./sealing.js";

/** {mailbox, sealingKey, mailboxKey}: 32 secret bytes, the public sealing key that follows from them, and its name. */
async function mailboxOf(seed) {
  const { key, name } = await sealingKey(seed);
  return { mailbox: seed, sealingKey: key, mailboxKey: name };
}

/**
 * {signing, identityKey, mailbox, sealingKey, mailboxKey}: a CryptoKey that cannot be exported and its public key (32
 * bytes), and the mailbox. IndexedDB stores the whole object. `PolicyError` where the browser has no Ed25519 or X25519.
 */
export async function newIdentity() {
  const [signing] = await Promise.all(["Ed25519", "X25519"].map(generate)).catch((error) => {
    throw new PolicyError(`this browser has no Ed25519 and X25519 in WebCrypto; use a newer one (${error.name})`);
  });
  return {
    signing: signing.privateKey,
    identityKey: await rawPublic(signing.publicKey),
    ...(await mailboxOf(globalThis.crypto.getRandomValues(new Uint8Array(32)))),
  };
}

/** The same of two raw secrets of 32 bytes, for programs that keep their keys in a file. */
export const identityOf = async (signing, mailbox) => ({
  signing: await importSecret("Ed25519", signing),
  identityKey: await publicOf("Ed25519", signing),
  ...(await mailboxOf(mailbox)),
});
