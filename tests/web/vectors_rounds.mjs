/** Vectors of masked and one-shot rounds. */

import * as fixed from "../../examples/web/hushrec/fixed_point.js";
import * as keys from "../../examples/web/hushrec/keys.js";
import * as masked from "../../examples/web/hushrec/masked.js";
import * as hood from "../../examples/web/hushrec/neighbourhood.js";
import * as oneshot from "../../examples/web/hushrec/oneshot.js";
import * as ring from "../../examples/web/hushrec/ring.js";
import * as shamir from "../../examples/web/hushrec/shamir.js";
import { concat, fromHex, toHex } from "../../examples/web/hushrec/codec.js";
import { digest, sha256 } from "../../examples/web/hushrec/domain.js";
import { sealingKey } from "../../examples/web/hushrec/sealing.js";
import { refused, same } from "./checks.mjs";

export const RUNNERS = {
  async "shamir.json"({ prime, split, combine }) {
    same(String(shamir.PRIME), prime);
    for (const { secret, threshold, shares } of split) {
      const draws = [];
      for (let i = 0; i < 64; i++) {
        draws.push(concat(await digest("vector coefficients", i, 0), await digest("vector coefficients", i, 1)));
      }
      const found = shamir.split(fromHex(secret), threshold, Object.keys(shares).map(Number), (n) => draws.shift().slice(0, n));
      same(found.map(toHex), Object.values(shares));
    }
    for (const { threshold, shares, secret, error } of combine) {
      const given = Object.entries(shares).map(([point, share]) => [Number(point), fromHex(share)]);
      if (error) await refused(error, () => shamir.combine(given, threshold));
      else same(toHex(shamir.combine(given, threshold)), secret);
    }
  },

  async "masks.json"({ secret, context, streams, packed, refused: wrong, graphs, neighbourhoods }) {
    for (const { bits, start, elements } of streams) {
      same((await masked.stream(fromHex(secret), fromHex(context), bits, 5, BigInt(start))).map(String), elements);
    }
    for (const { bits, elements, body } of packed) {
      same(toHex(fixed.packElements(elements.map(BigInt), bits)), body);
      same(fixed.unpackElements(fromHex(body), bits, elements.length).map(String), elements);
    }
    for (const { bits, count, body, error, what } of wrong) {
      if (body) await refused(error, () => fixed.unpackElements(fromHex(body), bits, count), what);
    }
    for (const { clients, degree, seed, neighbours } of graphs) {
      same(await masked.neighbours(clients, degree, fromHex(seed)), neighbours);
    }
    for (const { clients, corrupt, dropout, mode, sigma, eta, degree, threshold } of neighbourhoods) {
      same(hood.chooseNeighbourhood(clients, corrupt, dropout, mode, sigma, eta), { degree, threshold });
    }
  },

  async "masked_keys.json"({ context, clients, roster, pair_secret: pair, sealed, secrets }) {
    const bound = await masked.binding({ ...context, seed: fromHex(context.seed), modelDigest: fromHex(context.model_digest) });
    same(toHex(bound), context.binding);
    const body = fromHex(roster.body);
    const entries = masked.decodeRoster(body, context.cohort);
    const summary = await masked.rosterDigest(bound, roster.degree, roster.threshold, context.mode, body);
    same(toHex(summary), roster.digest);
    for (const [place, one] of clients.entries()) {
      const advertisement = fromHex(one.advertisement);
      same([entries[place].id, toHex(entries[place].name)], [one.id, toHex(await masked.advertisementName(advertisement))]);
      await masked.checkAdvertisement(bound, one.id, entries[place].identityKey, advertisement);
      const [mask, sealing] = await Promise.all([one.mask_secret, one.sealing_secret].map(fromHex).map(sealingKey));
      same(toHex(concat(mask.key, sealing.key)), one.advertisement.slice(0, 2 * 2432));
    }
    const handed = masked.splitHandout(fromHex(roster.handout), roster.degree);
    same(toHex(handed.roster), roster.body);
    await masked.addAdvertisements(entries, [0, 1, 2, 3], [fromHex(clients[0].advertisement), ...handed.advertisements]);
    const others = handed.advertisements.toReversed();
    await refused("RefusalError", () => masked.addAdvertisements(entries, [1, 2, 3], others), "keys in another order");
    const first = entries[0];
    for (const [round, id] of [[8, "ann"], [7, "bob"]]) {
      const other = await masked.binding({ ...context, round, seed: fromHex(context.seed), modelDigest: fromHex(context.model_digest) });
      await refused("ContributionError", () => masked.checkAdvertisement(other, id, first.identityKey, first.advertisement));
    }
    for (const wrong of [body.slice(0, -1), concat(body, new Uint8Array(1))]) {
      await refused("CodecError", () => masked.decodeRoster(wrong, context.cohort));
    }
    same(toHex(await masked.pairSecret(fromHex(clients[0].mask_secret), summary, 0, 1)), pair.secret);
    same(toHex(await masked.maskContext(bound, summary, fromHex(pair.sharers))), pair.context);
    for (const { sender, receiver, sealed: slot, shares } of sealed) {
      const peer = masked.sealingKeyOf(entries[sender]);
      const secret = await sealingKey(fromHex(clients[receiver].sealing_secret));
      const opened = await masked.openPair(fromHex(slot), secret, peer, summary, sender, receiver);
      same(opened && toHex(opened), shares);
      if (!opened) continue;
      const [to, from] = [masked.sealingKeyOf(entries[receiver]), await sealingKey(fromHex(clients[sender].sealing_secret))];
      same(toHex(await masked.sealPair(opened, from, to, summary, sender, receiver, coins)), slot);
    }
    for (const { sender, receiver, sealed: slot, secret } of secrets) {
      const own = await sealingKey(fromHex(clients[receiver].mask_secret));
      const opened = await masked.openPairSecret(fromHex(slot), own, masked.maskKey(entries[sender]), summary, sender, receiver);
      same(opened && toHex(opened), secret);
      if (!opened) continue;
      const from = await sealingKey(fromHex(clients[sender].mask_secret));
      const to = masked.maskKey(entries[receiver]);
      same(toHex(await masked.sealPairSecret(from, to, summary, sender, receiver, coins)), slot);
    }
  },

  async "masked_round.json"({ rounds }) {
    for (const { bits, secrets, roster, roster_digest, context, elements, contributions, correction, sum, replies } of rounds) {
      const entries = masked.decodeRoster(fromHex(roster), 4);
      const total = correction.map(BigInt);
      for (const [own, { id, seed, mask_secret }] of secrets.entries()) {
        const shares = [];
        for (const [holder, other] of secrets.entries()) {
          if (holder === own || !replies[other.id]) continue;
          const slot = own - Number(own > holder);
          shares.push([holder + 1, fromHex(replies[other.id]).slice(33 * slot, 33 * slot + 33)]);
        }
        same(toHex(shamir.combine(shares, 2)), contributions[id] ? seed : mask_secret);
        if (!contributions[id]) continue;
        const masks = [[fromHex(seed), 1]];
        for (const other of entries.keys()) {
          if (other === own) continue;
          const [owner, peer] = [Math.min(own, other), Math.max(own, other)];
          const ofOwner = fromHex(secrets[owner].mask_secret);
          masks.push([await masked.pairSecret(ofOwner, fromHex(roster_digest), owner, peer), own < other ? 1 : -1]);
        }
        const hidden = await masked.addMasks(elements[id], masks, fromHex(context), bits);
        same(toHex(fixed.packElements(hidden, bits)), contributions[id]);
        hidden.forEach((element, i) => (total[i] += element));
      }
      same(total.map((element) => String(BigInt.asUintN(bits, element))), sum.map(String));
    }
  },

  async "oneshot_ring.json"({ primes, gaussian, binding, products }) {
    for (const [degree, listed] of Object.entries(primes)) same(ring.primesBelow(Number(degree), listed.length), listed);
    const table = gaussian.table.map(BigInt);
    same(await oneshot.gaussian(12, () => fromHex(gaussian.words), table), gaussian.samples);
    for (const one of products) {
      const [drawn, results] = [[], []];
      for (const [number, prime] of one.primes.entries()) {
        const whole = ring.publicPolynomials(fromHex(binding), one.degree, prime, number, one.polynomials);
        drawn.push(whole);
        same([0, 1].map((k) => whole.slice(k * one.degree, k * one.degree + 3)), one.first[number]);
        const full = ring.multiply(whole.slice(0, one.degree), one.secret, prime);
        const last = ring.multiply(whole.slice(one.degree), one.secret, prime).slice(0, 5);
        same([full.slice(0, 3), last], [one.products_first[number], one.products_last[number]]);
        results.push([...full, ...last]);
      }
      same(toHex(await sha256(oneshot.residueBytes(drawn.flat()))), one.sha256);
      same(toHex(await sha256(oneshot.residueBytes(results.flat()))), one.products_sha256);
    }
  },

  async "oneshot_round.json"({ rounds }, table) {
    for (const one of rounds) {
      const context = { ...one, modelDigest: fromHex(one.model_digest) };
      const bound = await oneshot.binding(context);
      same(toHex(bound), one.binding);
      const { degree, primes, per } = ring.chooseRing(one.bits, one.length, one.cohort, one.committee);
      same([degree, primes, per], [one.degree, one.primes, one.per]);
      const members = one.members.map(({ key }) => oneshot.decodeKey(fromHex(key)));
      const committee = await oneshot.makeCommittee(context, bound, members, () => true);
      same(toHex(committee.digest), one.committee_digest);
      await refused("CodecError", () => oneshot.checkKey(one.task, 8, members[0]));
      await refused("RefusalError", () => oneshot.makeCommittee(context, bound, members.slice(1), () => true));
      await refused("RefusalError", () => oneshot.makeCommittee(context, bound, members, () => false));
      let first = null;
      for (const { id, label, steps, ...expected } of one.clients) {
        const identity = await digest("vector oneshot identity", id);
        const upload = await oneshot.contribute({ context, bound, committee, client: id, identity, steps, table, random: drawn(label), coins });
        same(toHex(upload.ephemeralKey), expected.ephemeral_key);
        same(toHex(upload.contribution), expected.contribution);
        same(await Promise.all(upload.sealed.map(async (share) => toHex(await sha256(share)))), expected.sealed_sha256);
        same(toHex(upload.signature), expected.signature);
        first ??= upload;
      }
      const secretOf = async (label) => sealingKey(await drawn(label)(32));
      const open = async (sealed, member, client) =>
        oneshot.openShare(sealed, await secretOf(member), committee, member, client, first.ephemeralKey, degree, primes[0]);
      same((await open(first.sealed[0], "m0", "ann")).length, degree);
      const flipped = Uint8Array.from(first.sealed[0], (byte, i) => (i ? byte : byte ^ 1));
      for (const { member, client, sealed } of one.not_opened) {
        same(await open(sealed.endsWith("changed") ? flipped : first.sealed[0], member, client), null, sealed);
      }
    }
  },
};

/** The coins of encapsulations to a key. */
const coins = (key) => digest("vector coins", key);

/** random(n) of a party: each draw begins a block, blocks are counted over all draws. */
function drawn(label) {
  let number = 0;
  return async (length) => {
    const blocks = [];
    while (32 * blocks.length < length) blocks.push(await digest("vector oneshot", label, number++));
    return concat(...blocks).slice(0, length);
  };
}
