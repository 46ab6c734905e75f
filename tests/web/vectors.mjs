/** The JSON vectors, run with hushrec.js: run(name, fetchVectors), in Node and in browsers. */

import { countChecks } from "./checks.mjs";
import { RUNNERS as basics } from "./vectors_basics.mjs";
import { RUNNERS as privacy } from "./vectors_privacy.mjs";
import { RUNNERS as rounds } from "./vectors_rounds.mjs";
import { RUNNERS as states } from "./vectors_states.mjs";
import { RUNNERS as sums } from "./vectors_sums.mjs";

export const RUNNERS = { ...basics, ...privacy, ...rounds, ...states, ...sums };

/** Run one file; fetchVectors(name) returns its parsed JSON. Returns the number of checks. */
export async function run(name, fetchVectors) {
  countChecks();
  const vectors = await fetchVectors(name);
  const table = name === "oneshot_round.json" ? (await fetchVectors("oneshot_ring.json")).gaussian.table.map(BigInt) : null;
  await RUNNERS[name](vectors, table);
  const made = countChecks();
  if (!made) throw new Error(`${name}: nothing was checked`);
  return made;
}
