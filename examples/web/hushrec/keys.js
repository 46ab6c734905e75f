/** Ed25519 and X25519 with WebCrypto. Secret keys are CryptoKeys, or 32 raw bytes that are imported here. */

import { concat, equal, fromHex, toBase64Url } from "./codec.js";
import { CodecError } from "./errors.js";

const { subtle } = globalThis.crypto;
const PKCS8 = {
  Ed25519: fromHex("302e020100300506032b657004220420"),
  X25519: fromHex("302e020100300506032b656e04220420"),
};
const USES = { Ed25519: ["sign"], X25519: ["deriveBits"] };

/** A new key pair that WebCrypto does not export; `name` is Ed25519 or X25519. */
export const generate = (name) => subtle.generateKey({ name }, false, name === "Ed25519" ? ["sign", "verify"] : ["deriveBits"]);

/** The CryptoKey of 32 raw secret bytes. */
export const importSecret = (name, raw, extractable = false) =>
  subtle.importKey("pkcs8", concat(PKCS8[name], raw), { name }, extractable, USES[name]);

export const rawPublic = async (key) => new Uint8Array(await subtle.exportKey("raw", key));

/** The public key (32 bytes) of 32 raw secret bytes. */
export async function publicOf(name, raw) {
  const { x } = await subtle.exportKey("jwk", await importSecret(name, raw, true));
  const text = x.replaceAll("-", "+").replaceAll("_", "/");
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  if (toBase64Url(bytes) !== x) throw new CodecError("a public key is malformed");
  return bytes;
}

export async function sign(secret, message) {
  const key = secret instanceof Uint8Array ? await importSecret("Ed25519", secret) : secret;
  return new Uint8Array(await subtle.sign({ name: "Ed25519" }, key, message));
}

export async function verify(publicKey, signature, message) {
  try {
    const key = await subtle.importKey("raw", publicKey, { name: "Ed25519" }, false, ["verify"]);
    return await subtle.verify({ name: "Ed25519" }, key, signature, message);
  } catch {
    return false;
  }
}

/** The X25519 secret (32 bytes) of a secret key and a public key; `CodecError` for a public key of low order. */
export async function agree(secret, publicKey) {
  const key = secret instanceof Uint8Array ? await importSecret("X25519", secret) : secret;
  try {
    const peer = await subtle.importKey("raw", publicKey, { name: "X25519" }, false, []);
    const shared = new Uint8Array(await subtle.deriveBits({ name: "X25519", public: peer }, key, 256));
    if (!equal(shared, new Uint8Array(32))) return shared;
  } catch {
    // WebCrypto refuses points of low order with an OperationError
  }
  throw new CodecError("an X25519 public key is not usable for key agreement");
}
