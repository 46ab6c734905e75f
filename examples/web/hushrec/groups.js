/** Sums in groups: which groups are used, and the sum that they give (docs/wire/masked.md; protocols/sums/groups.py says why). */

import { bigFromLittle, toHex } from "./codec.js";
import { digest } from "./domain.js";
import { CodecError, ParameterError } from "./errors.js";
import { decode, packedBytes, roundHalfEven, unpackElements } from "./fixed_point.js";
import { requirePossible } from "./possible.js";

const SLACK = 1 + 2 ** -22;
const COUNT_BYTES = 8;
const LEAST = 3;

/** The places of each group's clients (ids), ascending, in sizes that differ by at most one; the larger ones first. */
export async function splitClients(task, clients, groups) {
  const orders = await Promise.all(clients.map(async (id) => toHex(await digest("group order", task, id))));
  const ordered = [...clients.keys()].sort((a, b) => (orders[a] < orders[b] ? -1 : 1));
  const startOf = (group) => group * Math.floor(clients.length / groups) + Math.min(group, clients.length % groups);
  return Array.from({ length: groups }, (_, group) => ordered.slice(startOf(group), startOf(group + 1)).sort((a, b) => a - b));
}

export function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const half = sorted.length >> 1;
  return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

/**
 * What is used of the sums of groups: {distances, median, kept, limits, limited, total}. clients: of each group. row: how
 * many values belong together. A row of a kept group is at most as far from the median of all as its limit.
 */
export function useGroups(sums, clients, tau, row) {
  if (sums.length < LEAST || !(tau >= 1) || !Number.isFinite(tau)) throw new ParameterError("groups are compared from three on, with a tau of 1 or more");
  const length = sums[0].length;
  const means = sums.map((sum, group) => Array.from(sum, (x) => x / clients[group]));
  const isUsable = (mean) => mean.length === length && mean.every(Number.isFinite);
  if (!means.every(isUsable) || length % row) throw new ParameterError("the means of all groups must be finite, of one length and of whole rows");
  const off = (group, i) => means[group][i] - centre[i];
  const centre = means[0].map((_, i) => median(means.map((mean) => mean[i])));
  const rows = Array.from({ length: length / row }, (_, r) => r);
  const far = means.map((_, group) =>
    rows.map((r) => {
      let squares = 0;
      for (let i = r * row; i < (r + 1) * row; i++) squares += off(group, i) ** 2;
      return Math.sqrt(squares);
    }),
  );
  const distances = far.map((of) => Math.sqrt(of.reduce((sum, d) => sum + d * d, 0)));
  const middle = median(distances);
  const kept = distances.flatMap((distance, group) => (distance <= tau * middle * SLACK ? [group] : []));
  const least = middle / Math.sqrt(rows.length);
  const limits = rows.map((r) => tau * Math.max(median(far.map((of) => of[r])), least));
  const everyone = clients.reduce((sum, count) => sum + count, 0);
  const counted = kept.reduce((sum, group) => sum + clients[group], 0);
  const scale = everyone / counted;
  const total = sumOf(kept.map((group) => sums[group])).map((x) => (counted === everyone ? x : x * scale));
  const limited = sums.map(() => 0);
  for (const group of kept) {
    const over = rows.filter((r) => far[group][r] > limits[r] * SLACK);
    limited[group] = over.length / rows.length;
    for (const r of over) {
      const excess = scale * clients[group] * (1 - limits[r] / far[group][r]);
      for (let i = r * row; i < (r + 1) * row; i++) total[i] -= excess * off(group, i);
    }
  }
  return { distances, median: middle, kept, limits, limited, total };
}

const sumOf = (vectors) => vectors.map((one) => Array.from(one)).reduce((sum, values) => sum.map((x, i) => x + values[i]));

/** The sum of one group; null if honest clients can have no such sum. */
function openedGroup(plan, part, count) {
  try {
    return openedSum(plan, part, count);
  } catch (error) {
    if (error instanceof CodecError) return null;
    throw error;
  }
}

/** The opened sum of `count` contributions; `CodecError` for values that no sum of so many has. */
export function openedSum({ segments, bits, length }, body, count) {
  const elements = unpackElements(body, bits, length);
  let at = 0;
  const total = segments.flatMap(({ length: values, scale }) => decode(elements.slice(at, (at += values)), bits, scale));
  requirePossible(segments, total, count);
  return total;
}

/** The length of a released sum. */
export const aggregateBytes = ({ length, bits, groups }) =>
  groups === 1 ? packedBytes(length, bits) : groups * (COUNT_BYTES + packedBytes(length, bits));

/**
 * The sum of the groups that are used, as one of all `survivors`. plan: {segments, bits, length, groups, tau, inGroup}.
 * With tau 0 all are. `CodecError` for other counts, and if half of the sums or more are none that honest clients have;
 * with tau 0 if one is.
 */
export function openGroups(plan, body, survivors) {
  const { segments, groups, tau, inGroup } = plan;
  if (body.length !== aggregateBytes(plan)) throw new CodecError("a sum in groups of another length");
  const parts = Array.from({ length: groups }, (_, i) => body.slice((i * body.length) / groups, ((i + 1) * body.length) / groups));
  const clients = parts.map((part) => Number(bigFromLittle(part.slice(0, COUNT_BYTES))));
  const isCounted = clients.every((count) => count >= 1 && count <= inGroup);
  if (!isCounted || clients.reduce((sum, count) => sum + count) !== survivors) throw new CodecError("the groups state other contributions");
  const sums = parts.map((part, i) => openedGroup(plan, part.slice(COUNT_BYTES), clients[i]));
  const possible = [...sums.keys()].filter((group) => sums[group]);
  if (2 * possible.length <= groups || (tau === 0 && possible.length < groups)) throw new CodecError("too many groups have sums that no honest clients have");
  const counts = possible.map((group) => clients[group]);
  const scale = survivors / counts.reduce((sum, count) => sum + count);
  let at = 0;
  return segments.flatMap(({ length, integral = false, row }) => {
    const [start, stop] = [at, (at += length)];
    const those = possible.map((group) => sums[group].slice(start, stop));
    const total = tau === 0 || those.length < LEAST ? sumOf(those) : useGroups(those, counts, tau, row ?? length).total;
    return total.map((x) => x * scale).map((x) => (integral ? roundHalfEven(x) : x));
  });
}
