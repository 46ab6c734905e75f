/** Public random numbers (docs/wire/index.md): Philox4x64-10 and what is drawn from it. */

import { Reader } from "./codec.js";
import { digest } from "./domain.js";

const MASK = (1n << 64n) - 1n;
const MULTIPLIERS = [0xd2e7470ee14c6c93n, 0xca5a826395121157n];
const INCREMENTS = [0x9e3779b97f4a7c15n, 0xbb67ae8584caa73bn];

function block(key, number) {
  let [c0, c1, c2, c3] = [BigInt(number), 0n, 0n, 0n];
  let [k0, k1] = key;
  for (let round = 0; round < 10; round++) {
    const low = MULTIPLIERS[0] * c0;
    const high = MULTIPLIERS[1] * c2;
    [c0, c1, c2, c3] = [(high >> 64n) ^ c1 ^ k0, high & MASK, (low >> 64n) ^ c3 ^ k1, low & MASK];
    k0 = (k0 + INCREMENTS[0]) & MASK;
    k1 = (k1 + INCREMENTS[1]) & MASK;
  }
  return [c0, c1, c2, c3];
}

/** `count` words of the stream of (seed, purpose), bigints below 2^64. */
export async function words(seed, purpose, count) {
  const reader = new Reader(await digest(purpose, seed));
  const key = [reader.big(8), reader.big(8)];
  const found = [];
  for (let number = 1; found.length < count; number++) found.push(...block(key, number));
  return found.slice(0, count);
}

export const uniforms = async (seed, purpose, count) =>
  (await words(seed, purpose, count)).map((word) => (Number(word >> 11n) + 1) * 2 ** -53);

export async function normals(seed, purpose, count) {
  const half = Math.ceil(count / 2);
  const u = await uniforms(seed, purpose, 2 * half);
  const radius = u.slice(0, half).map((value) => Math.sqrt(-2 * Math.log(value)));
  const angle = u.slice(half).map((value) => 2 * Math.PI * value);
  return [...radius.map((r, i) => r * Math.cos(angle[i])), ...radius.map((r, i) => r * Math.sin(angle[i]))].slice(0, count);
}

export async function permutation(seed, purpose, count) {
  const drawn = await words(seed, purpose, count);
  const order = Array.from({ length: count }, (_, index) => index);
  return order.sort((a, b) => (drawn[a] < drawn[b] ? -1 : drawn[a] > drawn[b] ? 1 : a - b));
}
