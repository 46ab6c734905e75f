/** Whether an opened sum can be one of honest contributions (docs/wire/masked.md): protocols/sums/possible.py says why. */

import { CodecError } from "./errors.js";

const SLACK = 1 + 2 ** -22;
const norm = (values) => Math.sqrt(values.reduce((sum, x) => sum + x * x, 0));

/** The largest norm of a segment's sum over n contributions, before the error of encoding. */
export function normOfSum({ length, norm: own, sum_norm: proven, noise = 0 }, n) {
  return Math.min(own == null ? Infinity : own * n, proven ?? Infinity) + 2 * noise * Math.sqrt(n) * (Math.sqrt(length) + 8);
}

/** What is wrong with the upper triangle, row by row, of a sum of r^T r over n contributions; null if nothing is. */
function faultOfGram(upper, { norm: own }, n, error) {
  const rows = Math.floor((Math.sqrt(8 * upper.length + 1) - 1) / 2);
  const edges = Array.from({ length: rows }, (_, i) => i * rows - (i * (i - 1)) / 2);
  const diagonal = edges.map((at) => upper[at]);
  if (diagonal.some((x) => x < -error)) return "a negative square";
  const trace = diagonal.reduce((sum, x) => sum + x, 0);
  if (own != null && trace > (n * own + rows * error) * SLACK) return "a trace";
  const lengths = diagonal.map((x) => Math.sqrt(Math.max(x, 0) + error));
  const isTooLarge = (x, i, j) => Math.abs(x) > (lengths[i] * lengths[j] + error) * SLACK;
  const isOff = edges.some((at, i) => upper.slice(at, at + rows - i).some((x, k) => isTooLarge(x, i, i + k)));
  return isOff ? "a product" : null;
}

function faultOf(segment, values, n) {
  const { clip, sum_bound: proven, error, integral = false, signed = false, gram = false } = segment;
  const largest = Math.min(clip * n, proven ?? Infinity) * SLACK + error;
  const smallest = integral && !signed ? 0 : -largest;
  if (!values.every((x) => x >= smallest && x <= largest && (!integral || Number.isInteger(x)))) return "a value";
  if (gram) return faultOfGram(values, segment, n, error);
  return norm(values) <= (normOfSum(segment, n) + error * Math.sqrt(values.length)) * SLACK ? null : "values of a norm";
}

/** Throws `CodecError` unless `total` can be the sum of n contributions. segments: each with the `error` of its encoding. */
export function requirePossible(segments, total, n) {
  let at = 0;
  for (const segment of segments) {
    const fault = faultOf(segment, total.slice(at, (at += segment.length)), n);
    if (fault) throw new CodecError(`${segment.name} of the opened sum holds ${fault} that no sum of ${n} contributions has`);
  }
}
