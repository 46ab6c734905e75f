/** Domain separation: tags, digests and keys by purpose (docs/wire/index.md). Whole numbers are bigints. */

import { concat, pack, utf8 } from "./codec.js";
import { ParameterError } from "./errors.js";

const PREFIX = utf8("hushrec/1");
const { subtle } = globalThis.crypto;

/** A part is a text, bytes, or a whole number: a bigint, or a number without a fraction. */
function encoded(part) {
  if (part instanceof Uint8Array) return concat(utf8("b"), part);
  if (typeof part === "string") return utf8("s" + part);
  if (typeof part === "bigint" || Number.isSafeInteger(part)) return utf8("i" + part);
  throw new ParameterError("a part of a tag is a text, bytes or a whole number");
}

export function tag(purpose, ...parts) {
  if (!purpose) throw new ParameterError("a domain tag needs a purpose");
  return concat(PREFIX, pack(utf8(purpose), ...parts.map(encoded)));
}

export const sha256 = async (bytes) => new Uint8Array(await subtle.digest("SHA-256", bytes));

export const digest = (purpose, ...parts) => sha256(tag(purpose, ...parts));

/** HKDF-SHA256 without salt; info: bytes. */
export async function hkdf(secret, info, length = 32) {
  const key = await subtle.importKey("raw", secret, "HKDF", false, ["deriveBits"]);
  const algorithm = { name: "HKDF", hash: "SHA-256", salt: new Uint8Array(0), info };
  return new Uint8Array(await subtle.deriveBits(algorithm, key, 8 * length));
}

export const deriveKey = (secret, length, purpose, ...parts) => hkdf(secret, tag(purpose, ...parts), length);

/** AES-256-GCM; the ciphertext ends with its tag of 16 bytes. */
export async function seal(key, nonce, plain, associated) {
  const imported = await subtle.importKey("raw", key, "AES-GCM", false, ["encrypt"]);
  const algorithm = { name: "AES-GCM", iv: nonce, additionalData: associated };
  return new Uint8Array(await subtle.encrypt(algorithm, imported, plain));
}

/** The plaintext, or null if the ciphertext was altered or is for another key. */
export async function open(key, nonce, sealed, associated) {
  const imported = await subtle.importKey("raw", key, "AES-GCM", false, ["decrypt"]);
  try {
    const algorithm = { name: "AES-GCM", iv: nonce, additionalData: associated };
    return new Uint8Array(await subtle.decrypt(algorithm, imported, sealed));
  } catch {
    return null;
  }
}

/** Bytes `start` to `start + length` of the AES-CTR keystream of a key, from counter 0. */
export async function keystream(key, start, length) {
  const imported = await subtle.importKey("raw", key, "AES-CTR", false, ["encrypt"]);
  const counter = new Uint8Array(16);
  let block = BigInt(start) / 16n;
  for (let i = 15; block > 0n; i--, block >>= 8n) counter[i] = Number(block & 255n);
  const skipped = Number(BigInt(start) % 16n);
  const zeros = new Uint8Array(skipped + length);
  const stream = await subtle.encrypt({ name: "AES-CTR", counter, length: 128 }, imported, zeros);
  return new Uint8Array(stream).subarray(skipped);
}
