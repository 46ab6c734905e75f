/** The model on the device: the server's snapshots, whose digest every mask of a round is bound to. */

import { fromHex } from "./codec.js";
import { sha256 } from "./domain.js";
import { RefusalError } from "./errors.js";
import { decodeState, initialFactors } from "./recipes.js";

const SNAPSHOT_WAIT = 20;

const stateBytes = ({ parameters: p }) => 4 * p.items * p.dim + (p.item_bias === "counts" ? 4 * (p.items + 1) : 0);

async function decoded(terms, body) {
  const { items, dim, item_bias: bias } = terms.parameters;
  return decodeState(body, items, dim, bias === "counts");
}

async function initialState({ seed, parameters: { items, dim, item_bias: bias } }) {
  return { factors: await initialFactors(seed, items, dim), counts: bias === "counts" ? new Array(items).fill(0) : null, clients: 0 };
}

/** Number of the newest complete round below `limit`; 0 without one. */
async function newestComplete(api, terms, known, limit, signal) {
  let newest = known;
  for (let more = true; more; ) {
    const path = `/v1/tasks/${terms.id}/rounds?state=complete&after=${newest}`;
    const { json: page } = await api.get(path, "list of rounds", { signal });
    const found = page.rounds.map((round) => round.number).filter((number) => number < limit);
    more = page.more && found.length === page.rounds.length;
    if (found.length) newest = Math.max(newest, ...found);
    else more = false;
  }
  return newest;
}

/**
 * {round, state, digest} after the newest complete round below `limit`: from the store, the seed, or the server.
 * digest: SHA-256 of the snapshot, null for round 0. The newest one is kept in the store.
 */
export async function fetchModel(api, store, terms, limit, signal) {
  const kept = await store.get("model");
  const known = kept && kept.round < limit ? kept.round : 0;
  const wanted = await newestComplete(api, terms, known, limit, signal);
  if (!wanted) return { round: 0, state: await initialState(terms), digest: null };
  if (kept?.round === wanted) return { round: wanted, state: await decoded(terms, kept.body), digest: await sha256(kept.body) };
  const path = `/v1/tasks/${terms.id}/snapshots`;
  const latest = await api.getOrNull(`${path}/latest?at_least=${wanted}`, "name of the model", { signal, wait: SNAPSHOT_WAIT });
  if (latest?.round !== wanted) throw new RefusalError(`the model of round ${wanted} is not the newest one of the server`);
  if (latest.bytes !== stateBytes(terms)) throw new RefusalError("the model has another length than the task's");
  const digest = fromHex(latest.digest);
  const body = await api.bytes(`${path}/${wanted}`, "model", { signal, most: latest.bytes, digest });
  const state = await decoded(terms, body);
  await store.put("model", { round: wanted, body });
  return { round: wanted, state, digest };
}

/** The newest model on the device without a request; null before the first. */
export async function keptModel(store, terms) {
  const kept = await store.get("model");
  return kept ? { round: kept.round, state: await decoded(terms, kept.body) } : null;
}
