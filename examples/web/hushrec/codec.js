/** Bytes: hexadecimal, base64url, concatenation, and the length-prefixed packing of docs/wire/index.md. */

import { CodecError } from "./errors.js";

export const utf8 = (text) => new TextEncoder().encode(text);

export const toHex = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");

export function fromHex(text) {
  if (text.length % 2 || /[^0-9a-f]/.test(text)) throw new CodecError("not lower case hexadecimal digits");
  return Uint8Array.from(text.match(/../g) ?? [], (pair) => parseInt(pair, 16));
}

export function concat(...parts) {
  const whole = new Uint8Array(parts.reduce((length, part) => length + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

export const equal = (a, b) => a.length === b.length && a.every((byte, index) => byte === b[index]);

export function toBase64(bytes) {
  let text = "";
  for (const byte of bytes) text += String.fromCharCode(byte);
  return btoa(text);
}

export function fromBase64(text) {
  // no pattern of the whole text: one that repeats a group needs stack for each repetition
  if (text.length % 4 || /[^A-Za-z0-9+/]/.test(text.replace(/={1,2}$/, ""))) throw new CodecError("not base64");
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  if (toBase64(bytes) !== text) throw new CodecError("not canonical base64");
  return bytes;
}

/** Base64url without padding: the form of bytes in JSON bodies. */
export const toBase64Url = (bytes) =>
  toBase64(bytes).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");

export function fromBase64Url(text) {
  if (typeof text !== "string" || /[^A-Za-z0-9_-]/.test(text)) throw new CodecError("not base64url without padding");
  const plain = text.replaceAll("-", "+").replaceAll("_", "/");
  return fromBase64(plain + "=".repeat((4 - (plain.length % 4)) % 4));
}

/** A whole number (number or bigint) as `length` little-endian bytes. */
export function littleEndian(number, length) {
  const bytes = new Uint8Array(length);
  let rest = BigInt(number);
  for (let i = 0; i < length; i++, rest >>= 8n) bytes[i] = Number(rest & 255n);
  return bytes;
}

/** The bigint that little-endian bytes stand for. */
export const bigFromLittle = (bytes) => bytes.reduceRight((whole, byte) => (whole << 8n) | BigInt(byte), 0n);

/** The bigint that big-endian bytes stand for. */
export const bigFromBig = (bytes) => (bytes.length ? BigInt("0x" + toHex(bytes)) : 0n);

export const bigEndian = (number, length) => littleEndian(number, length).reverse();

/** Each chunk behind its length as a uint64. */
export const pack = (...chunks) => concat(...chunks.flatMap((chunk) => [littleEndian(chunk.length, 8), chunk]));

/** Reads fixed-length fields and chunks from bytes, and refuses what is missing or left over. */
export class Reader {
  #rest;

  constructor(bytes) {
    this.#rest = bytes;
  }

  fixed(length) {
    if (this.#rest.length < length) throw new CodecError(`expected ${length} more bytes`);
    const taken = this.#rest.slice(0, length);
    this.#rest = this.#rest.subarray(length);
    return taken;
  }

  number(length) {
    return Number(bigFromLittle(this.fixed(length)));
  }

  big(length) {
    return bigFromLittle(this.fixed(length));
  }

  chunk(limit) {
    const length = this.big(8);
    if (length > BigInt(limit)) throw new CodecError("a chunk is over its limit");
    return this.fixed(Number(length));
  }

  get left() {
    return this.#rest.length;
  }

  finish() {
    if (this.#rest.length) throw new CodecError(`${this.#rest.length} trailing bytes`);
  }
}

export function exact(bytes, length, what) {
  if (bytes.length !== length) throw new CodecError(`${what} must be exactly ${length} bytes, got ${bytes.length}`);
  return bytes;
}
