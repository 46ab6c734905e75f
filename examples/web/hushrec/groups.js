/** Sums in groups: which groups are used, and the sum that they give (docs/wire/masked.md; protocols/sums/groups.py says why). */

import { bigFromLittle } from "./codec.js";
import { CodecError, ParameterError } from "./errors.js";
import { decode, packedBytes, roundHalfEven, unpackElements } from "./fixed_point.js";
import { requirePossible } from "./possible.js";

const SLACK = 1 + 2 ** -22;
const COUNT_BYTES = 8;
const LEAST = 3;

export function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const half = sorted.length >> 1;
  return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

/** {distances, median, kept} of the means of groups: the groups within tau times the median distance are kept. */
export function keepGroups(means, tau) {
  if (means.length < LEAST || !(tau >= 1) || !Number.isFinite(tau)) throw new ParameterError("groups are compared from three on, with a tau of 1 or more");
  const isUsable = (mean) => mean.length === means[0].length && mean.every(Number.isFinite);
  if (!means.every(isUsable)) throw new ParameterError("the means of all groups must be finite and of one length");
  const centre = means[0].map((_, i) => median(means.map((mean) => mean[i])));
  const distances = means.map((mean) => Math.sqrt(mean.reduce((sum, x, i) => sum + (x - centre[i]) ** 2, 0)));
  const middle = median(distances);
  const kept = distances.flatMap((distance, group) => (distance <= tau * middle * SLACK ? [group] : []));
  return { distances, median: middle, kept };
}

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
 * `CodecError` for other counts, and if half of the sums or more are none that honest clients have.
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
  if (2 * possible.length <= groups) throw new CodecError("half of the groups or more have sums that no honest clients have");
  let at = 0;
  return segments.flatMap(({ length, integral }) => {
    const [start, stop] = [at, (at += length)];
    const part = (group) => sums[group].slice(start, stop);
    const means = possible.map((group) => part(group).map((x) => x / clients[group]));
    const kept = possible.length < LEAST ? possible : keepGroups(means, tau).kept.map((index) => possible[index]);
    const counted = kept.reduce((sum, group) => sum + clients[group], 0);
    const total = kept.map(part).reduce((sum, values) => sum.map((x, i) => x + values[i]));
    const scaled = counted === survivors ? total : total.map((x) => x * (survivors / counted));
    return integral ? scaled.map(roundHalfEven) : scaled;
  });
}
