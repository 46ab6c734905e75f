/** Sealing: one message, closed to whoever breaks X25519 alone or ML-KEM-768 alone (docs/wire/requests.md). */

import { concat, exact } from "./codec.js";
import { deriveKey, digest, open, seal as encrypt, tag } from "./domain.js";
import { CodecError } from "./errors.js";
import { agree, publicOf } from "./keys.js";
import { ml_kem768, shake256 } from "./noble.js";

const KEM_KEY = 1184;
export const SEALING_KEY_BYTES = 1216;
const ENCAPSULATED = 1088;
export const SEALED_OVERHEAD = ENCAPSULATED + 16;
const NONCE = new Uint8Array(12);

/** The X25519 key in a public sealing key. */
export const agreementKey = (key) => key.slice(KEM_KEY);

export const keyName = (key) => digest("sealing key", key);

/** {seed, kem, agreement, key, name} of a sealing key's 32 secret bytes. key: the public one; name: its digest. */
export async function sealingKey(seed) {
  const expanded = shake256(exact(seed, 32, "the seed of a sealing key"), { dkLen: 96 });
  const { publicKey, secretKey } = ml_kem768.keygen(expanded.slice(0, 64));
  const agreement = expanded.slice(64);
  const key = concat(publicKey, await publicOf("X25519", agreement));
  return { seed, kem: secretKey, agreement, key, name: await keyName(key) };
}

/** sender: an X25519 secret and its public key, {secret, key}. coins: of the encapsulation, for vectors; none: random. */
export async function seal(sender, receiver, plain, coins, purpose, ...parts) {
  const name = await keyName(exact(receiver, SEALING_KEY_BYTES, "a sealing key"));
  const kem = receiver.slice(0, KEM_KEY);
  let encapsulated;
  try {
    encapsulated = ml_kem768.encapsulate(kem, await coins?.(kem));
  } catch {
    throw new CodecError("a sealing key has no ML-KEM-768 key");
  }
  const { cipherText, sharedSecret } = encapsulated;
  const secrets = concat(sharedSecret, await agree(sender.secret, agreementKey(receiver)));
  const transcript = await digest("sealed message", sender.key, name, cipherText);
  const key = await deriveKey(secrets, 32, purpose, transcript, ...parts);
  return concat(cipherText, await encrypt(key, NONCE, plain, tag(purpose, transcript, ...parts)));
}

/** The message, or null if it was not sealed by this sender (X25519, 32 bytes) to this key for this purpose and parts. */
export async function unseal(own, sender, sealed, purpose, ...parts) {
  if (sealed.length < SEALED_OVERHEAD) return null;
  const cipherText = sealed.slice(0, ENCAPSULATED);
  const shared = await agree(own.agreement, sender).catch(() => null);
  if (!shared) return null;
  const transcript = await digest("sealed message", sender, own.name, cipherText);
  const secrets = concat(ml_kem768.decapsulate(cipherText, own.kem), shared);
  const key = await deriveKey(secrets, 32, purpose, transcript, ...parts);
  return open(key, NONCE, sealed.slice(ENCAPSULATED), tag(purpose, transcript, ...parts));
}
