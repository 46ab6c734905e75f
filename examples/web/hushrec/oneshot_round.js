/** One client in one one-shot round: fetch the model, check the committee, train, seal, send one message. */

import { modelDigest } from "./canonical.js";
import { fromBase64Url, toHex } from "./codec.js";
import { AlreadySummedError, RefusalError } from "./errors.js";
import { GAUSSIAN_TABLE } from "./gaussian_table.js";
import { fetchModel } from "./model.js";
import { binding, contribute, decodeKeys, makeCommittee } from "./oneshot.js";
import { deliver, localWork, membershipCheck, randomBytes, requireData } from "./round_work.js";
import { readRound } from "./terms.js";

/**
 * Remembers the committee for this step. Of those that got shares of the same data before, at most 2t - c - corrupt - 1
 * members may be new: then an honest member knows both sums (docs/oneshot.md, "Replace a member").
 */
export async function rememberCommittee(store, { members }, { step, plan }) {
  const own = members.map((member) => toHex(member.identityKey));
  const seen = (await store.get("committees")) ?? { step: 0, committees: [] };
  if (step < seen.step) throw new AlreadySummedError("the server repeats a sum that this client took part in before");
  const earlier = step === seen.step ? seen.committees : [];
  const most = 2 * plan.threshold - plan.committee - plan.corrupt - 1;
  const replaced = earlier.map((before) => own.filter((key) => !before.includes(key)).length);
  if (Math.max(0, ...replaced) > most) throw new RefusalError("too many members of the committee are new since this data was sent");
  await store.put("committees", { step, committees: [...earlier, own] });
}

/**
 * Takes part in the round `view` and returns a report. client: {api, store, terms, membership, identity, revoked,
 * uniform}. tell(stage, details): called when a stage begins. steps of the report: the client's own vector as whole
 * numbers, which never leaves the device in the clear.
 */
export async function takeOneshotPart(client, view, liked, tell, signal) {
  const { api, store, terms, membership, identity } = client;
  const round = await readRound(terms, view);
  const pending = await store.get("pending");
  if (pending?.round === round.number) return { ...(await deliver(client, pending, tell, signal)), resent: true };
  tell("model");
  const { round: modelRound, state, digest, chain } = await fetchModel(client, round.number, signal);
  await requireData(client, round, modelRound, liked);
  tell("committee");
  const context = { ...round.plan, task: terms.id, round: round.number, step: round.step, cohort: round.cohort };
  context.modelDigest = await modelDigest(terms.bound, round.step, digest);
  const bound = await binding(context);
  const keys = decodeKeys(fromBase64Url(view.committee_keys ?? ""));
  const committee = await makeCommittee(context, bound, keys, membershipCheck(client, ["committee"]));
  await rememberCommittee(store, committee, round);
  tell("training");
  const work = await localWork(client, round, state, liked);
  const trained = performance.now();
  tell("sealing");
  const upload = await contribute({
    ...{ context, bound, committee, client: membership.client, identity: identity.signing, steps: work.steps },
    ...{ table: GAUSSIAN_TABLE, random: randomBytes },
  });
  const sealed = performance.now();
  const made = { round: round.number, body: upload.body, chain };
  await store.put("pending", made);
  const sent = await deliver(client, made, tell, signal);
  const times = { train: work.milliseconds, seal: sealed - trained, upload: sent.uploadMilliseconds };
  return { ...sent, step: round.step, cohort: round.cohort, loss: work.loss, samples: work.samples, failure: work.failure, steps: work.steps, times };
}
