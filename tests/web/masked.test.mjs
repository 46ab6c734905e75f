/**
 * node --test tests/web/masked.test.mjs: masked rounds of ten JavaScript clients, with an honest and a lying server.
 * With GROUPS=3 in the environment: of nine, in three groups.
 */

import test from "node:test";
import assert from "node:assert/strict";
import { modelDigest } from "../../examples/web/hushrec/canonical.js";
import { concat, fromBase64Url, littleEndian, toBase64Url, utf8 } from "../../examples/web/hushrec/codec.js";
import { sha256, tag } from "../../examples/web/hushrec/domain.js";
import { unpackElements } from "../../examples/web/hushrec/fixed_point.js";
import { splitClients } from "../../examples/web/hushrec/groups.js";
import { newIdentity } from "../../examples/web/hushrec/identity.js";
import { sign } from "../../examples/web/hushrec/keys.js";
import * as masked from "../../examples/web/hushrec/masked.js";
import { takeMaskedPart } from "../../examples/web/hushrec/masked_round.js";
import { chooseNeighbourhood } from "../../examples/web/hushrec/neighbourhood.js";
import { roundSeed } from "../../examples/web/hushrec/recipes.js";
import { combine, SHARE_BYTES } from "../../examples/web/hushrec/shamir.js";
import { MemoryStore } from "../../examples/web/hushrec/store.js";
import { readTask } from "../../examples/web/hushrec/terms.js";
import { secureUniform } from "../../examples/web/hushrec/training.js";
import { AGREED, MASKED } from "./tasks.mjs";

const GROUPS = Number(process.env.GROUPS ?? 1);
const TASK = inGroups(structuredClone(MASKED));
const CLIENTS = GROUPS > 1 ? 9 : 10; // ids of one length
const { degree: DEGREE, threshold: THRESHOLD } = chooseNeighbourhood(CLIENTS, 0.05, 0.1, "semi-malicious", 64, 30, GROUPS);
const STAGES = ["advertising", "sharing", "collecting", "confirming", "unmasking", "complete"];
const MESSAGE = { advertising: "advertise", sharing: "share", collecting: "contribution", confirming: "confirm", unmasking: "unmask" };

/** The task with groups: a group has eight clients at most, and so a finer scale; a released sum has counts. */
function inGroups(task) {
  if (GROUPS === 1) return task;
  const { mechanism, main_sum: sum } = task.resolved;
  for (const stated of [task.mechanism.parameters, mechanism.parameters]) stated.groups = GROUPS;
  mechanism.parameters.tau = 1.5;
  sum.layout.blocks[0].segments[0].scale = 2 ** 25;
  sum.plan.aggregate_bytes = GROUPS * (8 + sum.plan.aggregate_bytes);
  task.schedule.min_clients = 3;
  return task;
}

const organiserKeys = await newIdentity();
TASK.organiser = { key: toBase64Url(organiserKeys.identityKey), scope: "films" };
const TERMS = readTask(TASK, { organiser: TASK.organiser, policy: AGREED });

async function certificate({ identityKey, mailboxKey }, role, serial) {
  const notAfter = BigInt(Math.floor(Date.now() / 1000) + 600);
  const name = ["member", "holder", "committee"][role];
  const signature = await sign(organiserKeys.signing, tag("membership certificate", "films", name, identityKey, mailboxKey, serial, notAfter));
  return concat(littleEndian(role, 1), littleEndian(serial, 8), littleEndian(notAfter, 8), signature);
}

/** A server of one round. lies: by download, what client c0 (or `to`) gets instead. named: who was reported. */
class Server {
  #waiting = [];
  messages = { advertise: {}, share: {}, contribution: {}, confirm: {}, unmask: {} };

  constructor(people, lies, step) {
    Object.assign(this, { people, lies, step, at: 0, named: [], present: new Set(Object.keys(people)) });
  }

  /** Resolves for every client when all that are present have sent the message of the stage. */
  async next(id) {
    const view = await new Promise((resolve) => {
      this.#waiting.push(resolve);
      this.advance();
    });
    const shown = { confirming: ["survivor_set", "survivors"], unmasking: ["confirmations", "confirmations"] }[view.state];
    if (!shown) return view;
    const [field, what] = shown;
    const body = await this.handed(id, what);
    return body ? { ...view, [field]: toBase64Url(body) } : view;
  }

  /** What the server gives to a client, which the test may change for c0. */
  async handed(id, what) {
    if (id !== "c0" && this.lies.refused && what in this.lies) return new Promise(() => {}); // the test ends with c0
    const honest = await this[what](id);
    return id === (this.lies.to ?? "c0") && this.lies[what] ? this.lies[what](Uint8Array.from(honest), this) : honest;
  }

  advance() {
    if (this.#waiting.length < this.present.size) return;
    this.at++;
    this.#waiting.splice(0).forEach((resolve) => resolve({ number: 1, state: STAGES[this.at] }));
  }

  leave(id) {
    this.present.delete(id);
    this.advance();
  }

  get ids() {
    return Object.keys(this.people).sort();
  }

  async names() {
    const entries = this.ids.map(async (id) => {
      const { identity, certificate: proof } = this.people[id];
      const name = await masked.advertisementName(this.messages.advertise[id]);
      return concat(littleEndian(id.length, 1), utf8(id), identity.identityKey, identity.mailboxKey, proof, name);
    });
    return concat(littleEndian(CLIENTS, 4), ...(await Promise.all(entries)));
  }

  /** The roster, then the advertisements of the client's neighbours. */
  async roster(id) {
    const { neighbours } = await this.graph();
    const peers = neighbours[this.ids.indexOf(id)].map((place) => this.messages.advertise[this.ids[place]]);
    return concat(await this.names(), ...peers);
  }

  set(of) {
    const body = new Uint8Array(Math.ceil(CLIENTS / 8));
    this.ids.forEach((id, place) => (body[place >> 3] |= Number(id in of) << (place & 7)));
    return body;
  }

  /** {neighbours, context}: the graph, and the context of the mask streams, once all shares are there. */
  facts() {
    return (this.known ??= this.computed());
  }

  async computed() {
    const { bound, roster, ...graph } = await this.graph();
    return { ...graph, context: await masked.maskContext(bound, roster, this.set(this.messages.share)) };
  }

  graph() {
    return (this.drawn ??= this.draw());
  }

  async draw() {
    const { bits, length } = TERMS.planAt(1);
    const seed = await roundSeed(fromBase64Url(TASK.seed), 1);
    const round = { task: TASK.task_id, round: 1, seed, modelDigest: await modelDigest(TERMS.bound, this.step, null), cohort: CLIENTS };
    const bound = await masked.binding({ ...round, bits, length });
    const roster = await masked.rosterDigest(bound, DEGREE, THRESHOLD, "semi-malicious", await this.names());
    const drawn = await masked.graphSeed(seed, roster);
    const members = await splitClients(TASK.task_id, this.ids, GROUPS);
    const neighbours = await masked.groupNeighbours(members, DEGREE, drawn);
    return { members, neighbours, bound, roster };
  }

  /** What the client at place `own` gets or gave of each neighbour's message, in order. */
  async slots(own, messages, length) {
    const { neighbours } = await this.facts();
    return neighbours[own].map((place) => {
      const slot = neighbours[place].indexOf(own);
      return [place, messages[this.ids[place]].slice(slot * length, (slot + 1) * length)];
    });
  }

  async inbox(id) {
    const own = this.ids.indexOf(id);
    const slots = await this.slots(own, this.messages.share, masked.SLOT_BYTES);
    const { neighbours } = await this.facts();
    const earlier = neighbours[own].filter((place) => place < own);
    const secrets = earlier.map((place) => {
      const later = neighbours[place].filter((other) => other > place);
      const start = neighbours[place].length * masked.SLOT_BYTES + later.indexOf(own) * masked.PAIR_BYTES;
      return this.messages.share[this.ids[place]].slice(start, start + masked.PAIR_BYTES);
    });
    return concat(this.set(this.messages.share), ...slots.map(([, slot]) => slot), ...secrets);
  }

  async survivors() {
    return this.set(this.messages.contribution);
  }

  async confirmations() {
    return concat(...this.ids.map((id) => this.messages.confirm[id] ?? new Uint8Array(64)));
  }

  /** The requests of one client. */
  api(id) {
    return {
      post: async (path, what, { clients }) => this.named.push(...clients),
      get: async () => ({ json: { rounds: [], more: false } }),
      put: async (path, what, body) => {
        this.messages[path.includes("contributions") ? "contribution" : path.split("/").at(-2)][id] = body;
        return { digest: Buffer.from(await sha256(body)).toString("hex"), bytes: body.length };
      },
      bytes: (path) => this.handed(id, path.split("/").at(-1)),
    };
  }
}

/**
 * Plays a round; returns the server and what became of each client, of c0 only if the lies are to be `refused`.
 * store: of c0, from an earlier round.
 */
async function play(lies = {}, store = new MemoryStore(), step = 1) {
  const people = {};
  for (let i = 0; i < CLIENTS; i++) {
    const identity = await newIdentity();
    people[`c${i}`] = { identity, certificate: await certificate(identity, lies.role ?? 0, BigInt(7 + i)) };
  }
  const server = new Server(people, lies, step);
  const seed = toBase64Url(await roundSeed(fromBase64Url(TASK.seed), 1));
  const view = { number: 1, step, state: "advertising", cohort: CLIENTS, seed, contribution_bytes: TERMS.planAt(1).uploadBytes };
  const parts = server.ids.map((id, i) => {
    const own = { store: i ? new MemoryStore() : store, membership: { client: id }, identity: people[id].identity };
    const client = { api: server.api(id), terms: TERMS, revoked: lies.revoked ?? new Set(), uniform: secureUniform(), ...own };
    return takeMaskedPart(client, view, [i, i + 1, 30], () => {}, undefined, () => server.next(server.ids[i])).finally(() => server.leave(id));
  });
  const [whole, first] = [Promise.allSettled(parts), Promise.allSettled(parts.slice(0, 1))];
  return { server, outcomes: await (lies.refused ? first : whole) };
}

/** The sum of some clients (places) that the server opens from the replies: all survive, so from the shares of their seeds. */
async function opened(server, places) {
  const { bits, length } = TERMS.planAt(1);
  const { context } = await server.facts();
  let total = new Array(length).fill(0n);
  for (const own of places) {
    const id = server.ids[own];
    const shares = await server.slots(own, server.messages.unmask, SHARE_BYTES);
    const seed = combine(shares.map(([place, share]) => [place + 1, share]), THRESHOLD);
    const drawn = await masked.stream(seed, context, bits, length);
    const vector = unpackElements(server.messages.contribution[id], bits, length);
    total = total.map((sum, i) => BigInt.asUintN(bits, sum + vector[i] - drawn[i]));
  }
  return total;
}

test("the server opens exactly the sum, of each group", async () => {
  const { server, outcomes } = await play();
  const reports = outcomes.map(({ value, reason }) => value ?? assert.fail(reason));
  const { bits, length } = TERMS.planAt(1);
  for (const places of (await server.facts()).members) {
    const sum = (i) => BigInt.asUintN(bits, BigInt(places.reduce((total, place) => total + reports[place].steps[i], 0)));
    const plain = Array.from({ length }, (_, i) => sum(i));
    assert.deepEqual(await opened(server, places), plain);
    assert.ok(plain.some((value) => value));
  }
});

const flip = (at) => (body) => {
  body[at < 0 ? body.length + at : at] ^= 1;
  return body;
};
const ENTRY = 3 + 64 + 81 + 32;
/** Changes the keys that every member but the first, c0, has advertised; the roster names what it hands out. */
const advertised = (change) => (body, server) => {
  for (const id of server.ids.slice(1)) server.messages.advertise[id] = change(Uint8Array.from(server.messages.advertise[id]), server);
  server.drawn = undefined;
  return server.roster("c0");
};
const unsigned = advertised(flip(1220));
const identityAsMask = advertised((body, server) => {
  body.set(server.people.c0.identity.identityKey, 1184);
  return body;
});
/** Copies the serial of the third member's certificate to the second's. */
const sameSubject = (body) => {
  const serial = 3 + 64 + 1;
  body.copyWithin(4 + ENTRY + serial, 4 + 2 * ENTRY + serial, 4 + 2 * ENTRY + serial + 8);
  return body;
};
for (const [name, lies, error, sent] of [
  ["a roster with another key of this client", { roster: flip(4 + 1 + 2 + 145 + 5) }, "RefusalError", "advertise"],
  ["a roster with keys that its members did not sign", { roster: unsigned }, "RefusalError", "advertise"],
  ["a roster with a certificate of somebody else", { roster: flip(4 + CLIENTS * ENTRY - 32 - 5) }, "RefusalError", "advertise"],
  ["a roster of members of the committee", { role: 2 }, "RefusalError", "advertise"],
  ["a roster with the key holder", { role: 1 }, "RefusalError", "advertise"],
  ["a roster with a subject twice", { roster: sameSubject }, "CodecError", "advertise"],
  ["a roster with a member's identity key as another's mask key", { roster: identityAsMask }, "RefusalError", "advertise"],
  ["keys of a neighbour that the roster does not name", { roster: flip(-masked.ADVERTISEMENT_BYTES + 1220) }, "RefusalError", "advertise"],
  ["a roster of revoked members", { revoked: new Set([9n]) }, "RefusalError", "advertise"],
  ["a roster with a byte too many", { roster: (body) => concat(body, new Uint8Array(1)) }, "CodecError", "advertise"],
  ["sharers without this client", { inbox: flip(0) }, "RefusalError", "share"],
  ["sharers with padding", { inbox: (body) => ((body[1] |= 128), body) }, "CodecError", "share"],
  ["survivors without this client", { survivors: flip(0) }, "RefusalError", "contribution"],
  ["fewer survivors than the task's least", { survivors: flip(1) }, "RefusalError", "contribution"],
  ["survivors with a byte too many", { survivors: (body) => concat(body, new Uint8Array(1)) }, "CodecError", "contribution"],
  ["a round that shows it no survivors", { survivors: () => null }, "RefusalError", "contribution"],
  ["a round that shows it no signatures", { confirmations: () => null }, "RefusalError", "confirm"],
  ["no survivors", { survivors: () => new Uint8Array() }, "CodecError", "contribution"],
  ["confirmations that are cut", { confirmations: (body) => body.slice(1) }, "CodecError", "confirm"],
  ["confirmations of nobody", { confirmations: (body) => body.fill(0) }, "ThresholdError", "confirm"],
  ["forged confirmations", { confirmations: (body) => body.map((byte) => byte ^ 1) }, "ThresholdError", "confirm"],
]) {
  test(`a client refuses ${name}`, async () => {
    const { server, outcomes } = await play({ ...lies, refused: true });
    assert.equal(outcomes[0].reason?.name, error, String(outcomes[0].reason));
    const order = Object.values(MESSAGE);
    const last = order.findLast((stage) => server.messages[stage].c0);
    assert.equal(last, sent); // and it sends nothing afterwards
  });
}

test("a client leaves when the secret of a mask does not open, and names who sealed it", async () => {
  const id = `c${CLIENTS - 1}`; // all its neighbours are before it
  const { server, outcomes } = await play({ to: id, inbox: flip(-1) });
  const last = outcomes[server.ids.indexOf(id)];
  assert.equal(last.reason?.name, "RoundLostError", String(last.reason));
  assert.equal(server.named.length, 1);
  assert.ok(!server.messages.contribution[id]);
});

test("a client does not confirm other survivors for the same data", async () => {
  const store = new MemoryStore();
  assert.ok((await play({}, store)).outcomes[0].value);
  const again = await play({}, store); // ten other clients, of which one has the store of the first
  assert.equal(again.outcomes[0].reason?.name, "RefusalError");
  assert.ok(!again.server.messages.confirm.c0);
});

test("a round that goes on without the client is lost", async () => {
  const { server, outcomes } = await play({ survivors: async (body, self) => ((self.at = 9), body) });
  assert.ok(server.at > 5);
  assert.ok(outcomes.some(({ reason }) => reason?.name === "RoundLostError"));
});
