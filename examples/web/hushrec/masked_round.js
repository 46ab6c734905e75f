/**
 * One client in one masked round (semi-malicious mode): a message in each of five stages, so the page has to stay open.
 * The state is in memory only: a client that restarts has left the round. See docs/wire/masked.md for the messages.
 */

import { modelDigest } from "./canonical.js";
import { concat, equal, exact, fromBase64Url, toHex } from "./codec.js";
import { AlreadySummedError, CodecError, ContributionError, RefusalError, RoundLostError, ThresholdError } from "./errors.js";
import { packElements } from "./fixed_point.js";
import { splitClients } from "./groups.js";
import { sign, verify } from "./keys.js";
import * as masked from "./masked.js";
import { fetchModel } from "./model.js";
import { chooseNeighbourhood, quorum } from "./neighbourhood.js";
import { deliver, localWork, membershipCheck, randomBytes, requireData } from "./round_work.js";
import { SHARE_BYTES, split } from "./shamir.js";
import { sealingKey } from "./sealing.js";
import { readRound } from "./terms.js";

const STAGES = ["advertising", "sharing", "collecting", "confirming", "unmasking"];
const MOST_BAD_SHARES = 1000;
/** Of an entry of the roster, and of the keys of a neighbour. */
const LONGEST_ENTRY = 1 + 64 + 32 + 32 + 81 + 32 + masked.ADVERTISEMENT_BYTES;
const MEDIA = { advertise: "advertisement", share: "shares", confirm: "confirmation", unmask: "reply" };

/** The places in a set of `count`; `CodecError` for padding that is not zero. */
function places(body, count) {
  exact(body, Math.ceil(count / 8), "a set");
  const found = Array.from({ length: 8 * body.length }, (_, place) => place).filter((place) => masked.inSet(body, place));
  if (found.some((place) => place >= count)) throw new CodecError("the padding of a set is not zero");
  return new Set(found);
}

const slots = (body, length) => Array.from({ length: body.length / length }, (_, i) => body.slice(i * length, (i + 1) * length));
const isEmpty = (slot) => slot.every((byte) => byte === 0);

/** What the view of a round has for those whom it awaits; `RefusalError` without it. */
function shownBytes(text, what) {
  if ((text ?? null) === null) throw new RefusalError(`the server shows this client no ${what}: it leaves it out, or lost its last message`);
  return fromBase64Url(text);
}

class MaskedRound {
  #client;
  #round;
  #tell;
  #signal;

  constructor(client, round, tell, signal) {
    this.#client = client;
    this.#round = round;
    this.#tell = tell;
    this.#signal = signal;
  }

  get #path() {
    return `/v1/tasks/${this.#client.terms.id}/rounds/${this.#round.number}`;
  }

  #put(stage, what, body) {
    const path = `${this.#path}/stages/${stage}/${this.#client.membership.client}`;
    return this.#client.api.put(path, what, body, `application/vnd.hushrec.${MEDIA[stage]}`, { signal: this.#signal });
  }

  #fetch(name, what, most) {
    return this.#client.api.bytes(`${this.#path}/${name}`, what, { signal: this.#signal, most });
  }

  /** has: whether a member (its place) is counted. */
  #requireCohort(has, what) {
    const { policy, task } = this.#client.terms;
    const least = Math.max(policy.minCohort, task.schedule.min_clients);
    const count = Math.min(...this.members.map((places) => places.filter(has).length));
    const inGroup = this.members.length > 1 ? " in a group" : "";
    if (count < least) throw new RefusalError(`${what} ${count} clients${inGroup}; this client requires at least ${least}`);
  }

  #requireThreshold(count, stage) {
    if (count < this.threshold) throw new ThresholdError(`${stage}: ${count} neighbours are left, ${this.threshold} are needed`);
  }

  async advertise(liked) {
    const { terms, identity, membership, store } = this.#client;
    const { number, step, seed, cohort, plan } = this.#round;
    if (step < ((await store.get("signed"))?.step ?? 0)) {
      throw new AlreadySummedError("the server repeats a sum that this client took part in before");
    }
    this.#tell("model");
    const { round: modelRound, state, digest, chain } = await fetchModel(this.#client, number, this.#signal);
    await requireData(this.#client, this.#round, modelRound, liked);
    Object.assign(this, { state, chain });
    const context = { task: terms.id, round: number, seed, cohort, bits: plan.bits, length: plan.length };
    this.bound = await masked.binding({ ...context, modelDigest: await modelDigest(terms.bound, step, digest) });
    const [mask, sealing] = await Promise.all([randomBytes(32), randomBytes(32)].map(sealingKey));
    this.secrets = { mask, sealing, seed: randomBytes(32) };
    this.own = await masked.advertise(this.bound, membership.client, { identity: identity.signing, ...this.secrets });
    await this.#put("advertise", "keys of the round", this.own);
  }

  async share() {
    this.#tell("committee");
    const { terms, membership, identity } = this.#client;
    const { cohort, seed, plan } = this.#round;
    const handed = await this.#fetch("roster", "members of the round", 4 + cohort * LONGEST_ENTRY);
    const { groups } = plan;
    const clients = masked.rosterSize(handed, cohort);
    const { degree, threshold } = chooseNeighbourhood(clients, plan.corrupt, plan.dropout, plan.mode, plan.sigma, plan.eta, groups);
    const { roster: body, advertisements } = masked.splitHandout(handed, degree);
    this.entries = masked.decodeRoster(body, cohort);
    this.place = this.entries.findIndex((entry) => entry.id === membership.client);
    const mine = this.entries[this.place];
    if (!mine || !equal(mine.identityKey, identity.identityKey) || !equal(mine.name, await masked.advertisementName(this.own))) {
      throw new RefusalError("this client is not in the roster with its own keys");
    }
    const isMember = membershipCheck(this.#client, ["member"]);
    for (const entry of this.entries) {
      if (entry !== mine && !(await isMember(entry))) throw new RefusalError("a member of the roster has no valid proof of membership");
    }
    this.threshold = threshold;
    this.roster = await masked.rosterDigest(this.bound, degree, threshold, plan.mode, body);
    const drawn = await masked.graphSeed(seed, this.roster);
    this.members = await splitClients(terms.id, this.entries.map((entry) => entry.id), groups);
    this.#requireCohort(() => true, "the roster has");
    this.neighbours = (await masked.groupNeighbours(this.members, degree, drawn))[this.place];
    await masked.addAdvertisements(this.entries, [this.place, ...this.neighbours], [this.own, ...advertisements]);
    for (const place of this.neighbours) await this.#checkKeys(this.entries[place]);
    await this.#put("share", "sealed shares", await this.#sealedShares());
  }

  async #checkKeys({ id, identityKey, advertisement }) {
    try {
      await masked.checkAdvertisement(this.bound, id, identityKey, advertisement);
    } catch (error) {
      if (error instanceof ContributionError) throw new RefusalError(`a neighbour: ${error.message}`);
      throw error;
    }
  }

  async #sealedShares() {
    const points = this.neighbours.map((place) => place + 1);
    const ofSeed = split(this.secrets.seed, this.threshold, points, randomBytes);
    const ofMask = split(this.secrets.mask.seed, this.threshold, points, randomBytes);
    const sealed = this.neighbours.map((place, i) => {
      const peer = masked.sealingKeyOf(this.entries[place]);
      return masked.sealPair(concat(ofSeed[i], ofMask[i]), this.secrets.sealing, peer, this.roster, this.place, place);
    });
    const later = this.neighbours.filter((place) => place > this.place);
    const secrets = later.map((place) =>
      masked.sealPairSecret(this.secrets.mask, masked.maskKey(this.entries[place]), this.roster, this.place, place),
    );
    return concat(...(await Promise.all([...sealed, ...secrets])));
  }

  async contribute(liked) {
    const [clients, degree] = [this.entries.length, this.neighbours.length];
    const setBytes = Math.ceil(clients / 8);
    const earlier = this.neighbours.filter((place) => place < this.place);
    const edge = setBytes + degree * masked.SLOT_BYTES;
    const length = edge + earlier.length * masked.PAIR_BYTES;
    const inbox = exact(await this.#fetch("inbox", "shares for this device", length), length, "the inbox");
    this.sharersBody = inbox.slice(0, setBytes);
    this.sharers = places(this.sharersBody, clients);
    if (!this.sharers.has(this.place)) throw new RefusalError("the server's list of sharers leaves this client out");
    this.#requireCohort((place) => this.sharers.has(place), "shares came from");
    const sharing = this.neighbours.filter((place) => this.sharers.has(place));
    this.#requireThreshold(sharing.length, "sharing");
    this.pairs = await this.#openShares(slots(inbox.slice(setBytes, edge), masked.SLOT_BYTES));
    const masks = await this.#openSecrets(sharing, earlier, slots(inbox.slice(edge), masked.PAIR_BYTES));
    await this.#report(sharing.filter((place) => !this.pairs.has(place) || !masks.has(place)));
    if (masks.size < sharing.length) throw new RoundLostError("what a neighbour sealed for the common mask does not open");
    this.#tell("training");
    const work = await localWork(this.#client, this.#round, this.state, liked);
    const trained = performance.now();
    this.#tell("sealing");
    const { bits } = this.#round.plan;
    const context = await masked.maskContext(this.bound, this.roster, this.sharersBody);
    const hidden = await masked.addMasks(work.steps.map(BigInt), this.#masks(masks), context, bits);
    const body = packElements(hidden, bits);
    this.secrets = null; // used once: no mask hides two vectors
    const sealed = performance.now();
    const sent = await deliver(this.#client, { round: this.#round.number, body, chain: this.chain }, this.#tell, this.#signal);
    const times = { train: work.milliseconds, seal: sealed - trained, upload: sent.uploadMilliseconds };
    const { step, cohort } = this.#round;
    this.report = { ...sent, step, cohort, loss: work.loss, samples: work.samples, failure: work.failure, steps: work.steps, times };
  }

  /** The pairs of shares by neighbour; none for one that does not open. */
  async #openShares(sealed) {
    const pairs = new Map();
    for (const [i, slot] of sealed.entries()) {
      const place = this.neighbours[i];
      if (isEmpty(slot)) continue;
      if (!this.sharers.has(place)) throw new RefusalError("the server sent shares of a client that is not in its list of sharers");
      const peer = masked.sealingKeyOf(this.entries[place]);
      const pair = await masked.openPair(slot, this.secrets.sealing, peer, this.roster, place, this.place);
      if (pair) pairs.set(place, pair);
    }
    return pairs;
  }

  /** The secrets of masks by neighbour that shared; none for one that does not open. */
  async #openSecrets(sharing, earlier, sealed) {
    const [found, own] = [new Map(), this.secrets.mask];
    for (const place of sharing.filter((one) => one > this.place)) {
      found.set(place, await masked.pairSecret(own.seed, this.roster, this.place, place));
    }
    for (const [i, place] of earlier.entries()) {
      if (isEmpty(sealed[i]) || !this.sharers.has(place)) continue;
      const peer = masked.maskKey(this.entries[place]);
      const secret = await masked.openPairSecret(sealed[i], own, peer, this.roster, place, this.place);
      if (secret) found.set(place, secret);
    }
    return found;
  }

  /** Names the neighbours at `places` to the server: something that they sealed does not open. */
  async #report(places) {
    const unopened = places.map((place) => this.entries[place].id);
    for (let start = 0; start < unopened.length; start += MOST_BAD_SHARES) {
      const clients = unopened.slice(start, start + MOST_BAD_SHARES);
      await this.#client.api.post(`${this.#path}/bad-shares`, "shares that do not open", { clients }, { signal: this.#signal });
    }
  }

  #masks(secrets) {
    const pairs = [...secrets].map(([place, secret]) => [secret, this.place < place ? 1 : -1]);
    return [[this.secrets.seed, 1], ...pairs];
  }

  /** view: the round, which awaits this client. */
  async confirm(view) {
    this.#tell("confirming");
    this.survivorsBody = shownBytes(view.survivor_set, "survivors");
    this.survivors = places(this.survivorsBody, this.entries.length);
    if (!this.survivors.has(this.place)) throw new RefusalError("the server's list of survivors leaves this client out");
    if ([...this.survivors].some((place) => !this.sharers.has(place))) throw new RefusalError("a survivor did not share its secrets");
    this.#requireCohort((place) => this.survivors.has(place), "contributions came from");
    this.#requireThreshold(this.neighbours.filter((place) => this.survivors.has(place)).length, "collecting");
    await this.#remember();
    await this.#put("confirm", "confirmation", await sign(this.#client.identity.signing, this.#signed()));
  }

  #signed() {
    return masked.signedSurvivors(this.bound, this.roster, this.sharersBody, this.survivorsBody);
  }

  /** The survivors whose sum has this client's data: those of its group. */
  get #together() {
    return this.members.find((places) => places.includes(this.place)).filter((place) => this.survivors.has(place));
  }

  /** Stores the set before it is signed: for one step, so for the same data, a client signs one set only. */
  async #remember() {
    const members = this.#together.map((place) => toHex(this.entries[place].identityKey)).sort();
    const { step } = this.#round;
    const before = (await this.#client.store.get("signed")) ?? { step: 0, members: [] };
    if (step < before.step) throw new AlreadySummedError("the server repeats a sum that this client took part in before");
    if (step === before.step && String(members) !== String(before.members)) {
      throw new RefusalError("the server sums the same data again, over other survivors than this client confirmed before");
    }
    await this.#client.store.put("signed", { step, members });
  }

  /** view: the round, which awaits this client. */
  async unmask(view) {
    this.#tell("unmasking");
    const clients = this.entries.length;
    const signatures = slots(exact(shownBytes(view.confirmations, "signatures"), 64 * clients, "confirmations"), 64);
    const signers = new Set([this.place]);
    for (const place of this.#together) {
      const key = this.entries[place].identityKey;
      if (place !== this.place && (await verify(key, signatures[place], this.#signed()))) signers.add(place);
    }
    this.#requireThreshold(this.neighbours.filter((place) => signers.has(place)).length, "confirming");
    const { corrupt, groups } = this.#round.plan;
    const needed = quorum(corrupt, clients, groups);
    if (signers.size < needed) throw new ThresholdError(`confirming: ${signers.size} members signed these survivors, ${needed} are needed`);
    const shares = this.neighbours.map((place) => {
      const pair = this.pairs.get(place);
      if (!pair) return new Uint8Array(SHARE_BYTES);
      return this.survivors.has(place) ? pair.slice(0, SHARE_BYTES) : pair.slice(SHARE_BYTES);
    });
    this.pairs = null; // one of the two shares of each neighbour was given, and never the other
    await this.#put("unmask", "shares of masks", concat(...shares));
  }
}

/**
 * Takes part in the masked round `view` from its first stage. next(view): resolves with the round in its next state.
 * Returns a report as `takeOneshotPart` does; `RoundLostError` when the round goes on without this client.
 */
export async function takeMaskedPart(client, view, liked, tell, signal, next) {
  const part = new MaskedRound(client, await readRound(client.terms, view), tell, signal);
  const steps = [() => part.advertise(liked), () => part.share(), () => part.contribute(liked), (shown) => part.confirm(shown), (shown) => part.unmask(shown)];
  let current = view;
  for (const [at, stage] of STAGES.entries()) {
    if (current.number !== view.number || current.state !== stage) {
      throw new RoundLostError(current.failure ?? `round ${view.number} went on to ${current.state} before this client had sent its message`);
    }
    await steps[at](current);
    if (stage === "collecting") tell("sent");
    if (stage !== "unmasking") current = await next(current);
  }
  return part.report;
}
