/** CKKS on the wire: sets, scale and byte planes of residues (docs/wire/encrypted.md). Residues are bigints. */

import { CodecError } from "./errors.js";
import { powerBelow } from "./fixed_point.js";

export const SETS = {
  compact: { modulus: 0xfff88001n, planes: [4] },
  standard: { modulus: 0xfffffdc001n, planes: [4, 1] },
  precise: { modulus: 0x1ffffffffb4001n, planes: [4, 2, 1] },
};

/** The scale of values divided by their clip. */
export const scaleOf = (set, contributions) =>
  powerBelow((Number(SETS[set].modulus) / 2 / contributions - 0.5 - 21) / (Math.sqrt(2) * (1 + 2 ** -22)));

export const residueBytes = (set) => SETS[set].planes.reduce((sum, width) => sum + width, 0);

/** Planes, lowest first, each over all residues. */
export function encodePlanes(residues, set) {
  const body = new Uint8Array(residues.length * residueBytes(set));
  let at = 0;
  let shift = 0;
  for (const width of SETS[set].planes) {
    for (const residue of residues) {
      for (let i = 0; i < width; i++) body[at++] = Number((residue >> BigInt(shift + 8 * i)) & 255n);
    }
    shift += 8 * width;
  }
  return body;
}

export function decodePlanes(body, set) {
  const size = residueBytes(set);
  if (body.length % size) throw new CodecError("planes of another length");
  const residues = new Array(body.length / size).fill(0n);
  let at = 0;
  let shift = 0;
  for (const width of SETS[set].planes) {
    for (let i = 0; i < residues.length; i++) {
      for (let k = 0; k < width; k++) residues[i] |= BigInt(body[at++]) << BigInt(shift + 8 * k);
    }
    shift += 8 * width;
  }
  return residues;
}

/** The first ciphertext with a residue that is not below the modulus, or null; size: residues of a ciphertext. */
export function firstOutOfRange(residues, set, size) {
  const wrong = residues.findIndex((residue) => residue >= SETS[set].modulus);
  return wrong < 0 ? null : Math.floor(wrong / size);
}

export function addResidues(sums, residues, set) {
  residues.forEach((residue, i) => (sums[i] = (sums[i] + residue) % SETS[set].modulus));
}
