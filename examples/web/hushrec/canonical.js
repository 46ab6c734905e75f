/** The canonical form of JSON (RFC 8785), and the model digest of a task (docs/wire/terms.md). */

import { concat, pack, toBase64, utf8 } from "./codec.js";
import { digest, sha256 } from "./domain.js";
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

/** The terms of a task (its JSON, parsed) to which all parties are bound, as canonical JSON. */
export function boundTerms(task) {
  const { task_id, recipe, mechanism, schedule, seed, organiser, evaluation } = task;
  const terms = { task: task_id, recipe, mechanism, schedule, seed };
  if (organiser) terms.organiser = organiser;
  if (evaluation) terms.evaluation = evaluation;
  return text(terms);
}

/** snapshotDigest: SHA-256 of the newest snapshot (32 bytes), null before the first complete round. */
export const broadcastBytes = (sumIndex, snapshotDigest) =>
  concat(utf8(`step:${sumIndex}\n`), snapshotDigest ?? utf8("initial"));

export const modelDigest = (task, sumIndex, snapshotDigest) =>
  digest("masked model", utf8(boundTerms(task)), broadcastBytes(sumIndex, snapshotDigest));

/** The header Round-Binding of an advertisement. */
export async function roundBinding(task, sumIndex, snapshotDigest, round, plan) {
  const facts = [task.task_id, round.number, round.cohort, plan.bits, plan.length].map((fact) => utf8(String(fact)));
  const parts = {
    terms: utf8(boundTerms(task)),
    broadcast: broadcastBytes(sumIndex, snapshotDigest),
    round: pack(...facts, round.seed),
  };
  const stated = Object.entries(parts).map(async ([name, part]) => `${name}=:${toBase64(await sha256(part))}:`);
  return (await Promise.all(stated)).join(", ");
}
