/** Fixed-point values: scales, encodings modulo a power of two, and packed elements (docs/wire/masked.md). */

import { exact } from "./codec.js";
import { BudgetError, CodecError, ParameterError } from "./errors.js";

const EXACT = 2 ** 53;

/** Round to the nearest whole number, halves to the even one. */
export function roundHalfEven(value) {
  const low = Math.floor(value);
  const rest = value - low;
  if (rest !== 0.5) return rest < 0.5 ? low : low + 1;
  return low % 2 === 0 ? low : low + 1;
}

/** The largest power of two that is at most `limit`. */
export function powerBelow(limit) {
  let power = 2 ** Math.floor(Math.log2(limit));
  while (power > limit) power /= 2;
  while (power * 2 <= limit) power *= 2;
  return power;
}

export function checkBudget(bits, bound, scale) {
  if (!(bits >= 16 && bits <= 64) || !(bound > 0) || !(scale > 0) || !Number.isFinite(bound * scale)) {
    throw new ParameterError("a ring has 16 to 64 bits, a positive bound and a positive scale");
  }
  if (bound * scale >= 2 ** (bits - 1)) throw new BudgetError("the sum does not fit the ring");
}

/** Scale of a segment of a masked or one-shot sum. */
export function segmentScale(bits, segment, contributions) {
  if (segment.integral) return 1;
  const bound = Math.min(segment.clip * contributions, segment.sum_bound ?? Infinity);
  const room = Math.min(2 ** (bits - 1) - 1 - contributions, EXACT);
  return Math.min(powerBelow(room / bound), 2 ** Math.floor(Math.log2(EXACT / segment.clip)));
}

/** Bound on the error of a segment's sum over so many contributions at `scale`: of rounding, and of floating point. */
export function segmentError(segment, scale, contributions) {
  const bound = Math.min(segment.clip * contributions, segment.sum_bound ?? Infinity);
  return segment.integral ? 0 : contributions / 2 / scale + (contributions * bound) / EXACT;
}

/** Ring elements (bigints) of values that are first held within +-clip, and how many were. */
export function encode(values, bits, scale, clip) {
  let clipped = 0;
  const elements = values.map((value) => {
    if (!Number.isFinite(value)) throw new ParameterError("values must be finite");
    const held = Math.max(-clip, Math.min(clip, value));
    clipped += held !== value;
    return BigInt.asUintN(bits, BigInt(roundHalfEven(held * scale)));
  });
  return { elements, clipped };
}

export const decode = (elements, bits, scale) =>
  elements.map((element) => Number(BigInt.asIntN(bits, element)) / scale);

export const packedBytes = (count, bits) => Math.ceil((count * bits) / 8);

/** Element i takes bits i * bits to (i + 1) * bits, lowest first. */
export function packElements(elements, bits) {
  const body = new Uint8Array(packedBytes(elements.length, bits));
  let held = 0n;
  let count = 0n;
  let at = 0;
  for (const element of elements) {
    held |= BigInt.asUintN(bits, element) << count;
    for (count += BigInt(bits); count >= 8n; count -= 8n, held >>= 8n) body[at++] = Number(held & 255n);
  }
  if (count) body[at] = Number(held);
  return body;
}

export function unpackElements(body, bits, count) {
  exact(body, packedBytes(count, bits), `${count} elements of ${bits} bits`);
  const elements = [];
  let held = 0n;
  let filled = 0;
  for (const byte of body) {
    held |= BigInt(byte) << BigInt(filled);
    for (filled += 8; filled >= bits && elements.length < count; filled -= bits) {
      elements.push(BigInt.asUintN(bits, held));
      held >>= BigInt(bits);
    }
  }
  if (held) throw new CodecError("the unused bits of the last byte are not zero");
  return elements;
}
