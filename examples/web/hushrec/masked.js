/** Masked sums: keys, roster, shares, masks and the neighbour graph (docs/wire/masked.md). */

import { concat, equal, exact, Reader } from "./codec.js";
import { deriveKey, digest, keystream, tag } from "./domain.js";
import { CodecError, ContributionError, ParameterError, RefusalError } from "./errors.js";
import { hasDistinctSubjects } from "./identities.js";
import { sign, verify } from "./keys.js";
import { permutation } from "./random.js";
import { agreementKey, seal, SEALED_OVERHEAD, SEALING_KEY_BYTES, unseal } from "./sealing.js";

const KEYS = 2 * SEALING_KEY_BYTES;
export const ADVERTISEMENT_BYTES = KEYS + 32 + 64;
export const SLOT_BYTES = 2 * 33 + SEALED_OVERHEAD + 2 * 16;
export const PAIR_BYTES = 32 + SEALED_OVERHEAD + 16;

export const maskKey = ({ advertisement }) => advertisement.slice(0, SEALING_KEY_BYTES);
export const sealingKeyOf = ({ advertisement }) => advertisement.slice(SEALING_KEY_BYTES, KEYS);

/** context: {task, round, seed, modelDigest, cohort, bits, length}. */
export const binding = ({ task, round, seed, modelDigest, cohort, bits, length }) =>
  digest("masked round", task, round, seed, modelDigest, cohort, bits, length);

const advertised = (bound, id, advertisement) => {
  const parts = [maskKey({ advertisement }), sealingKeyOf({ advertisement }), advertisement.slice(KEYS, KEYS + 32)];
  return tag("masked advertisement", bound, id, ...parts);
};

/** secrets: {identity, mask, sealing, seed}; mask and sealing are sealing keys. */
export async function advertise(bound, id, { identity, mask, sealing, seed }) {
  const keys = concat(mask.key, sealing.key, await digest("masked seed commitment", seed));
  return concat(keys, await sign(identity, advertised(bound, id, keys)));
}

export async function checkAdvertisement(bound, id, identityKey, body) {
  if (body.length !== ADVERTISEMENT_BYTES) throw new ContributionError("an advertisement of another length");
  if (!(await verify(identityKey, body.slice(KEYS + 32), advertised(bound, id, body)))) {
    throw new ContributionError("the advertisement is not signed by this client for this round and model");
  }
}

/** The digest that stands for an advertisement in the roster. */
export const advertisementName = (advertisement) => digest("masked advertisement name", advertisement);

/** The number of members of a roster, or of what a client is handed out. */
export function rosterSize(body, cohort) {
  const count = new Reader(body).number(4);
  if (count < 3 || count > cohort) throw new CodecError("a roster of another size");
  return count;
}

/** {roster, advertisements} of what a client is handed out: the roster, then the advertisements of `degree` neighbours. */
export function splitHandout(body, degree) {
  const edge = body.length - degree * ADVERTISEMENT_BYTES;
  if (edge < 0) throw new CodecError("a roster is shorter than the advertisements behind it");
  const at = (i) => body.slice(edge + i * ADVERTISEMENT_BYTES, edge + (i + 1) * ADVERTISEMENT_BYTES);
  return { roster: body.slice(0, edge), advertisements: Array.from({ length: degree }, (_, i) => at(i)) };
}

/** Entries of a roster: {id, identityKey, mailboxKey, certificate, name}. */
export function decodeRoster(body, cohort) {
  const reader = new Reader(body);
  reader.number(4);
  const count = rosterSize(body, cohort);
  const entries = Array.from({ length: count }, () => {
    const length = reader.number(1);
    if (length < 1 || length > 64) throw new CodecError("an id has 1 to 64 bytes");
    return {
      id: new TextDecoder("utf-8", { fatal: true }).decode(reader.fixed(length)),
      identityKey: reader.fixed(32),
      mailboxKey: reader.fixed(32),
      certificate: reader.fixed(81),
      name: reader.fixed(32),
    };
  });
  reader.finish();
  entries.forEach((entry, place) => {
    if (place && !(entries[place - 1].id < entry.id)) throw new CodecError("members must be in ascending order");
  });
  for (const kind of ["identityKey", "name"]) {
    if (new Set(entries.map((entry) => String(entry[kind]))).size < count) throw new CodecError("a key occurs twice in the roster");
  }
  if (!hasDistinctSubjects(entries)) throw new CodecError("a subject occurs twice in the roster");
  return entries;
}

/** Puts advertisements into the entries at these places; `RefusalError` unless they have the names in the roster. */
export async function addAdvertisements(entries, places, advertisements) {
  for (const [i, place] of places.entries()) {
    if (!equal(await advertisementName(advertisements[i]), entries[place].name)) {
      throw new RefusalError(`the keys of member ${place} are not those that the roster names`);
    }
    entries[place].advertisement = advertisements[i];
  }
  const known = entries.filter((entry) => entry.advertisement);
  const keys = known.flatMap((entry) => [maskKey(entry), sealingKeyOf(entry)].map(agreementKey));
  const all = [...keys, ...entries.map((entry) => entry.identityKey)].map(String);
  if (new Set(all).size < all.length) throw new RefusalError("a key occurs twice in the roster");
}

export const rosterDigest = (bound, degree, threshold, mode, body) =>
  digest("masked roster", bound, degree, threshold, mode, body);

/** The neighbours (places, ascending) of every member, within its group. */
export async function groupNeighbours(members, degree, seed) {
  const within = await neighbours(members[0].length, degree, seed);
  const graph = [];
  for (const places of members) places.forEach((place, i) => (graph[place] = within[i].map((other) => places[other])));
  return graph;
}

/** The neighbours (places, ascending) of every member. */
export async function neighbours(clients, degree, seed) {
  const places = Array.from({ length: clients }, (_, place) => place);
  if (degree === clients - 1) return places.map((own) => places.filter((place) => place !== own));
  if (degree < 2 || degree >= clients || degree % 2) throw new ParameterError("the degree must be even");
  const circle = await permutation(seed, "masked sum graph", clients);
  const graph = [];
  circle.forEach((own, at) => {
    const steps = Array.from({ length: degree / 2 }, (_, step) => step + 1);
    const beside = steps.flatMap((step) => [circle[(at + step) % clients], circle[(at - step + clients) % clients]]);
    graph[own] = beside.sort((a, b) => a - b);
  });
  return graph;
}

export const graphSeed = (roundSeed, roster) => digest("masked graph", roundSeed, roster);

/** Whether place `index` is in an encoded set. */
export const inSet = (set, index) => Boolean((set[index >> 3] >> (index & 7)) & 1);

const commitment = async (roster, owner, holder, kind, share) =>
  (await digest("masked share commitment", roster, owner, holder, kind, share)).slice(0, 16);

const committed = async (roster, owner, holder, pair) =>
  concat(
    await commitment(roster, owner, holder, 0, pair.slice(0, 33)),
    await commitment(roster, owner, holder, 1, pair.slice(33)),
  );

/** pair: the shares of the seed and of the mask key (66 bytes). own: the sender's sealing key; peer: the receiver's. */
export async function sealPair(pair, own, peer, roster, sender, receiver, coins) {
  const sealed = await seal(senderOf(own), peer, pair, coins, "masked share", roster, sender, receiver);
  return concat(sealed, await committed(roster, sender, receiver, pair));
}

const senderOf = ({ agreement, key }) => ({ secret: agreement, key: agreementKey(key) });

/** The pair of shares, or null if it does not open or does not match its commitments. */
export async function openPair(slot, own, peer, roster, sender, receiver) {
  exact(slot, SLOT_BYTES, "a slot of shares");
  const pair = await unseal(own, agreementKey(peer), slot.slice(0, -32), "masked share", roster, sender, receiver);
  return pair && equal(slot.slice(-32), await committed(roster, sender, receiver, pair)) ? pair : null;
}

/** The secret of the mask of two members; seed: of the mask key of `owner`, the earlier one. */
export const pairSecret = (seed, roster, owner, peer) => deriveKey(seed, 32, "masked pair", roster, owner, peer);

const pairCommitment = async (roster, sender, receiver, secret) =>
  (await digest("masked pair commitment", roster, sender, receiver, secret)).slice(0, 16);

/** The secret of the mask with a later member, sealed. own: the sender's mask key; peer: the receiver's. */
export async function sealPairSecret(own, peer, roster, sender, receiver, coins) {
  const secret = await pairSecret(own.seed, roster, sender, receiver);
  const sealed = await seal(senderOf(own), peer, secret, coins, "masked pair secret", roster, sender, receiver);
  return concat(sealed, await pairCommitment(roster, sender, receiver, secret));
}

/** The secret that an earlier member sealed, or null if it does not open or does not match its commitment. */
export async function openPairSecret(slot, own, peer, roster, sender, receiver) {
  exact(slot, PAIR_BYTES, "a slot of a pair's secret");
  const parts = ["masked pair secret", roster, sender, receiver];
  const secret = await unseal(own, agreementKey(peer), slot.slice(0, -16), ...parts);
  const matches = secret && equal(slot.slice(-16), await pairCommitment(roster, sender, receiver, secret));
  return matches && secret.length === 32 ? secret : null;
}

export const maskContext = (bound, roster, sharers) => digest("masked stream", bound, roster, sharers);

/** `count` elements (bigints) of a mask stream from element `start` on. */
export async function stream(secret, context, bits, count, start = 0n) {
  const width = bits === 16 ? 2 : bits <= 32 ? 4 : 8;
  const key = await deriveKey(secret, 16, "masked sum mask", context);
  const reader = new Reader(await keystream(key, BigInt(start) * BigInt(width), count * width));
  return Array.from({ length: count }, () => reader.big(width));
}

/** elements plus masks modulo 2^bits; masks: [secret, sign] pairs. */
export async function addMasks(elements, masks, context, bits) {
  let sums = elements.map(BigInt);
  for (const [secret, sign] of masks) {
    const drawn = await stream(secret, context, bits, elements.length);
    sums = sums.map((sum, index) => BigInt.asUintN(bits, sum + BigInt(sign) * drawn[index]));
  }
  return sums;
}

export const signedSurvivors = (bound, roster, sharers, survivors) =>
  tag("masked survivors", bound, roster, sharers, survivors);
