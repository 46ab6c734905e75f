/** node --test tests/web/client.test.mjs: what the JavaScript client refuses, repeats and remembers. */

import { readFileSync } from "node:fs";
import test from "node:test";
import assert from "node:assert/strict";
import { ROUND } from "../../examples/web/hushrec/answers.js";
import { Api, baseUrl } from "../../examples/web/hushrec/api.js";
import { boundTerms, modelDigest } from "../../examples/web/hushrec/canonical.js";
import { concat, fromBase64, fromBase64Url, fromHex, littleEndian, toBase64, toBase64Url, toHex, utf8 } from "../../examples/web/hushrec/codec.js";
import { sha256, tag } from "../../examples/web/hushrec/domain.js";
import { enrol, following, join, refreshRevocations } from "../../examples/web/hushrec/enrolment.js";
import { packElements } from "../../examples/web/hushrec/fixed_point.js";
import { GAUSSIAN_TABLE } from "../../examples/web/hushrec/gaussian_table.js";
import { signRequest } from "../../examples/web/hushrec/http_signature.js";
import { firstChain, nextChain } from "../../examples/web/hushrec/identities.js";
import { newIdentity } from "../../examples/web/hushrec/identity.js";
import { sign } from "../../examples/web/hushrec/keys.js";
import { fetchModel } from "../../examples/web/hushrec/model.js";
import { takeMaskedPart } from "../../examples/web/hushrec/masked_round.js";
import { rememberCommittee, takeOneshotPart } from "../../examples/web/hushrec/oneshot_round.js";
import { absorb, decodeState, encodeState, initialFactors, roundSeed } from "../../examples/web/hushrec/recipes.js";
import { Participant } from "../../examples/web/hushrec/participant.js";
import { MemoryStore } from "../../examples/web/hushrec/store.js";
import { localWork } from "../../examples/web/hushrec/round_work.js";
import { readRound, readTask, stepsOf } from "../../examples/web/hushrec/terms.js";
import { topItems, train, TRAINING } from "../../examples/web/hushrec/training.js";
import { AGREED, MASKED, ONESHOT as TASK } from "./tasks.mjs";

const read = (name) => JSON.parse(readFileSync(new URL(name, import.meta.url), "utf8"));
const ORGANISER = TASK.organiser;

/** Answers fetch with the given responses, one after the other, and records the requests. */
function answering(...answers) {
  const requests = [];
  globalThis.fetch = async (url, init) => {
    requests.push({ url: String(url), ...init });
    const [status, body = "", headers = {}] = answers.shift() ?? [400, problem("unexpected"), PROBLEM]; // which is not repeated
    return new Response([204, 304].includes(status) ? null : body, { status, headers });
  };
  return requests;
}

/** A certificate of a member of films. */
async function certificateOf(organiser, identityKey, mailboxKey, notAfter = 2 ** 33) {
  const parts = ["member", identityKey, mailboxKey, 7n, BigInt(notAfter)];
  const signature = await sign(organiser.signing, tag("membership certificate", "films", ...parts));
  return concat(Uint8Array.of(0), littleEndian(7, 8), littleEndian(notAfter, 8), signature);
}

const problem = (slug, more = {}) => JSON.stringify({ type: `urn:hushrec:problem:${slug}`, title: slug, ...more });
const PROBLEM = { "content-type": "application/problem+json" };
const digestOf = async (body) => `sha-256=:${toBase64(await sha256(utf8(body)))}:`;

/** The task with one entry changed: path like "schedule.min_clients". */
function changed(path, value, from = TASK) {
  const task = structuredClone(from);
  const names = path.split(".");
  const last = names.pop();
  names.reduce((at, name) => at[name], task)[last] = value;
  return task;
}

test("the Gaussian table is that of the vectors", () => {
  assert.deepEqual(GAUSSIAN_TABLE.map(String), read("../vectors/oneshot_ring.json").gaussian.table);
});

test("a task as the server states it is accepted", () => {
  const terms = readTask(TASK, { organiser: ORGANISER, policy: AGREED });
  const { degree, primes, values_per_coefficient: per } = TASK.plan;
  const plan = terms.planAt(1);
  assert.deepEqual([plan.degree, plan.primes, plan.per, plan.threshold], [degree, primes, per, TASK.plan.threshold]);
});

/** The task with another parameter of its recipe or mechanism, and what the server makes of it. */
const stating = (of, name, value, from = TASK) =>
  changed(`resolved.${of}.parameters.${name}`, value, changed(`${of}.parameters.${name}`, value, from));

for (const [of, name, value, from = TASK] of [
  ["mechanism", "mode", "curious", MASKED],
  ["mechanism", "corrupt", 0.01, MASKED],
  ["mechanism", "sigma", 40, MASKED],
  ["mechanism", "spare", 17, MASKED],
  ["mechanism", "tau", 1.5, MASKED],
  ["mechanism", "committee", 2],
  ["mechanism", "corrupt", 0],
  ["recipe", "epochs", 21],
  ["recipe", "start_from", { task: "t_1" }],
  ["recipe", "another", 1],
]) {
  test(`a ${from.mechanism.name} task that states another ${name} is refused`, () => {
    readTask(from, { organiser: from.organiser, policy: AGREED });
    assert.throws(() => readTask(stating(of, name, value, from), { organiser: from.organiser, policy: AGREED }), { name: "PolicyError" });
  });
}

test("spare bits make the scale coarser, and another scale is refused", () => {
  const { scale } = MASKED.resolved.main_sum.layout.blocks[0].segments[0];
  const at = "resolved.main_sum.layout.blocks.0.segments.0.scale";
  const spared = stating("mechanism", "spare", 8, MASKED);
  const read = (task) => readTask(task, { organiser: MASKED.organiser, policy: AGREED });
  assert.throws(() => read(spared), { name: "RefusalError" });
  assert.equal(read(changed(at, scale / 256, spared)).planAt(2).segments[0].scale, scale / 256);
});

for (const from of [TASK, MASKED]) {
  const { bound } = readTask(from, { organiser: from.organiser, policy: AGREED });
  for (const of of ["recipe", "mechanism"]) {
    for (const [name, own] of Object.entries(from.resolved[of].parameters)) {
      test(`attack: a server resolves another ${name} of ${from.mechanism.name} for one client`, async () => {
        const other = typeof own === "number" ? own * 2 + 1 : own === null ? 100 : "other";
        const lie = changed(`resolved.${of}.parameters.${name}`, other, from);
        assert.throws(() => readTask(lie, { organiser: from.organiser, policy: AGREED }), { name: "RefusalError" });
        // and masks are bound to all parameters, so that those of two clients with different ones do not cancel
        assert.ok(bound.includes(JSON.stringify(name)));
        const resolved = (task) => boundTerms(task, { recipe: task.resolved.recipe.parameters, mechanism: task.resolved.mechanism.parameters });
        assert.equal(resolved(from), bound);
        assert.notDeepEqual(await modelDigest(resolved(lie), 1, null), await modelDigest(bound, 1, null));
      });
    }
  }
}

for (const [path, value, error] of [
  ["mechanism.name", "ckks", "PolicyError"],
  ["resolved.mechanism.name", "masked", "RefusalError"],
  ["recipe.name", "svd", "PolicyError"],
  ["resolved.recipe.name", "fedmf", "RefusalError"],
  ["recipe.parameters.items", 61, "RefusalError"],
  ["data_set", "ratings", "PolicyError"],
  ["resolved.main_sum.plan.primes", [3], "RefusalError"],
  ["resolved.main_sum.plan.threshold", 3, "RefusalError"],
  ["resolved.main_sum.layout.blocks", [], "RefusalError"],
  ["schedule.min_clients", 2, "PolicyError"],
  ["schedule.cohort_size", 100_000, "RefusalError"],
  ["evaluation", { every: 5 }, "PolicyError"],
  ["organiser", null, "PolicyError"],
  ["organiser.key", "A".repeat(43), "PolicyError"],
]) {
  test(`a task with another ${path} is refused`, () => {
    assert.throws(() => readTask(changed(path, value), { organiser: ORGANISER, policy: AGREED }), { name: error });
  });
}

test("a task that counts items more than once is refused", () => {
  const twice = stating("recipe", "count_sums", 2, stating("recipe", "item_bias", "counts"));
  assert.throws(() => readTask(twice, { organiser: ORGANISER, policy: AGREED }), { name: "PolicyError" });
});

test("rounds that contradict the terms are refused", async () => {
  const terms = readTask(TASK, { organiser: ORGANISER, policy: AGREED });
  const plan = terms.planAt(1);
  const seed = toBase64Url(await roundSeed(terms.seed, 2));
  const view = { number: 2, step: 1, cohort: TASK.schedule.cohort_size, seed, contribution_bytes: plan.uploadBytes };
  assert.equal((await readRound(terms, view)).plan, plan);
  for (const wrong of [{ step: 3 }, { number: 9, step: 9 }, { number: 0 }, { cohort: 2 }, { cohort: 99 }, { seed: TASK.seed }, { contribution_bytes: 1 }]) {
    await assert.rejects(readRound(terms, { ...view, ...wrong }), { name: "RefusalError" });
  }
  const values = new Array(plan.length).fill(0);
  assert.equal(stepsOf(plan, values.with(0, 1))[0], plan.segments[0].scale);
  assert.throws(() => stepsOf(plan, values.with(0, 2 * plan.segments[0].clip)), { name: "RefusalError" });
  assert.throws(() => stepsOf(plan, values.slice(1)), { name: "RefusalError" });
});

test("a committee with too many new members gets no shares of the same data", async () => {
  const plan = { threshold: 4, committee: 5, corrupt: 1 };
  const of = (...names) => ({ members: names.map((name) => ({ identityKey: utf8(name) })) });
  const store = new MemoryStore();
  await rememberCommittee(store, of("a", "b", "c", "d", "e"), { step: 1, plan });
  await rememberCommittee(store, of("a", "b", "c", "d", "f"), { step: 1, plan });
  await assert.rejects(rememberCommittee(store, of("a", "b", "c", "f", "g"), { step: 1, plan }), { name: "RefusalError" });
  await rememberCommittee(store, of("v", "w", "x", "y", "z"), { step: 2, plan });
  await assert.rejects(rememberCommittee(store, of("a", "b", "c", "d", "e"), { step: 1, plan }), { name: "AlreadySummedError" });
});

test("requests are repeated after failures that pass, and not after others", async () => {
  const pauses = [];
  const api = new Api("http://localhost:1", { unreachable: (_, seconds) => pauses.push(seconds) });
  const requests = answering([503, problem("unavailable"), PROBLEM], [429, "", { "retry-after": "0" }], [200, "{}"]);
  assert.deepEqual((await api.get("/v1/tasks/t", "task")).json, {});
  assert.equal(requests.length, 3);
  assert.equal(pauses.length, 2);
  answering([409, problem("round-closed"), PROBLEM]);
  await assert.rejects(api.get("/v1/tasks/t", "task"), { name: "ApiError", slug: "round-closed", status: 409 });
  answering([404, problem("not-found"), PROBLEM]);
  assert.equal(await api.getOrNull("/v1/tasks/t", "task"), null);
});

test("a poll that the server has no room for is not asked again before the server says", async () => {
  const api = new Api("http://localhost:1");
  for (const answer of [[304, "", { "retry-after": "20" }], [404, problem("not-found"), { ...PROBLEM, "retry-after": "20" }]]) {
    answering(answer);
    await assert.rejects(api.getOrNull("/v1/tasks/t", "task", { wait: 20, signal: AbortSignal.timeout(50) }), { name: "TimeoutError" });
    answering(answer);
    assert.equal(await api.getOrNull("/v1/tasks/t", "task"), null); // it was no poll
  }
});

test("a client comes in its window of a large round, and no server makes it silent", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  for (const [said, seconds] of [["37", 37], ["31536000", 600]]) {
    let came = false;
    answering([200, "{}", { "retry-after": said }]);
    const asked = new Api("http://localhost:1").get("/v1/tasks/t/rounds/current", "round", { wait: 0 }).then(() => (came = true));
    const settled = () => new Promise((resolve) => setImmediate(() => setImmediate(resolve)));
    for (let turn = 0; turn < 50; turn++) await settled();
    t.mock.timers.tick(1000 * seconds - 1);
    await settled();
    assert.equal(came, false);
    t.mock.timers.tick(1);
    await asked;
  }
});

test("the page of a proxy is no word of the server's", async () => {
  const failures = [];
  const api = new Api("http://localhost:1", { unreachable: (error) => failures.push(error) });
  const foreign = [401, 403, 404, 409, 410, 500].map((status) => [status, "<h1>no</h1>", { "content-type": "text/html" }]);
  for (const page of [...foreign, [403, '{"type":"about:blank"}', PROBLEM], [200, "<h1>log in</h1>", { "content-type": "text/html" }]]) {
    answering(page, [200, "{}"]);
    assert.deepEqual(await api.getOrNull("/v1/tasks/t", "task"), {});
    assert.match(failures.pop().message, new RegExp(`something else than the server \\(${page[0]}, `));
  }
  assert.deepEqual(failures, []);
  answering([413, "<h1>too large</h1>"]);
  await assert.rejects(api.get("/v1/tasks/t", "task"), { name: "ApiError", status: 413 });
});

test("an enrolment whose answers are lost is renewed", async () => {
  const identity = await newIdentity();
  const [api, certificate] = [new Api("http://localhost:1"), utf8("certificate")];
  const conflict = (renewal) => [409, problem("conflict", { renewal }), PROBLEM];
  const requests = answering(conflict(0), conflict(1), conflict(2), [201, '{"task_id":"t_1","client_id":"c_1","token":"hrt_x","role":"member"}']);
  const sent = () => requests.map(({ body }) => JSON.parse(new TextDecoder().decode(body)).renewal ?? 0);
  assert.equal((await enrol(api, identity, "hri_x", certificate)).client_id, "c_1");
  assert.deepEqual(sent(), [0, 1, 2, 3]);
  answering(conflict(5), conflict(5));
  await assert.rejects(enrol(api, identity, "hri_x", certificate), { slug: "conflict" });
});

/** A store with a membership of TASK, and a task that follows it, with one entry changed. */
async function member(certificate) {
  const store = new MemoryStore();
  const { bound: agreed } = readTask(TASK, { organiser: ORGANISER, policy: AGREED });
  await store.put("identity", await newIdentity());
  await store.put("membership", { url: "http://localhost:1", task: TASK.task_id, client: "c_1", token: "hrt_x", agreed, certificate });
  await store.put("task", TASK);
  await store.put("model", { round: 3 });
  return store;
}
const LATER = changed("schedule.follows", TASK.task_id, changed("task_id", "t_later"));
const ended = [200, JSON.stringify(changed("state", "complete"))];
const offer = (task) => [200, JSON.stringify(task)];
const none = [404, problem("not-found"), PROBLEM];
const sentTo = (requests) => requests.map(({ method, url }) => `${method} ${new URL(url).pathname}`);

test("a task that follows is shown without enrolling", async () => {
  const [url, store] = ["http://localhost:1", await member()];
  const given = { url, store, organiser: ORGANISER, policy: AGREED };
  const requests = answering(none, offer(LATER));
  assert.equal(await Participant.following(given), null);
  assert.equal((await Participant.following(given)).task_id, "t_later");
  assert.deepEqual(sentTo(requests), Array(2).fill(`GET /v1/tasks/${TASK.task_id}/successor`));
  await assert.rejects(Participant.following({ ...given, store: new MemoryStore() }), { name: "RefusalError", message: /no membership/ });
  await assert.rejects(Participant.following({ ...given, url: "http://localhost:2" }), { name: "RefusalError", message: /no membership/ });
});

for (const [path, value, name] of [
  ["organiser", { key: "A".repeat(43), scope: "films" }, "PolicyError"],
  ["schedule.follows", undefined, "RefusalError"],
  ["schedule.follows", null, "RefusalError"],
  ["data_set", "films", "PolicyError"],
  ["schedule.min_clients", 2, "PolicyError"],
  ["schedule", undefined, "CodecError"],
  ["recipe", null, "CodecError"],
  ["task_id", TASK.task_id, "RefusalError"],
]) {
  test(`attack: a task is not followed if the server changes ${path} to ${JSON.stringify(value)}`, async () => {
    const store = await member();
    const [before, api] = [await store.get("membership"), new Api("http://localhost:1")];
    const other = changed(path, value, LATER);
    const given = { organiser: ORGANISER, policy: AGREED, issue: () => assert.fail("asked for a certificate") };
    let requests = answering(offer(other), offer(other));
    await assert.rejects(following(api, store, given), { name });
    await assert.rejects(join(api, store, { ...given, after: TASK.task_id }), { name });
    assert.deepEqual(sentTo(requests), Array(2).fill(`GET /v1/tasks/${TASK.task_id}/successor`));
    requests = answering(ended, offer(other));
    const [reasons, policy] = [[], { ...AGREED, follow: true }];
    const joined = await join(api, store, { ...given, policy, notFollowed: (reason) => reasons.push(reason) });
    assert.deepEqual([joined.membership, reasons.length, requests.length], [before, 1, 2]);
    assert.deepEqual(await store.get("model"), { round: 3 });
  });
}

test("a member goes on where it is while its task is open, and if none follows", async () => {
  const [store, api] = [await member(), new Api("http://localhost:1")];
  const given = { organiser: ORGANISER, policy: { ...AGREED, follow: true } };
  for (const answers of [[offer(TASK)], [ended, none], [ended, offer(changed("state", "complete", LATER))]]) {
    const requests = answering(...answers);
    assert.equal((await join(api, store, given)).terms.id, TASK.task_id);
    assert.equal(requests.length, answers.length);
  }
  answering(none);
  await assert.rejects(join(api, store, { ...given, after: TASK.task_id }), { name: "RefusalError", message: /no task follows/ });
  await assert.rejects(join(api, store, { ...given, after: "t_other" }), { name: "RefusalError", message: /no membership of task t_other/ });
});

test("a member of a task joins the one that follows it, which takes the earlier one's place in the store", async () => {
  const organiser = await newIdentity();
  const pin = { key: toBase64Url(organiser.identityKey), scope: "films" };
  const [first, later] = [TASK, LATER].map((task) => changed("organiser", pin, task));
  const store = await member();
  const { identityKey, mailboxKey } = await store.get("identity");
  const certificate = await certificateOf(organiser, identityKey, mailboxKey);
  const { bound: agreed } = readTask(first, { organiser: pin, policy: AGREED });
  const stale = await certificateOf(organiser, identityKey, mailboxKey, 1);
  for (const [kept, issued] of [[certificate, 0], [undefined, 1], [stale, 1]]) {
    await store.put("membership", { url: "http://localhost:1", task: first.task_id, client: "c_1", token: "hrt_x", agreed, certificate: kept });
    await store.put("model", { round: 3 });
    await store.put("task", first);
    let asked = 0;
    const issue = async () => ({ certificate: toBase64Url(certificate), asked: ++asked });
    const enrolment = { task_id: "t_later", client_id: "c_9", token: "hrt_y", role: "member" };
    const given = { organiser: pin, policy: AGREED, issue, after: first.task_id };
    const requests = answering(offer(later), [201, JSON.stringify(enrolment)], offer(later));
    const { membership, terms } = await join(new Api("http://localhost:1"), store, given);
    assert.deepEqual([asked, terms.id, membership.past], [issued, "t_later", [first.task_id]]);
    const sent = JSON.parse(new TextDecoder().decode(requests[1].body));
    assert.deepEqual([sent.invitation, sent.certificate], ["t_later", toBase64Url(certificate)]);
    assert.equal(await store.get("model"), null);
    answering(offer(later)); // it has gone on already
    assert.deepEqual((await join(new Api("http://localhost:1"), store, { ...given, shown: later })).membership, membership);
    answering();
    const shown = changed("schedule.rounds", later.schedule.rounds + 1, later);
    await assert.rejects(join(new Api("http://localhost:1"), store, { ...given, shown }), { name: "RefusalError", message: /than those that were shown/ });
  }
});

/** A store with a membership of TASK, certified by an organiser of its own, and `task` and `given` for this organiser. */
async function certified() {
  const [organiser, store] = [await newIdentity(), await member()];
  const pin = { key: toBase64Url(organiser.identityKey), scope: "films" };
  const task = (id, follows) => changed("organiser", pin, changed("schedule.follows", follows, changed("task_id", id)));
  const { identityKey, mailboxKey } = await store.get("identity");
  const certificate = await certificateOf(organiser, identityKey, mailboxKey);
  const { bound: agreed } = readTask(changed("organiser", pin), { organiser: pin, policy: AGREED });
  await store.put("membership", { ...(await store.get("membership")), agreed, certificate });
  const given = { organiser: pin, policy: { ...AGREED, follow: true }, issue: () => assert.fail("asked for a certificate") };
  return { store, task, given, over: changed("state", "complete", changed("organiser", pin)) };
}
const enrolledIn = (task) => [201, JSON.stringify({ task_id: task.task_id, client_id: "c_1", token: "hrt_y", role: "member" })];

test("attack: a server leads a client back to a task whose signed messages it no longer knows", async () => {
  const { store, task, given, over } = await certified();
  const [api, home, away] = [new Api("http://localhost:1"), task(TASK.task_id, "t_b"), task("t_b", TASK.task_id)];
  await store.put("signed", { step: 1 });
  answering(offer(over), offer(away), enrolledIn(away), offer(away));
  assert.deepEqual((await join(api, store, given)).membership.past, [TASK.task_id]);
  assert.equal(await store.get("signed"), null);
  await store.put("signed", { step: 2 });
  const before = await store.get("membership");
  const reasons = [];
  const requests = answering(offer(changed("state", "complete", away)), offer(home), offer(home), offer(home));
  const kept = await join(api, store, { ...given, notFollowed: (reason) => reasons.push(reason) });
  const left = { name: "RefusalError", message: /has left task/ };
  await assert.rejects(join(api, store, { ...given, policy: AGREED, after: "t_b" }), left);
  await assert.rejects(following(api, store, given), left);
  assert.deepEqual([kept.membership, reasons.length, sentTo(requests).some((sent) => sent.startsWith("POST"))], [before, 1, false]);
  // and by an invitation at another address
  answering(offer(home));
  await assert.rejects(join(new Api("http://localhost:2"), store, { ...given, invitation: "hri_x" }), left);
  assert.deepEqual([await store.get("membership"), await store.get("signed")], [before, { step: 2 }]);
});

test("attack: a server names another task, or other terms, than those that the user agreed to", async () => {
  const { store, task, given } = await certified();
  const [api, shown] = [new Api("http://localhost:1"), task("t_b", TASK.task_id)];
  const [before, after] = [await store.get("membership"), TASK.task_id];
  for (const other of [task("t_c", TASK.task_id), changed("schedule.rounds", shown.schedule.rounds + 1, shown)]) {
    const requests = answering(offer(other));
    await assert.rejects(join(api, store, { ...given, after, shown }), { name: "RefusalError", message: /than those that were shown/ });
    assert.deepEqual([requests.length, await store.get("membership")], [1, before]);
  }
  await assert.rejects(join(api, store, { ...given, shown }), { name: "ParameterError", message: /after or invitation/ });
  answering(offer(shown), enrolledIn(shown), offer(shown));
  assert.equal((await join(api, store, { ...given, after, shown })).terms.id, "t_b");
});

test("an invitation joins the task that was shown, or nothing", async () => {
  const { task, given } = await certified();
  const [url, api, offered] = ["http://localhost:1", new Api("http://localhost:1"), task("t_b", TASK.task_id)];
  const policy = AGREED;
  let requests = answering(offer(offered));
  const shown = await Participant.preview({ url, invitation: "hri_x", organiser: given.organiser, policy });
  assert.deepEqual([shown, sentTo(requests)], [offered, ["GET /v1/enrolments/task"]]);
  const store = new MemoryStore();
  for (const other of [task("t_c", TASK.task_id), changed("schedule.rounds", shown.schedule.rounds + 1, shown)]) {
    requests = answering(offer(other));
    const refused = { name: "RefusalError", message: /than those that were shown/ };
    await assert.rejects(join(api, store, { ...given, policy, invitation: "hri_x", shown }), refused);
    assert.deepEqual([sentTo(requests), (await store.get("membership")) ?? null], [["GET /v1/enrolments/task"], null]);
  }
  const { store: certifiedStore } = await certified();
  await store.put("identity", await certifiedStore.get("identity"));
  const issue = async () => Promise.reject(new Error("asked for a certificate"));
  answering(offer(shown));
  await assert.rejects(join(api, store, { ...given, policy, issue, invitation: "hri_x", shown }), { message: "asked for a certificate" });
});

test("8 MB of base64 are decoded, and refused with a letter of another alphabet", () => {
  const [text, refused] = ["AAAA".repeat(2_000_000), { name: "CodecError" }];
  assert.equal(fromBase64(text).length, 6_000_000);
  assert.equal(fromBase64Url(text).length, 6_000_000);
  assert.equal(fromHex("00".repeat(4_000_000)).length, 4_000_000);
  for (const wrong of [text.slice(1), text + "AA=A", text + "A===", text + "====", text + "AB==", text + "A*AA"]) assert.throws(() => fromBase64(wrong), refused);
  for (const wrong of [text + "A", text + "AB", text + "AA==", text + "A+AA"]) assert.throws(() => fromBase64Url(wrong), refused);
  for (const wrong of ["0", "0g", "0A"]) assert.throws(() => fromHex(wrong), refused);
});

test("a client of a finished task can be opened, whatever keeps it from the one that follows", async () => {
  const { store, task, given, over } = await certified();
  const [api, later] = [new Api("http://localhost:1"), task("t_b", TASK.task_id)];
  const before = await store.get("membership");
  const uncertified = { ...before, certificate: undefined };
  const refused = [403, problem("forbidden"), PROBLEM];
  const foreign = { certificate: toBase64Url(await certificateOf(await newIdentity(), utf8("a"), utf8("b"))) };
  for (const [membership, issue, answers, reason] of [
    [before, given.issue, [refused], /forbidden/],
    [before, given.issue, [offer(later), refused], /forbidden/],
    [before, given.issue, [offer(later), enrolledIn(task("t_c"))], /another task/],
    [before, given.issue, [[200, "{}"]], /another form at task_id/],
    [uncertified, async () => foreign, [offer(later)], /the organiser did not sign/],
    [uncertified, async () => Promise.reject(new Error("the login is down")), [offer(later)], /the login is down/],
  ]) {
    await store.put("membership", membership);
    const reasons = [];
    const requests = answering(offer(over), ...answers);
    const joined = await join(api, store, { ...given, issue, notFollowed: (why) => reasons.push(why) });
    assert.deepEqual([joined.membership, joined.terms.id, requests.length], [membership, TASK.task_id, 1 + answers.length]);
    assert.match(reasons.join(), reason);
  }
  const stop = AbortSignal.abort(new Error("stopped"));
  await assert.rejects(join(api, store, { ...given, signal: stop }), { message: "stopped" });
});

test("a server that does not answer is waited for until the client stops", async () => {
  globalThis.fetch = async () => {
    throw new TypeError("fetch failed");
  };
  const stop = new AbortController();
  const api = new Api("http://localhost:1", { unreachable: () => stop.abort() });
  await assert.rejects(api.get("/v1/tasks/t", "task", { signal: stop.signal }), { name: "AbortError" });
});

test("a revocation list never goes back, in this task or another one, also after a restart", async () => {
  const organiser = await newIdentity();
  const pin = { key: toBase64Url(organiser.identityKey), scope: "films" };
  const list = async (issuedAt, ...serials) => {
    const bytes = concat(...serials.map((serial) => littleEndian(serial, 8)));
    const signature = await sign(organiser.signing, tag("revoked certificates", pin.scope, BigInt(issuedAt), bytes));
    return concat(littleEndian(issuedAt, 8), littleEndian(serials.length, 4), bytes, signature);
  };
  const [api, store] = [new Api("http://localhost:1"), new MemoryStore()];
  const refreshed = async (body, id = "t_1") => {
    const stated = body && { "content-digest": `sha-256=:${toBase64(await sha256(body))}:` };
    answering(body ? [200, body, stated] : [404, problem("not-found"), PROBLEM]);
    return refreshRevocations(api, store, { id, organiser: pin });
  };
  assert.deepEqual(await refreshed(null), new Set());
  assert.deepEqual(await refreshed(await list(1000, 7, 9)), new Set([7n, 9n]));
  for (const body of [await list(999, 7, 9, 11), await list(1000, 7), null]) {
    for (const id of ["t_1", "t_2"]) await assert.rejects(refreshed(body, id), { name: "CertificateError" });
  }
  assert.deepEqual(await refreshed(await list(1000, 7, 9)), new Set([7n, 9n]));
  assert.deepEqual(await refreshed(await list(1001, 9)), new Set([9n])); // 7 has expired
});

test("a stale signature is made again with the server's clock", async () => {
  const { signing } = await newIdentity();
  const later = Math.floor(Date.now() / 1000) + 5000;
  const stale = [401, problem("stale-signature", { server_time: later }), PROBLEM];
  const requests = answering(stale, [200, "{}"], [200, "{}"]);
  const api = new Api("http://localhost:1").enrolled("c_1", signing, "hrc_1");
  await api.get("/v1/tasks/t", "task");
  await api.get("/v1/tasks/t", "task");
  const created = requests.map(({ headers }) => Number(/created=(\d+)/.exec(headers["signature-input"])[1]));
  assert.ok(created[0] < later - 4000 && created[1] >= later && created[2] >= later);
});

test("downloads that were altered, or are too long, are refused", async () => {
  const api = new Api("http://localhost:1");
  const right = { "content-digest": await digestOf("model") };
  answering([200, "model", right], [200, "modem", right], [200, "model"], [200, "model", right], [200, "model", right]);
  assert.deepEqual(await api.bytes("/m", "model", { most: 5 }), utf8("model"));
  await assert.rejects(api.bytes("/m", "model", { most: 5 }), { name: "CodecError" });
  await assert.rejects(api.bytes("/m", "model", { most: 5 }), { name: "CodecError" });
  await assert.rejects(api.bytes("/m", "model", { most: 4 }), { name: "CodecError" });
  await assert.rejects(api.bytes("/m", "model", { most: 5, digest: new Uint8Array(32) }), { name: "CodecError" });
});

test("addresses without https are refused, except on this machine", () => {
  assert.equal(baseUrl("https://a.example/b/"), "https://a.example/b");
  assert.equal(baseUrl("http://127.0.0.1:8000"), "http://127.0.0.1:8000");
  assert.throws(() => baseUrl("http://a.example"), { name: "CodecError" });
});

/** A complete round of `terms` whose sum is zero, its aggregate, and the model after it if that was `before` it. */
async function completed(terms, number, before, chain, edit = (body) => body) {
  const { bits, length } = terms.planAt(number);
  const sum = packElements(new Array(length).fill(0n), bits);
  const state = await absorb(terms.recipe, terms.parameters, before, new Array(length).fill(0), 10, await roundSeed(terms.seed, number));
  const body = edit(encodeState(state));
  const [aggregate_digest, state_digest] = [toHex(await sha256(sum)), toHex(await sha256(body))];
  const view = { number, step: number, survivors: 10, aggregate_digest, state_digest, aggregate_chain: toHex(chain) };
  const { items, dim } = terms.parameters;
  const after = await nextChain(chain, number, fromHex(aggregate_digest), fromHex(state_digest));
  return { view, sum, body, state: decodeState(body, items, dim, false), chain: after };
}

/** Two complete rounds of an honest server; `edit` changes the bytes of its model after the second. */
async function history(terms, edit) {
  const { items, dim } = terms.parameters;
  const start = { factors: await initialFactors(terms.seed, items, dim), counts: null, clients: 0 };
  const first = await completed(terms, 1, start, await firstChain(terms.id));
  return [first, await completed(terms, 2, first.state, first.chain, edit)];
}

const listed = (...rounds) => [200, JSON.stringify({ rounds: rounds.map(({ view }) => view), more: false })];
const download = async (body) => [200, body, { "content-digest": `sha-256=:${toBase64(await sha256(body))}:` }];
const follower = (terms, store = new MemoryStore()) => ({ api: new Api("http://localhost:1"), store, terms });
const paths = (requests) => requests.map(({ url }) => new URL(url).pathname.split("/").slice(4).join("/"));

test("the model is the seed's, or computed from the sum of the newest complete round", async () => {
  const terms = readTask(TASK, { organiser: ORGANISER, policy: AGREED });
  const [first, second] = await history(terms);
  const client = follower(terms);
  answering(listed());
  const start = await fetchModel(client, 1);
  assert.deepEqual([start.round, start.digest, start.chain], [0, null, await firstChain(terms.id)]);
  let requests = answering(listed(first), await download(first.sum));
  const model = await fetchModel(client, 2);
  assert.deepEqual([toHex(model.digest), model.chain, model.state], [first.view.state_digest, first.chain, first.state]);
  assert.deepEqual(paths(requests), ["rounds", "rounds/1/aggregate"]); // the server's model is of no use
  requests = answering(listed(second), await download(second.sum));
  assert.deepEqual((await fetchModel(client, 3)).chain, second.chain);
  requests = answering(listed());
  assert.equal((await fetchModel(client, 3)).round, 2); // kept
  assert.deepEqual(paths(requests), ["rounds"]);
});

const nudged = (by) => (body) => {
  const floats = new Float32Array(body.slice().buffer);
  floats[3] += by * floats.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
  return new Uint8Array(floats.buffer);
};

test("a model of the server that differs in rounding is adopted, any other is refused", async () => {
  const terms = readTask(TASK, { organiser: ORGANISER, policy: AGREED });
  for (const [edit, isTrue] of [[nudged(5e-6), true], [nudged(5e-5), false], [(body) => body.fill(0), false]]) {
    const [first, second] = await history(terms, edit);
    const client = follower(terms);
    answering(listed(first), await download(first.sum));
    await fetchModel(client, 2);
    const requests = answering(listed(second), await download(second.sum), await download(second.body));
    const model = fetchModel(client, 3);
    if (isTrue) assert.deepEqual((await model).state, second.state);
    else await assert.rejects(model, { name: "FalseModelError" });
    assert.deepEqual(paths(requests), ["rounds", "rounds/2/aggregate", "snapshots/2"]);
    assert.equal((await client.store.get("model")).round, isTrue ? 2 : 1);
  }
});

test("a client that missed rounds needs the statements of enough members", async () => {
  const keys = await newIdentity();
  const pin = { key: toBase64Url(keys.identityKey), scope: "films" };
  const terms = readTask({ ...TASK, organiser: pin }, { organiser: pin, policy: AGREED });
  const [first, second] = await history(terms);
  const needed = terms.task.schedule.min_clients;
  const member = async (index, chain, signer = keys.signing) => {
    const { identityKey, mailboxKey, signing } = await newIdentity();
    const [serial, notAfter, id] = [BigInt(index), BigInt(2 ** 40), `c_${String(index).padStart(20, "0")}`];
    const signature = await sign(signer, tag("membership certificate", "films", "member", identityKey, mailboxKey, serial, notAfter));
    const certificate = concat(littleEndian(0, 1), littleEndian(serial, 8), littleEndian(notAfter, 8), signature);
    const fields = { "aggregate-chain": toHex(chain) };
    const path = `/v1/tasks/${terms.id}/rounds/2/contributions/${id}`;
    const signed = await signRequest(signing, id, { method: "PUT", authority: "a.example", path, query: "", fields }, 1000);
    const own = { client_id: id, method: "PUT", authority: "a.example", fields, signature: signed.signature };
    const [identity_key, mailbox_key] = [toBase64Url(identityKey), toBase64Url(mailboxKey)];
    return { ...own, signature_input: signed["signature-input"], identity_key, mailbox_key, certificate: toBase64Url(certificate) };
  };
  const honest = await Promise.all(Array.from({ length: needed }, (_, i) => member(i, first.chain)));
  const strangers = await newIdentity();
  const stranger = await member(90, first.chain, strangers.signing);
  for (const [attestations, isEnough] of [
    [honest, true],
    [honest.slice(1), false],
    [[...honest.slice(1), stranger], false], // not certified
    [[...honest.slice(1), honest[1]], false], // one member twice
    [[...honest.slice(1), await member(91, second.chain)], false], // another model
  ]) {
    const client = follower(terms);
    const page = [200, JSON.stringify({ attestations, more: false })];
    const requests = answering(listed(first, second), await download(first.body), page, await download(second.sum));
    const model = fetchModel(client, 3);
    if (isEnough) assert.deepEqual((await model).chain, second.chain);
    else await assert.rejects(model, { name: "NotAttestedError" });
    assert.deepEqual(paths(requests).slice(0, 3), ["rounds", "snapshots/1", "rounds/2/attestations"]);
    assert.equal(Boolean(await client.store.get("model")), isEnough);
  }
});

test("training raises the liked items above the others", () => {
  let at = 0;
  const uniform = () => ((at = (at * 16807 + 12345) % 2147483647), at / 2147483647);
  const factors = Array.from({ length: 30 }, () => Array.from({ length: 4 }, () => uniform() - 0.5));
  const [liked, state, settings] = [[1, 2, 3], { factors, counts: null }, { ...TRAINING, epochs: 20 }];
  const first = train({ state, projection: null, user: [0.1, 0.2, 0.3, 0.4], liked, settings: TRAINING, uniform });
  const last = train({ state, projection: null, user: first.user, liked, settings, uniform });
  assert.ok(last.loss < first.loss);
  assert.equal(topItems(state, last.user, liked, 5).length, 5);
  assert.ok(topItems(state, last.user, liked, 27).every(({ item }) => !liked.includes(item)));
  assert.throws(() => train({ state, projection: null, user: first.user, liked: [], settings, uniform }), { name: "PolicyError" });
});

/** The events of a client that is asked for round 2 as sum `step`, and what it requests. complete: rounds so far. */
async function asked(take, task, { step, counted, liked, complete }) {
  const counting = stating("recipe", "item_bias", "counts", task);
  counting.resolved.main_sum.sum_index = 2;
  const terms = readTask(counting, { organiser: counting.organiser, policy: AGREED });
  const store = new MemoryStore();
  if (counted !== undefined) await store.put("own", { user: new Float32Array(8), counted });
  const { items, dim } = terms.parameters;
  const body = new Uint8Array(4 * items * dim + 4 * (items + 1));
  if (complete) await store.put("model", { round: complete, body, chain: new Uint8Array(32) });
  const [seed, page] = [await roundSeed(terms.seed, 2), JSON.stringify({ rounds: [], more: false })];
  const requests = answering([200, page, { "content-digest": await digestOf(page), "content-type": "application/json" }]);
  const view = { number: 2, step, state: "collecting", cohort: 12, seed: toBase64Url(seed), contribution_bytes: null };
  const api = new Api("http://127.0.0.1:1", { pause: async () => {} });
  const client = { api, store, terms, membership: { client: "c_1" }, identity: null, revoked: new Set(), uniform: Math.random };
  await assert.rejects(take(client, { ...view, state: take === takeMaskedPart ? "advertising" : "collecting" }, liked, () => {}), (error) => {
    assert.equal(error.name, "AbstainedError", error.stack);
    return true;
  });
  return requests.map(({ method, url }) => [method ?? "GET", new URL(url).pathname]);
}

for (const [what, details] of [
  ["has no items", { step: 1, liked: [], complete: 0 }],
  ["was counted in another sum", { step: 1, counted: 3, liked: [0], complete: 0 }],
  ["knows that the sum was released", { step: 1, counted: 1, liked: [0], complete: 1 }],
  ["would train on nothing", { step: 2, counted: 1, liked: [], complete: 1 }],
]) {
  for (const [take, task] of [[takeOneshotPart, TASK], [takeMaskedPart, MASKED]]) {
    test(`a client that ${what} abstains before it sends anything (${task.mechanism.name})`, async () => {
      assert.deepEqual(await asked(take, task, details), [["GET", `/v1/tasks/${task.task_id}/rounds`]]);
    });
  }
}

test("without its own consent a client refuses tasks in which only trust in the server's models protects", () => {
  for (const task of [TASK, MASKED]) {
    const organiser = task.organiser;
    assert.throws(() => readTask(task, { organiser }), { name: "PolicyError", message: /trustModels: true/ });
    assert.ok(readTask(task, { organiser, policy: AGREED }));
    const noisy = { ...task, privacy: { epsilon: 4 } };
    assert.throws(() => readTask(noisy, { organiser, policy: AGREED }), { name: "PolicyError", message: /adds no noise/ });
  }
});

test("a model that no sums of the task make is refused, whoever states it", async () => {
  const terms = readTask(TASK, { organiser: ORGANISER, policy: AGREED });
  const large = (body) => encodeFloats(new Float32Array(body.slice().buffer).map((x, i) => (i === 0 ? 3e38 : x)));
  const { items, dim } = terms.parameters;
  const start = { factors: await initialFactors(terms.seed, items, dim), counts: null, clients: 0 };
  const first = await completed(terms, 1, start, await firstChain(terms.id), large);
  const second = await completed(terms, 2, first.state, first.chain);
  const client = follower(terms);
  const requests = answering(listed(first, second), await download(first.body));
  await assert.rejects(fetchModel(client, 3), { name: "FalseModelError", message: /item 0 .* larger than sums/ });
  assert.deepEqual(paths(requests), ["rounds", "snapshots/1"]);
});

const encodeFloats = (floats) => new Uint8Array(floats.buffer);

test("training that fails, or sits at the clip, sends zeros and tells the device alone", async () => {
  const terms = readTask(TASK, { organiser: ORGANISER, policy: AGREED });
  const round = { step: 1, seed: await roundSeed(terms.seed, 1), plan: terms.planAt(1) };
  const { items, dim } = terms.parameters;
  const usual = await initialFactors(terms.seed, items, dim);
  const made = (value) => ({ factors: usual.map((row, item) => (item === 3 ? row.map(() => value) : row)), counts: null, clients: 0 });
  for (const [value, liked, fails] of [[0.1, [3, 5], false], [1e300, [3, 5], true], [1e7, [3, 5], true]]) {
    const store = new MemoryStore();
    await store.put("own", { user: new Array(dim).fill(0.1), counted: 0 });
    const work = await localWork({ store, terms, uniform: Math.random }, round, made(value), liked);
    assert.equal(work.failure !== null, fails, `${value}: ${work.failure}`);
    assert.equal(work.steps.length, terms.planAt(1).length);
    assert.equal(work.steps.every((step) => step === 0), fails);
    const { user } = await store.get("own");
    assert.equal(user.every((x) => x === 0.1), fails); // a failed training leaves the client as it was
  }
});

/** The value with one part replaced, for each part: what may come from a server that lies or is broken. */
function* replaced(value) {
  yield* [null, 7, "x", [null]];
  if (value === null || typeof value !== "object") return;
  for (const [key, part] of Object.entries(value)) {
    for (const other of replaced(part)) yield Array.isArray(value) ? value.with(Number(key), other) : { ...value, [key]: other };
  }
}

test("attack: an answer with any part replaced is refused by name, or read as it is", async () => {
  const errors = ["CodecError", "PolicyError", "RefusalError", "ParameterError", "FalseModelError", "ApiError"];
  const api = new Api("http://localhost:1");
  const count = { read: 0, refused: 0 };
  const attempt = async (read) => {
    try {
      await read();
      count.read++;
    } catch (error) {
      assert.ok(errors.includes(error.name), error.stack);
      count.refused++;
    }
  };
  for (const from of [TASK, MASKED]) {
    for (const task of replaced(from)) await attempt(() => readTask(task, { organiser: from.organiser, policy: AGREED }));
  }
  const terms = readTask(TASK, { organiser: ORGANISER, policy: AGREED });
  const round = { number: 1, step: 1, cohort: 24, state: "collecting", seed: toBase64Url(await roundSeed(terms.seed, 1)), in_cohort: true, committee_keys: null };
  for (const view of replaced(round)) {
    answering([200, JSON.stringify(view)]);
    await attempt(async () => readRound(terms, (await api.get("/v1/tasks/t/rounds/current", "round", { form: ROUND })).json));
  }
  const [{ view, sum, body }] = await history(terms);
  for (const page of replaced({ rounds: [view], more: false })) {
    answering([200, JSON.stringify(page)], await download(sum), await download(body));
    await attempt(() => fetchModel(follower(terms), 2));
  }
  assert.ok(count.read > 100 && count.refused > 500, JSON.stringify(count));
});
