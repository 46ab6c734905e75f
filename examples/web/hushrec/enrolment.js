/** Joining a task: certificate, enrolment, membership (docs/wire/requests.md). */

import { ENROLMENT, TASK } from "./answers.js";
import { POLICY, readTask } from "./terms.js";
import { baseUrl } from "./api.js";
import { fromBase64Url, toBase64Url } from "./codec.js";
import { tag } from "./domain.js";
import { ApiError, CertificateError, ParameterError, RefusalError } from "./errors.js";
import { checkCertificate, checkRevocations, signEnrolment } from "./identities.js";
import { newIdentity } from "./identity.js";
import { sign } from "./keys.js";

const MOST_REVOKED = 100_000;
const now = () => Date.now() / 1000;

/** The body of a request to an organiser's issuing endpoint. */
export async function certificateRequest({ signing, identityKey, mailboxKey }, scope, role = "member") {
  const signature = await sign(signing, tag("certificate request", scope, role, identityKey, mailboxKey));
  const keys = { identity_key: toBase64Url(identityKey), mailbox_key: toBase64Url(mailboxKey) };
  return { scope, role, ...keys, signature: toBase64Url(signature) };
}

/** issue(request): asks the app's login, or an issuing endpoint; resolves with the organiser's document. */
async function obtainCertificate(identity, organiser, issue) {
  const issued = await issue(await certificateRequest(identity, organiser.scope));
  const body = fromBase64Url(issued.certificate);
  const key = fromBase64Url(organiser.key);
  await checkCertificate(key, organiser.scope, identity.identityKey, identity.mailboxKey, body, now());
  return body;
}

const MOST_ENROLMENTS = 6; // an identity that has enrolled before needs two, and each answer that is lost one more

/** The answer to an enrolment; with a larger `renewal` if this identity is enrolled already. */
export async function enrol(api, identity, invitation, certificate, signal) {
  const ask = async (renewal) => {
    const { identityKey, mailboxKey, sealingKey } = identity;
    const signature = await signEnrolment(identity.signing, invitation, identityKey, mailboxKey, null, certificate, renewal);
    const keys = { identity_key: toBase64Url(identityKey), sealing_key: toBase64Url(sealingKey) };
    const signed = { invitation, ...keys, signature: toBase64Url(signature), certificate: toBase64Url(certificate) };
    return api.post("/v1/enrolments", "enrolment", renewal ? { ...signed, renewal } : signed, { form: ENROLMENT, signal });
  };
  for (let renewal = 0, left = MOST_ENROLMENTS; ; ) {
    try {
      return await ask(renewal);
    } catch (error) {
      const last = error instanceof ApiError && error.slug === "conflict" ? error.problem.renewal : undefined;
      if (--left === 0 || !Number.isInteger(last) || last < renewal) throw error;
      renewal = last + 1;
    }
  }
}

/**
 * The tasks that a store with this membership has left, when it goes on in `task`. It has forgotten what it signed in
 * them, so it goes back to none: a server could ask it to sign other survivors of the same sum.
 */
function pastOf(membership, task) {
  const { past = [], task: last = task } = membership ?? {};
  if (past.includes(task)) throw new RefusalError(`this client has left task ${task}, and does not go back to it`);
  return last === task ? past : [...past, last];
}

/** The membership of the task that was `offered`, whose terms this client agrees to. last: the stored membership. */
async function enrolled(api, identity, invitation, offered, last, { organiser, issue, policy, signal }, given = null) {
  const { bound: agreed } = readTask(offered, { organiser, policy });
  const past = pastOf(last, offered.task_id);
  const certificate = given ?? (await obtainCertificate(identity, organiser, issue));
  const { task_id: task, client_id: client, token, role } = await enrol(api, identity, invitation, certificate, signal);
  if (task !== offered.task_id || role !== "member") throw new RefusalError("the server enrolled this client in another task");
  return { url: api.url, task, client, token, agreed, certificate, past };
}

const callsOf = (api, identity, { client, token }) => api.enrolled(client, identity.signing, token);
const isHere = (api, membership) => membership && membership.url === baseUrl(api.url);

/**
 * The JSON of the last task that follows the one of `membership`, null while there is none; throws if this client does
 * not agree to it, as for one whose members another organiser certifies, and for one that it is or was a member of.
 */
async function successorOf(api, identity, membership, { organiser, policy, signal }) {
  const own = callsOf(api, identity, membership);
  const offered = await own.getOrNull(`/v1/tasks/${membership.task}/successor`, "task that follows", { form: TASK, signal });
  if (!offered) return null;
  readTask(offered, { organiser, policy });
  if (!offered.schedule.follows) throw new RefusalError("the terms of the task do not say that it follows another one");
  if (offered.task_id === membership.task) throw new RefusalError("the server says that the task follows itself");
  pastOf(membership, offered.task_id);
  return offered;
}

/** The certificate of the earlier task, which is for the same organiser and scope, while it is valid; null otherwise. */
async function keptCertificate({ identityKey, mailboxKey }, { certificate }, { key, scope }) {
  if (!certificate) return null;
  try {
    await checkCertificate(fromBase64Url(key), scope, identityKey, mailboxKey, certificate, now());
    return certificate;
  } catch (error) {
    if (error instanceof CertificateError) return null;
    throw error;
  }
}

/** Refuses a task with the terms `bound`, which include its id, unless it is the one that was shown to the user. */
function requireShown(shown, bound, { organiser, policy }) {
  if (readTask(shown, { organiser, policy }).bound === bound) return;
  throw new RefusalError("the server names another task now, or other terms, than those that were shown: ask the user again");
}

/** The membership of `offered`, a task that follows that of `membership`. It takes the place of the earlier one. */
async function carriedOver(api, store, identity, membership, offered, how) {
  const certificate = await keptCertificate(identity, membership, how.organiser);
  const carried = await enrolled(api, identity, offered.task_id, offered, membership, how, certificate);
  await store.put("membership", carried);
  return carried;
}

const invitedTask = async (api, token, signal) =>
  (await api.get("/v1/enrolments/task", "task of the invitation", { form: TASK, signal, token })).json;

/** See `Participant.preview`. */
export async function preview(api, { invitation, organiser, policy, signal }) {
  const offered = await invitedTask(api, invitation, signal);
  readTask(offered, { organiser, policy });
  return offered;
}

/** See `Participant.following`. */
export async function following(api, store, how) {
  const [identity, membership] = [await store.get("identity"), await store.get("membership")];
  if (!isHere(api, membership)) throw new RefusalError("the store has no membership on this server");
  return successorOf(api, identity, membership, how);
}

/** What a store keeps of one task, beside its membership. */
const OF_TASK = ["own", "model", "pending", "signed", "committees", "contributions"];

/**
 * {api, terms, membership, identity}: from the store, or newly enrolled with an invitation, or as a member of the task
 * `after`. Before it enrols, the client reads the task and refuses what it does not agree to. See `Participant.join`.
 */
export async function join(api, store, { invitation, after, shown, notFollowed, ...how }) {
  const { organiser, policy = POLICY, signal } = how;
  const identity = (await store.get("identity")) ?? (await newIdentity());
  await store.put("identity", identity);
  let membership = await store.get("membership");
  if (after && !(isHere(api, membership) && [membership.task, ...(membership.past ?? [])].includes(after))) {
    throw new RefusalError(`the store has no membership of task ${after} on this server`);
  }
  if (shown && !after && !invitation) throw new ParameterError("shown goes with after or invitation");
  if (!isHere(api, membership)) {
    const offered = await invitedTask(api, invitation, signal);
    if (shown) requireShown(shown, readTask(offered, { organiser, policy }).bound, { organiser, policy });
    membership = await enrolled(api, identity, invitation, offered, membership, how);
    await store.put("membership", membership);
  }
  if (after === membership.task) {
    const offered = await successorOf(api, identity, membership, how);
    if (!offered) throw new RefusalError("no task follows this one yet");
    if (shown) requireShown(shown, readTask(offered, { organiser, policy }).bound, { organiser, policy });
    membership = await carriedOver(api, store, identity, membership, offered, how);
  } else if (shown) requireShown(shown, membership.agreed, { organiser, policy });
  let task = await taskOf(api, identity, membership, signal);
  if (policy.follow && task.state !== "open") {
    const earlier = membership;
    try {
      const offered = await successorOf(api, identity, membership, how);
      if (offered?.state === "open") membership = await carriedOver(api, store, identity, membership, offered, how);
    } catch (error) {
      signal?.throwIfAborted();
      notFollowed?.(String(error?.message ?? error)); // whatever it is, this client goes on with the model that it has
    }
    if (membership !== earlier) task = await taskOf(api, identity, membership, signal);
  }
  const terms = readTask(task, { organiser, policy });
  if (terms.bound !== membership.agreed) throw new RefusalError("the task's terms changed after this client joined");
  const kept = await store.get("task");
  if (kept && kept.task_id !== task.task_id) for (const name of OF_TASK) await store.put(name, null);
  await store.put("task", task);
  return { api: callsOf(api, identity, membership), terms, membership, identity };
}

const taskOf = async (api, identity, membership, signal) =>
  (await callsOf(api, identity, membership).get(`/v1/tasks/${membership.task}`, "task", { form: TASK, signal })).json;

/** Whether a revocation list was issued before another, or in the same second without all of its serials. */
function isOlder(list, other) {
  if (list.issuedAt !== other.issuedAt) return list.issuedAt < other.issuedAt;
  const serials = new Set(list.serials);
  return !other.serials.every((serial) => serials.has(serial));
}

/**
 * The serials on the organiser's revocation list, which the store keeps: after a restart, too, `CertificateError` for an
 * older list than this client has seen of the scope, in any task, and for none.
 */
export async function refreshRevocations(api, store, { id, organiser: { key, scope } }, signal) {
  let body = null;
  try {
    body = await api.bytes(`/v1/tasks/${id}/revocations`, "revocation list", { signal, most: 8 * MOST_REVOKED + 76 });
  } catch (error) {
    if (!(error instanceof ApiError && error.status === 404)) throw error;
  }
  const read = (list) => checkRevocations(fromBase64Url(key), scope, list);
  const listed = body && (await read(body));
  const name = `revocations ${key} ${scope}`;
  const known = await store.get(name);
  if (known && (!listed || isOlder(listed, await read(known)))) {
    throw new CertificateError(`the server returned ${listed ? "an older" : "no"} revocation list, and this client has seen a newer one`);
  }
  if (body) await store.put(name, body);
  return new Set(listed?.serials);
}
