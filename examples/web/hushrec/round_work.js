/** What a client does in a round of any mechanism: check members, train, deliver its contribution. */

import { RECEIPT } from "./answers.js";
import { fromBase64Url, toHex } from "./codec.js";
import { sha256 } from "./domain.js";
import { AbstainedError, ApiError, CertificateError, CodecError, ParameterError, RefusalError } from "./errors.js";
import { checkCertificate, decodeCertificate } from "./identities.js";
import { blocksOf, projection } from "./recipes.js";
import { stepsOf } from "./terms.js";
import { randomUser, settingsOf, train } from "./training.js";

const CONTRIBUTION = "application/vnd.hushrec.contribution";

/** Secret random bytes; WebCrypto gives at most 65536 at a time. */
export function randomBytes(count) {
  const bytes = new Uint8Array(count);
  for (let at = 0; at < count; at += 65536) crypto.getRandomValues(bytes.subarray(at, at + 65536));
  return bytes;
}

/** Returns whether the organiser certified a member's keys for one of the roles, and has not revoked it. */
export function membershipCheck({ terms: { organiser }, revoked }, roles) {
  const key = fromBase64Url(organiser.key);
  return async ({ identityKey, mailboxKey, certificate }) => {
    try {
      const { role, serial } = decodeCertificate(certificate);
      if (!roles.includes(role) || revoked.has(serial)) return false;
      await checkCertificate(key, organiser.scope, identityKey, mailboxKey, certificate, Date.now() / 1000);
      return true;
    } catch (error) {
      if (error instanceof CertificateError || error instanceof CodecError) return false;
      throw error;
    }
  };
}

/**
 * Throws `AbstainedError` if this client must not contribute to the round; called before it sends anything. A vector of
 * zeros would count towards the task's `min_clients`, and the sum would be over fewer clients than that. A client is
 * counted in one sum, and again only if the round of that sum failed. modelRound: round of the newest model.
 */
export async function requireData({ store, terms }, { step }, modelRound, liked) {
  if (!liked.length) throw new AbstainedError("this client has no items, so it has nothing to add");
  if (step > terms.counting) return;
  const counted = (await store.get("own"))?.counted ?? 0;
  if (![0, step].includes(counted)) throw new AbstainedError(`this client's items are in sum ${counted}, and it is counted once`);
  if (modelRound > 0) throw new AbstainedError(`the server repeats sum ${step}, which it has released before`);
}

/** This client's values along the route, and what it keeps from now on: its user factor, and where it was counted. */
async function trainOrCount(terms, round, state, own, liked, uniform) {
  if (round.step <= terms.counting) {
    const values = new Array(terms.parameters.items).fill(0);
    liked.forEach((item) => (values[item] = 1));
    return { values, kept: { ...own, counted: round.step }, loss: null, samples: liked.length };
  }
  const { rank, dim } = terms.parameters;
  const b = terms.recipe === "colr" ? await projection(round.seed, rank, dim) : null;
  const settings = settingsOf(terms.parameters);
  try {
    const trained = train({ state, projection: b, user: own.user, liked, settings, uniform });
    const [values] = blocksOf(terms.recipe, terms.parameters, trained, terms.width);
    requireUsable(terms, trained, values);
    return { values, kept: { ...own, user: trained.user }, loss: trained.loss, samples: trained.samples };
  } catch (error) {
    // The server may have made the model up so that clients with some item fail: silence would tell who has it.
    const zeros = new Array(round.plan.length).fill(0);
    return { values: zeros, kept: own, loss: null, samples: 0, failure: error.message };
  }
}

/** Throws `ParameterError` for a result of training whose values are the clip, and not training. */
function requireUsable({ parameters: { clip }, policy }, trained, values) {
  const clipped = trained.rows.flat().filter((x) => Math.abs(x) > clip).length;
  const used = values.filter((x) => x !== 0).length;
  if (clipped > policy.maxClipShare * used) throw new ParameterError(`${clipped} values exceed the task's clip: training diverged, or the clip is too small`);
}

/**
 * Trains and returns {steps, loss, samples, failure, milliseconds}. steps: the contribution as signed whole numbers.
 * failure: why training failed, null if it did not; the contribution is zeros then, which look like any other. What the
 * client keeps is stored before anything is sent: a client whose page closes then must not be counted twice.
 */
export async function localWork({ store, terms, uniform }, round, state, liked) {
  const started = performance.now();
  const own = (await store.get("own")) ?? { user: randomUser(terms.parameters.dim, uniform), counted: 0 };
  const { values, kept, loss, samples, failure = null } = await trainOrCount(terms, round, state, own, liked, uniform);
  const steps = stepsOf(round.plan, values);
  await store.put("own", kept);
  return { steps, loss, samples, failure, milliseconds: performance.now() - started };
}

/**
 * Sends a contribution: the same bytes after a lost answer or a closed page, never a second one. chain: of the model that
 * it was made from. If the server has another chain, the model in the store is of no use.
 */
export async function deliver({ api, store, terms, membership }, { round, body, chain }, tell, signal) {
  tell("sending");
  const started = performance.now();
  const path = `/v1/tasks/${terms.id}/rounds/${round}/contributions/${membership.client}`;
  const statements = { "aggregate-chain": toHex(chain) };
  const receipt = await api.put(path, "contribution", body, CONTRIBUTION, { form: RECEIPT, signal, statements }).catch(async (error) => {
    if (error instanceof ApiError && error.slug === "aggregate-mismatch") await store.put("model", null);
    throw error;
  });
  const digest = toHex(await sha256(body));
  if (receipt.digest !== digest || receipt.bytes !== body.length) throw new RefusalError("the receipt is for another body");
  const history = (await store.get("contributions")) ?? [];
  await store.put("contributions", [...history.filter((one) => one.round !== round), { round, digest, bytes: body.length }]);
  return { round, bytes: body.length, digest, uploadMilliseconds: performance.now() - started };
}
