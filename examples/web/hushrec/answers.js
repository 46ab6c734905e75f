/**
 * The forms of the server's JSON answers, as far as this client reads them: what is not of its form is the server's
 * fault, and is said where it is read. What the values must be is checked by those who use them.
 */

import { CodecError } from "./errors.js";

const [TEXT, NUMBER, TRUTH, OBJECT] = ["string", "number", "boolean", "object"];

/** A value that may also be null or missing. */
const orNone = (form) => ({ orNone: form });

const SEGMENT = { name: TEXT, length: NUMBER, clip: NUMBER, integral: TRUTH, scale: NUMBER };
const CHOSEN = { name: TEXT, parameters: OBJECT };

/** GET of a task, its successor, or the task of an invitation. */
export const TASK = {
  ...{ task_id: TEXT, state: TEXT, seed: TEXT, waiting_for: orNone(TEXT), recipe: CHOSEN, mechanism: CHOSEN },
  schedule: { rounds: NUMBER, cohort_size: NUMBER, min_clients: NUMBER },
  resolved: {
    ...{ recipe: OBJECT, mechanism: OBJECT },
    main_sum: { sum_index: NUMBER, layout: { blocks: [{ count: NUMBER, segments: [SEGMENT] }] }, plan: OBJECT },
  },
};

/** The newest round, as a client asks for it. */
export const ROUND = {
  ...{ number: NUMBER, step: NUMBER, cohort: NUMBER, state: TEXT, seed: TEXT, in_cohort: orNone(TRUTH), contributed: orNone(TRUTH) },
  ...{ delivered: orNone(TRUTH), failure: orNone(TEXT), committee_keys: orNone(TEXT), contribution_bytes: orNone(NUMBER) },
  ...{ survivor_set: orNone(TEXT), confirmations: orNone(TEXT) },
};

const COMPLETE = { number: NUMBER, step: NUMBER, survivors: NUMBER, aggregate_digest: TEXT, state_digest: TEXT, aggregate_chain: TEXT };
export const ROUNDS = { rounds: [COMPLETE], more: orNone(TRUTH) };
const ATTESTATION = { client_id: TEXT, identity_key: TEXT, mailbox_key: TEXT, certificate: orNone(TEXT) };
export const ATTESTATIONS = { attestations: [ATTESTATION], more: orNone(TRUTH) };
export const ENROLMENT = { task_id: TEXT, client_id: TEXT, token: TEXT, role: TEXT };
export const RECEIPT = { digest: TEXT, bytes: NUMBER };
/** An answer that is read no further. */
export const ANY = OBJECT;

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

/** The first name at which `value` is not of the form, or null. */
function misfit(value, form, name) {
  if (typeof form === "string") return (form === OBJECT ? isObject(value) : typeof value === form) ? null : name;
  if (form.orNone) return value === null || value === undefined ? null : misfit(value, form.orNone, name);
  const isList = Array.isArray(form);
  if (isList ? !Array.isArray(value) : !isObject(value)) return name;
  const parts = isList ? value.map((one, at) => [one, form[0], `${name}.${at}`]) : Object.keys(form).map((key) => [value[key], form[key], `${name}.${key}`]);
  for (const part of parts) {
    const found = misfit(...part);
    if (found) return found;
  }
  return null;
}

/** `value`, if it is of the form; `CodecError` with the name of what is not. what: what was asked for. */
export function shaped(value, form, what) {
  const found = misfit(value, form, "");
  if (found === null) return value;
  throw new CodecError(`${what}: the server's answer has another form${found && ` at ${found.slice(1)}`}`);
}
