/** Plain sums, and blocks that a contribution chooses (docs/wire/encrypted.md). */

import { concat, littleEndian } from "./codec.js";
import { ContributionError } from "./errors.js";

const SLACK = 1 + 2 ** -22;

export function toFloats(values) {
  const view = new DataView(new ArrayBuffer(4 * values.length));
  values.forEach((value, index) => view.setFloat32(4 * index, value, true));
  return new Uint8Array(view.buffer);
}

export function fromFloats(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  return Array.from({ length: bytes.length / 4 }, (_, index) => view.getFloat32(4 * index, true));
}

/** blocks: values of each block of the contribution. numbers: those of chosen blocks, ascending. */
export const seal = (blocks, numbers = []) =>
  concat(...numbers.map((number) => littleEndian(number, 4)), toFloats(blocks.flat()));

/** Refuses a body of another length, and values that are not finite or above their bound. */
export function check(body, bounds) {
  if (body.length !== 4 * bounds.length) throw new ContributionError("a contribution of another length");
  fromFloats(body).forEach((value, index) => {
    if (!(Math.abs(value) <= bounds[index] * SLACK)) throw new ContributionError("a value is not within its clip");
  });
}
