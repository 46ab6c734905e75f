/** Joining a task: certificate, enrolment, membership (docs/wire/requests.md). */

import { readTask } from "./terms.js";
import { baseUrl } from "./api.js";
import { fromBase64Url, toBase64Url } from "./codec.js";
import { tag } from "./domain.js";
import { ApiError, CertificateError, RefusalError } from "./errors.js";
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
    return api.post("/v1/enrolments", "enrolment", renewal ? { ...signed, renewal } : signed, { signal });
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
 * {api, terms, membership, identity}: from the store, or newly enrolled with an invitation. Before it enrols, the client
 * reads the invitation's task and refuses what it does not agree to.
 */
export async function join(api, store, { invitation, organiser, issue, policy, signal }) {
  const identity = (await store.get("identity")) ?? (await newIdentity());
  await store.put("identity", identity);
  let membership = await store.get("membership");
  if (!membership || membership.url !== baseUrl(api.url)) {
    const { json: offered } = await api.get("/v1/enrolments/task", "task of the invitation", { signal, token: invitation });
    const { bound: agreed } = readTask(offered, { organiser, policy });
    const certificate = await obtainCertificate(identity, organiser, issue);
    const { task_id: task, client_id: client, token, role } = await enrol(api, identity, invitation, certificate, signal);
    if (task !== offered.task_id || role !== "member") throw new RefusalError("the server enrolled this client in another task");
    membership = { url: api.url, task, client, token, agreed };
    await store.put("membership", membership);
  }
  const own = api.enrolled(membership.client, identity.signing, membership.token);
  const { json: task } = await own.get(`/v1/tasks/${membership.task}`, "task", { signal });
  const terms = readTask(task, { organiser, policy });
  if (terms.bound !== membership.agreed) throw new RefusalError("the task's terms changed after this client joined");
  await store.put("task", task);
  return { api: own, terms, membership, identity };
}

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
