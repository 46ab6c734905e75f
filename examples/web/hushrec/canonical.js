/** The canonical form of JSON (RFC 8785), and the model digest of a task (docs/wire/terms.md). */

import { concat, utf8 } from "./codec.js";
import { digest } from "./domain.js";
import { ParameterError } from "./errors.js";

function text(value) {
  if (value === null || typeof value === "boolean") return String(value);
  if (typeof value === "number") {
    if (!Number.isFinite(value)) throw new ParameterError("a number that is not finite has no JSON form");
    return JSON.stringify(value);
  }
  if (typeof value === "string") {
    if (!value.isWellFormed()) throw new ParameterError("a string holds half of a surrogate pair");
    return JSON.stringify(value);
  }
  if (Array.isArray(value)) return `[${value.map(text).join(",")}]`;
  if (typeof value === "object") {
    const names = Object.keys(value).sort();
    return `{${names.map((name) => `${text(name)}:${text(value[name])}`).join(",")}}`;
  }
  throw new ParameterError(`a ${typeof value} has no canonical JSON form`);
}

/** The canonical JSON of a value as text. */
export const canonicalJson = text;

/**
 * The terms of a task (its JSON, parsed) to which all parties are bound, as canonical JSON. recipe, mechanism: all their
 * parameters, with this client's own defaults; see `allParameters` of terms.js.
 */
export function boundTerms(task, parameters) {
  const { task_id, schedule, seed, organiser, evaluation, catalogue_digest, receipt_key } = task;
  const [recipe, mechanism] = ["recipe", "mechanism"].map((of) => ({ ...task[of], parameters: parameters[of] }));
  const terms = { task: task_id, recipe, mechanism, schedule, seed };
  if (organiser) terms.organiser = organiser;
  if (evaluation) terms.evaluation = evaluation;
  if (catalogue_digest) terms.catalogue_digest = catalogue_digest;
  if (receipt_key) terms.receipt_key = receipt_key;
  return text(terms);
}

/**
 * snapshotDigest: SHA-256 of the newest snapshot (32 bytes), null before the first complete round. levels: the levels in
 * use (SCoLR).
 */
export const broadcastBytes = (sumIndex, snapshotDigest, levels = []) =>
  concat(utf8(`step:${sumIndex}\n${levels.length ? `levels:${levels}\n` : ""}`), snapshotDigest ?? utf8("initial"));

/** bound: the result of `boundTerms`. */
export const modelDigest = (bound, sumIndex, snapshotDigest, levels = []) =>
  digest("masked model", utf8(bound), broadcastBytes(sumIndex, snapshotDigest, levels));
