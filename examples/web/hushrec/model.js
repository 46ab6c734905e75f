/** The model on the device: computed from released sums, and compared with the server's, whose digest every mask of a round is bound to. */

import { ATTESTATIONS, ROUNDS } from "./answers.js";
import { equal, fromBase64Url, fromHex, toHex } from "./codec.js";
import { sha256 } from "./domain.js";
import { CertificateError, CodecError, FalseModelError, NotAttestedError, RefusalError, SignatureError } from "./errors.js";
import { aggregateBytes, openedSum, openGroups } from "./groups.js";
import { checkCertificate, decodeCertificate, firstChain, nextChain, statedChain } from "./identities.js";
import { requireReachable } from "./reachable.js";
import { absorb, absorbCounts, decodeState, encodeState, initialFactors, roundSeed } from "./recipes.js";

const TOLERANCE = 1e-5;
const DIGEST = /^[0-9a-f]{64}$/;

const stateBytes = ({ parameters: p }) => 4 * p.items * p.dim + (p.item_bias === "counts" ? 4 * (p.items + 1) : 0);

function decoded(terms, body) {
  const { items, dim, item_bias: bias } = terms.parameters;
  return decodeState(body, items, dim, bias === "counts");
}

async function initialState({ seed, parameters: { items, dim, item_bias: bias } }) {
  return { factors: await initialFactors(seed, items, dim), counts: bias === "counts" ? new Array(items).fill(0) : null, clients: 0 };
}

/** A state after `round`; `FalseModelError` if no sums of the task make it. */
function reachable(terms, state, round) {
  try {
    requireReachable(terms, state, round);
    return state;
  } catch (error) {
    throw error instanceof CodecError ? new FalseModelError(error.message) : error;
  }
}

/** The views of the complete rounds after `known` and below `limit`. */
async function completedRounds(api, { id, task: { schedule } }, known, limit, signal) {
  const found = [];
  for (let more = true; more; ) {
    const path = `/v1/tasks/${id}/rounds?state=complete&after=${found.at(-1)?.number ?? known}`;
    const { json: page } = await api.get(path, "list of rounds", { form: ROUNDS, signal });
    const views = page.rounds.filter(({ number }) => number < limit);
    for (const view of views) {
      const isStated = [view.aggregate_digest, view.state_digest, view.aggregate_chain].every((digest) => DIGEST.test(digest ?? ""));
      const isAllowed = view.survivors >= schedule.min_clients && view.survivors <= schedule.cohort_size;
      const isInOrder = view.number > (found.at(-1)?.number ?? known) && view.step >= 1 && view.step <= view.number;
      if (!isStated || !isAllowed || !isInOrder) throw new RefusalError(`round ${view.number} is not as a complete round must be`);
      found.push(view);
    }
    more = page.more && views.length > 0 && views.length === page.rounds.length;
  }
  return found;
}

/** The chain after the complete round `view`, from the one before it. */
const chainAfter = (before, { number, aggregate_digest: aggregate, state_digest: state }) =>
  nextChain(before, number, fromHex(aggregate), fromHex(state));

/** The sum of a round; `FalseModelError` for values that no sum of so many contributions has. */
function sumOf(plan, body, survivors) {
  try {
    return (plan.groups > 1 ? openGroups : openedSum)(plan, body, survivors);
  } catch (error) {
    throw error instanceof CodecError ? new FalseModelError(error.message) : error;
  }
}

/** Whether two states are equal but for rounding: counts exactly, factors within 1e-5 of the largest one. */
export function sameState(own, theirs) {
  const [mine, other] = [own.factors.flat(), theirs.factors.flat()];
  const largest = mine.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
  const isClose = mine.every((value, i) => Math.abs(value - other[i]) <= TOLERANCE * largest);
  return isClose && own.clients === theirs.clients && String(own.counts) === String(theirs.counts);
}

/**
 * The bytes of the model after the complete round `view`: computed from the model before it and the released sum, and
 * the server's where rounding differs. `FalseModelError` when the server's does not follow from the sum.
 */
async function bytesAfter({ api, terms }, before, view, signal) {
  const { number, step, survivors, aggregate_digest: aggregateDigest, state_digest: stateDigest } = view;
  const plan = terms.planAt(step);
  const path = `/v1/tasks/${terms.id}`;
  const most = aggregateBytes(plan);
  const sum = await api.bytes(`${path}/rounds/${number}/aggregate`, "sum of the round", { signal, most, digest: fromHex(aggregateDigest) });
  const total = sumOf(plan, sum, survivors);
  const { recipe, parameters, seed } = terms;
  const own =
    step <= terms.counting
      ? absorbCounts(before, total, survivors)
      : await absorb(recipe, parameters, before, total, survivors, await roundSeed(seed, number));
  const encoded = encodeState(reachable(terms, own, number));
  if (toHex(await sha256(encoded)) === stateDigest) return encoded;
  const body = await api.bytes(`${path}/snapshots/${number}`, "model", { signal, most: stateBytes(terms), digest: fromHex(stateDigest) });
  if (sameState(decoded(terms, encoded), reachable(terms, decoded(terms, body), number))) return body;
  throw new FalseModelError(`the server lies about the model or is broken: that of round ${number} does not follow from the released sum`);
}

/** The chain that a certified member stated with its contribution to a round; null for a statement that does not count. */
async function chainOf({ terms: { id, organiser } }, one, round) {
  try {
    const [key, mailbox, certificate] = [one.identity_key, one.mailbox_key, one.certificate ?? ""].map(fromBase64Url);
    const { chain, created } = await statedChain(one, key, id, round);
    if (!["member", "holder"].includes(decodeCertificate(certificate).role)) return null;
    await checkCertificate(fromBase64Url(organiser.key), organiser.scope, key, mailbox, certificate, created);
    return chain;
  } catch (error) {
    if ([CertificateError, CodecError, SignatureError].some((kind) => error instanceof kind)) return null;
    throw error;
  }
}

/** Throws `NotAttestedError` unless `min_clients` members stated `chain` with their contributions to the round. */
async function requireAttested(client, chain, round, signal) {
  const { api, terms } = client;
  const needed = terms.task.schedule.min_clients;
  const same = new Set();
  let after = "";
  for (let more = true; more && same.size < needed; ) {
    const path = `/v1/tasks/${terms.id}/rounds/${round}/attestations?after=${after}`;
    const { json: page } = await api.get(path, "members' statements", { form: ATTESTATIONS, signal });
    for (const one of page.attestations) {
      const stated = await chainOf(client, one, round);
      if (stated && !equal(stated, chain)) throw new NotAttestedError(`members stated another model before round ${round} than the server gave this client`);
      if (stated) same.add(one.identity_key);
    }
    const last = page.attestations.at(-1)?.client_id ?? "";
    more = page.more && last > after;
    after = last;
  }
  if (same.size >= needed) return;
  throw new NotAttestedError(`${same.size} members have stated the model before round ${round}, and at least ${needed} must`);
}

/** The model after the complete round `view`, which the members of the next complete one have stated. */
async function attestedModel(client, view, next, signal) {
  const { api, terms } = client;
  const { number, aggregate_chain: before, state_digest: digest } = view;
  const path = `/v1/tasks/${terms.id}/snapshots/${number}`;
  const body = await api.bytes(path, "model", { signal, most: stateBytes(terms), digest: fromHex(digest) });
  const state = reachable(terms, decoded(terms, body), number);
  const chain = await chainAfter(fromHex(before), view);
  await requireAttested(client, chain, next.number, signal);
  return { state, chain };
}

/**
 * {round, state, digest, chain} after the newest complete round below `limit`. digest: SHA-256 of the state, null for
 * round 0. chain: what contributions to the next round state. The newest one is kept in the store. A client that missed
 * more than one round downloads the model before the last one, if enough members have stated it.
 */
export async function fetchModel(client, limit, signal) {
  const { api, store, terms } = client;
  const kept = await store.get("model");
  const known = kept && kept.round < limit ? kept : null;
  const missed = await completedRounds(api, terms, known?.round ?? 0, limit, signal);
  if (!missed.length && known) {
    const { round, body, chain } = known;
    return { round, state: decoded(terms, body), digest: await sha256(body), chain };
  }
  const first = { state: await initialState(terms), chain: await firstChain(terms.id) };
  if (!missed.length) return { round: 0, digest: null, ...first };
  const view = missed.at(-1);
  const own = known ? { state: decoded(terms, known.body), chain: known.chain } : first;
  const before = missed.length === 1 ? own : await attestedModel(client, missed.at(-2), view, signal);
  const body = await bytesAfter(client, before.state, view, signal);
  const chain = await chainAfter(before.chain, view);
  await store.put("model", { round: view.number, body, chain });
  return { round: view.number, state: decoded(terms, body), digest: fromHex(view.state_digest), chain };
}

/** The newest model on the device without a request; null before the first. */
export async function keptModel(store, terms) {
  const kept = await store.get("model");
  return kept ? { round: kept.round, state: decoded(terms, kept.body) } : null;
}
