/** Masked sums: keys, roster, shares, masks and the neighbour graph (docs/wire/masked.md). */

import { concat, equal, exact, Reader } from "./codec.js";
import { deriveKey, digest, keystream, open, seal, tag } from "./domain.js";
import { CodecError, ContributionError, ParameterError } from "./errors.js";
import { hasDistinctSubjects } from "./identities.js";
import { agree, publicOf, sign, verify } from "./keys.js";
import { permutation } from "./random.js";

export const ADVERTISEMENT_BYTES = 160;
export const SLOT_BYTES = 114;
const NONCE = new Uint8Array(12);

/** context: {task, round, seed, modelDigest, cohort, bits, length}. */
export const binding = ({ task, round, seed, modelDigest, cohort, bits, length }) =>
  digest("masked round", task, round, seed, modelDigest, cohort, bits, length);

const advertised = (bound, id, keys) =>
  tag("masked advertisement", bound, id, keys.slice(0, 32), keys.slice(32, 64), keys.slice(64, 96));

/** secrets: {identity, mask, sealing, seed}; mask is clamped (RFC 7748). */
export async function advertise(bound, id, { identity, mask, sealing, seed }) {
  const commitment = await digest("masked seed commitment", seed);
  const keys = concat(await publicOf("X25519", mask), await publicOf("X25519", sealing), commitment);
  return concat(keys, await sign(identity, advertised(bound, id, keys)));
}

export async function checkAdvertisement(bound, id, identityKey, body) {
  if (body.length !== ADVERTISEMENT_BYTES) throw new ContributionError("an advertisement of another length");
  if (!(await verify(identityKey, body.slice(96), advertised(bound, id, body)))) {
    throw new ContributionError("the advertisement is not signed by this client for this round and model");
  }
}

/** Entries of a roster: {id, identityKey, mailboxKey, certificate, advertisement}. */
export function decodeRoster(body, cohort) {
  const reader = new Reader(body);
  const count = reader.number(4);
  if (count < 3 || count > cohort) throw new CodecError("a roster of another size");
  const entries = Array.from({ length: count }, () => {
    const length = reader.number(1);
    if (length < 1 || length > 64) throw new CodecError("an id has 1 to 64 bytes");
    return {
      id: new TextDecoder("utf-8", { fatal: true }).decode(reader.fixed(length)),
      identityKey: reader.fixed(32),
      mailboxKey: reader.fixed(32),
      certificate: reader.fixed(81),
      advertisement: reader.fixed(ADVERTISEMENT_BYTES),
    };
  });
  reader.finish();
  entries.forEach((entry, place) => {
    if (place && !(entries[place - 1].id < entry.id)) throw new CodecError("members must be in ascending order");
  });
  const keys = entries.flatMap(({ advertisement }) => [advertisement.slice(0, 32), advertisement.slice(32, 64)]);
  if (new Set([...keys, ...entries.map((entry) => entry.identityKey)].map(String)).size < 3 * count) {
    throw new CodecError("a key occurs twice in the roster");
  }
  if (!hasDistinctSubjects(entries)) throw new CodecError("a subject occurs twice in the roster");
  return entries;
}

export const rosterDigest = (bound, degree, threshold, mode, body) =>
  digest("masked roster", bound, degree, threshold, mode, body);

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

/** pair: the shares of the seed and of the mask key (66 bytes). peer: the receiver's sealing key. */
export async function sealPair(pair, secret, peer, roster, sender, receiver) {
  const key = await deriveKey(await agree(secret, peer), 32, "masked share", roster, sender, receiver);
  const sealed = await seal(key, NONCE, pair, tag("masked share", roster, sender, receiver));
  return concat(sealed, await committed(roster, sender, receiver, pair));
}

/** The pair of shares, or null if it does not open or does not match its commitments. */
export async function openPair(slot, secret, peer, roster, sender, receiver) {
  exact(slot, SLOT_BYTES, "a slot of shares");
  const key = await deriveKey(await agree(secret, peer), 32, "masked share", roster, sender, receiver);
  const pair = await open(key, NONCE, slot.slice(0, 82), tag("masked share", roster, sender, receiver));
  return pair && equal(slot.slice(82), await committed(roster, sender, receiver, pair)) ? pair : null;
}

const before = (a, b) => {
  const at = a.findIndex((byte, index) => byte !== b[index]);
  return at >= 0 && a[at] < b[at];
};

export async function pairKey(secret, own, peer) {
  const ordered = before(own, peer) ? [own, peer] : [peer, own];
  return deriveKey(await agree(secret, peer), 32, "masked pair", ...ordered);
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
