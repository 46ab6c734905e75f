/** Comparisons for the vectors: exact, approximate, and refusals by the name of the error. */

import { fromHex } from "../../examples/web/hushrec/codec.js";

let checks = 0;

/** How many checks were made since the last call. */
export function countChecks() {
  const made = checks;
  checks = 0;
  return made;
}

export function same(found, expected, what = "") {
  checks++;
  const [a, b] = [found, expected].map((value) => JSON.stringify(value, (_, one) => (typeof one === "bigint" ? `${one}` : one)));
  if (a !== b) throw new Error(`${what}: ${a?.slice(0, 200)} is not ${b?.slice(0, 200)}`);
}

export function near(found, expected, what = "") {
  checks++;
  const [a, b] = [found, expected].map((value) => [value].flat(Infinity));
  const fits = a.length === b.length && a.every((x, i) => Math.abs(x - b[i]) <= 1e-5 * Math.abs(b[i]) + 1e-7);
  if (!fits) throw new Error(`${what}: ${a.slice(0, 8)} is not near ${b.slice(0, 8)}`);
}

export async function refused(name, call, what = "") {
  checks++;
  try {
    await call();
  } catch (error) {
    if (error.name === name) return;
    throw new Error(`${what}: ${error.name} (${error.message}), not ${name}`);
  }
  throw new Error(`${what}: accepted, not ${name}`);
}

export const hexes = (list) => list.map(fromHex);
