/** Shamir sharing over the field of 2^256 + 297 (docs/wire/masked.md). */

import { bigFromLittle, littleEndian } from "./codec.js";
import { CodecError, ParameterError } from "./errors.js";

export const PRIME = 2n ** 256n + 297n;
export const SHARE_BYTES = 33;
const modulo = (value) => ((value % PRIME) + PRIME) % PRIME;

function inverse(value) {
  let [a, b, x, y] = [modulo(value), PRIME, 1n, 0n];
  while (b) [a, b, x, y] = [b, a % b, y, x - (a / b) * y];
  return modulo(x);
}

function coefficient(random) {
  for (;;) {
    const drawn = bigFromLittle(random(SHARE_BYTES)) >> 7n;
    if (drawn < PRIME) return drawn;
  }
}

/** Shares (33 bytes) of 32 bytes at `points`; random(n) returns n secret random bytes. */
export function split(secret, threshold, points, random) {
  const polynomial = [bigFromLittle(secret)];
  while (polynomial.length < threshold) polynomial.push(coefficient(random));
  return points.map((point) => {
    const value = polynomial.reduceRight((sum, c) => modulo(sum * BigInt(point) + c), 0n);
    return littleEndian(value, SHARE_BYTES);
  });
}

/** shares: [point, bytes] pairs, at least `threshold` of them. */
export function combine(shares, threshold) {
  if (shares.length < threshold) throw new ParameterError("fewer shares than the threshold");
  const used = shares.slice(0, threshold).map(([point, bytes]) => {
    const value = bigFromLittle(bytes);
    if (point < 1) throw new ParameterError("points begin at 1");
    if (bytes.length !== SHARE_BYTES || value >= PRIME) throw new CodecError("a share is not an element of the field");
    return [BigInt(point), value];
  });
  let total = 0n;
  for (const [x, value] of used) {
    let [above, below] = [1n, 1n];
    for (const [other] of used) {
      if (other === x) continue;
      above = modulo(above * other);
      below = modulo(below * (other - x));
    }
    total = modulo(total + value * above * inverse(below));
  }
  if (total >= 2n ** 256n) throw new CodecError("the shares do not give a secret of 32 bytes");
  return littleEndian(total, 32);
}
