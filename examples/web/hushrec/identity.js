/** A client's keys: Ed25519 identity and X25519 mailbox, which WebCrypto does not export. */

import { PolicyError } from "./errors.js";
import { generate, importSecret, publicOf, rawPublic } from "./keys.js";

/**
 * {signing, identityKey, mailbox, mailboxKey}: two CryptoKeys that cannot be exported, and their public keys (32 bytes).
 * IndexedDB stores the whole object. `PolicyError` where the browser has no Ed25519 or X25519.
 */
export async function newIdentity() {
  const [signing, mailbox] = await Promise.all(["Ed25519", "X25519"].map(generate)).catch((error) => {
    throw new PolicyError(`this browser has no Ed25519 and X25519 in WebCrypto; use a newer one (${error.name})`);
  });
  return {
    signing: signing.privateKey,
    identityKey: await rawPublic(signing.publicKey),
    mailbox: mailbox.privateKey,
    mailboxKey: await rawPublic(mailbox.publicKey),
  };
}

/** The same of two raw secrets of 32 bytes, for programs that keep their keys in a file. */
export const identityOf = async (signing, mailbox) => ({
  signing: await importSecret("Ed25519", signing),
  identityKey: await publicOf("Ed25519", signing),
  mailbox: await importSecret("X25519", mailbox),
  mailboxKey: await publicOf("X25519", mailbox),
});
