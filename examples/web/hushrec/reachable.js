/** Whether sums of a task can have made a model: what a server that chooses it freely could read with it (docs/security.md). */

import { CodecError } from "./errors.js";
import { divisors } from "./recipes.js";

const SLACK = 1 + 2 ** -22;
const FAR = 9; // of a row's norm at the start: beyond it with a chance of 1e-17

/** How many times longer than that of one contribution the mean row of each item can be. */
function mostOfMean(p, state, { fewest, most }) {
  const by = p.normalise ?? (p.item_bias === "counts" ? "expected" : "clients");
  if (by === "clients") return new Array(p.items).fill(most / fewest);
  if (by === "touched") return new Array(p.items).fill(most);
  return divisors(p, state, fewest, null).map((divisor) => most / divisor);
}

/**
 * Throws `CodecError` unless so many sums can have made the state of CoLR or FedMF after round `round`: rows within the
 * start and what clipped contributions can add to them, and counts of so many clients. See `require_reachable` in
 * protocols/recipes/rows.py.
 */
export function requireReachable({ recipe, parameters: p, width, counting, task: { schedule } }, state, round) {
  const reach = { fewest: schedule.min_clients, most: schedule.cohort_size };
  const isCounted = state.clients >= reach.fewest && state.clients <= counting * reach.most;
  if (state.counts && state.clients && !isCounted) throw new CodecError(`a model state counts the items of ${state.clients} clients`);
  const sums = Math.min(round, schedule.rounds);
  const projected = recipe === "colr" ? Math.sqrt(p.dim / p.rank) : 1;
  const step = sums * p.server_rate * Math.sqrt(width) * p.clip * projected;
  const start = 1 + FAR / Math.sqrt(p.dim);
  const means = mostOfMean(p, state, reach);
  const far = state.factors.findIndex((row, item) => !(Math.sqrt(row.reduce((sum, x) => sum + x * x, 0)) <= (start + step * means[item]) * SLACK));
  if (far >= 0) throw new CodecError(`the factors of item ${far} of a model state are larger than sums of this task can make them`);
}
