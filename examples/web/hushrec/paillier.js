/** Paillier sums: packing, encryption and opening (docs/wire/encrypted.md). Keys and ciphertexts are bigints. */

import { bigEndian, bigFromBig, concat, exact } from "./codec.js";
import { CodecError } from "./errors.js";
import { powerBelow, roundHalfEven } from "./fixed_point.js";

const SLACK = 1 + 2 ** -22;
const modulo = (value, n) => ((value % n) + n) % n;

export function power(base, exponent, modulus) {
  let result = 1n;
  for (let square = modulo(base, modulus), rest = exponent; rest; rest >>= 1n) {
    if (rest & 1n) result = (result * square) % modulus;
    square = (square * square) % modulus;
  }
  return result;
}

export function inverse(value, modulus) {
  let [a, b, x, y] = [modulo(value, modulus), modulus, 1n, 0n];
  while (b) [a, b, x, y] = [b, a % b, y, x - (a / b) * y];
  if (a !== 1n) throw new CodecError("a number has no inverse");
  return modulo(x, modulus);
}

/** {scale, width} of a segment's slots. */
export function slotCode(segment, valueBits, contributions) {
  const bound = segment.clip * SLACK;
  const scale = segment.integral ? 1 : powerBelow((2 ** (valueBits - 1) - 1) / bound);
  const largest = BigInt(Math.max(1, roundHalfEven(bound * scale)));
  return { scale, width: (BigInt(contributions) * largest).toString(2).length + 1 };
}

/** [plaintext, position, width, scale] of each value of a block. */
export function slotsOf(segments, keyBits, valueBits, contributions) {
  const slots = [];
  let [row, top] = [0, keyBits - 2];
  for (const segment of segments) {
    const { scale, width } = slotCode(segment, valueBits, contributions);
    for (let i = 0; i < segment.length; i++) {
      if (top < width) [row, top] = [row + 1, keyBits - 2];
      top -= width;
      slots.push([row, top, width, scale]);
    }
  }
  return slots;
}

/** Plaintexts (signed) of a block's values. */
export function packValues(values, slots) {
  const plaintexts = new Array(slots.at(-1)[0] + 1).fill(0n);
  values.forEach((value, i) => {
    const [row, position, , scale] = slots[i];
    plaintexts[row] += BigInt(roundHalfEven(value * scale)) << BigInt(position);
  });
  return plaintexts;
}

/** The ciphertext of m with a randomiser r; r must be fresh and uniform below n. */
export const encrypt = (m, r, n) => ((1n + modulo(m, n) * n) * power(r, n, n * n)) % (n * n);

export function decrypt(ciphertext, p, q) {
  const n = p * q;
  const secret = (p - 1n) * (q - 1n);
  return ((((power(ciphertext, secret, n * n) - 1n) / n) % n) * inverse(secret, n)) % n;
}

/** n and the ciphertexts, big-endian at full width. */
export const encodeBody = (n, ciphertexts, keyBits) =>
  concat(bigEndian(n, keyBits / 8), ...ciphertexts.map((one) => bigEndian(one, keyBits / 4)));

export function decodeBody(body, count, keyBits) {
  exact(body, keyBits / 8 + (count * keyBits) / 4, "a Paillier body");
  const width = keyBits / 4;
  const rest = body.subarray(keyBits / 8);
  const ciphertexts = Array.from({ length: count }, (_, i) => bigFromBig(rest.slice(i * width, (i + 1) * width)));
  return { n: bigFromBig(body.slice(0, keyBits / 8)), ciphertexts };
}

/** The sums in opened plaintexts of a block. */
export function unpackValues(plaintexts, slots, n) {
  const raised = [...plaintexts];
  for (const [row, position, width] of slots) raised[row] += 1n << BigInt(position + width - 1);
  return slots.map(([row, position, width, scale]) => {
    const digit = BigInt.asUintN(width, modulo(raised[row], n) >> BigInt(position)) - (1n << BigInt(width - 1));
    return Number(digit) / scale;
  });
}
