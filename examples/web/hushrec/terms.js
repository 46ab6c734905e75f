/**
 * What a client computes itself from a task's JSON, and what it agrees to: CoLR and FedMF with one-shot and masked sums.
 * A server that states something else than follows from the parameters is refused.
 */

import { shaped, TASK } from "./answers.js";
import { boundTerms, canonicalJson } from "./canonical.js";
import { fromBase64Url, toBase64Url } from "./codec.js";
import { PolicyError, RefusalError } from "./errors.js";
import { packedBytes, roundHalfEven, segmentError, segmentScale } from "./fixed_point.js";
import { aggregateBytes } from "./groups.js";
import { roundSeed } from "./recipes.js";
import { chooseRing, coefficientsOf } from "./ring.js";
import { SEALED_OVERHEAD } from "./sealing.js";

/** What this client agrees to by default; see client_sdk/agreement/policy.py for the meaning of the numbers. */
export const POLICY = {
  ...{ minCohort: 3, minBits: 16, mostValues: 2 ** 22, mostEpochs: 20 },
  ...{ minCommittee: 3, minCorruptMembers: 1 },
  ...{ minCorrupt: 0.05, minSigma: 64 },
  maxClipShare: 0.05,
  trustModels: false, // no noise: sums say much to those who know part of a list, and all to a server that lies about the model
  follow: false, // whether `join` enrols in the task that follows one that is over, if all else here allows its terms
};

const RECIPES = { colr: (p) => p.rank, fedmf: (p) => p.dim };
const FACTORS = {
  ...{ items: null, dim: 64, clip: 4, item_bias: "none", count_sums: 1, server_rate: 1 },
  ...{ learning_rate: null, epochs: null, batch_size: null, weight_decay: null, negatives: null },
  ...{ row_clip: 2, start_from: null, start_weight: 16, normalise: null, reveal_touched: false },
};
/** What this client takes where a task states nothing. The server's word would let it choose parameters for one client. */
const DEFAULTS = {
  ...{ colr: { ...FACTORS, row_clip: 1, rank: 4 }, fedmf: FACTORS },
  masked: { bits: 32, mode: "semi-malicious", corrupt: 0.05, dropout: 0.1, sigma: 64, eta: 30, groups: 1, tau: null, spare: 0 },
  oneshot: { bits: 28, committee: 5, corrupt: 1, groups: 1, tau: null },
};

/** Parameters that terms leave out where they say nothing. */
const LEFT_OUT = { masked: { groups: 1, tau: null, spare: 0 }, oneshot: { groups: 1, tau: null } };
/** Where a task has groups and states no other. */
const TAU = 1.5;

function require(condition, message) {
  if (!condition) throw new PolicyError(message);
}

const isCount = (value, least, most) => Number.isSafeInteger(value) && value >= least && value <= most;

/** The layout of a sum: segments of its only block, in order. */
function segmentsOf(width, p, counting) {
  if (counting) return [{ name: "counts", length: p.items, clip: 1, integral: true, row: 1 }];
  const longest = p.row_clip * Math.sqrt(p.items);
  return [{ name: "update", length: p.items * width, clip: p.clip, integral: false, norm: longest, row: width }];
}

/** What the mechanisms need of a sum: `binding` and `contribute` of oneshot.js, and masked_round.js. */
const PLANS = {
  oneshot(length, { bits, committee, corrupt, groups = 1, tau }, cohort) {
    const inGroup = cohort / groups;
    const { degree, primes, per } = chooseRing(bits, length, inGroup, committee);
    const threshold = Math.floor((committee + corrupt) / 2) + 1;
    const uploadBytes = 96 + committee * (4 * degree + SEALED_OVERHEAD) + 4 * primes.length * coefficientsOf(length, bits, per);
    return { committee, corrupt, degree, primes, per, threshold, uploadBytes, groups, tau, inGroup };
  },
  masked: (length, { bits, mode, corrupt, dropout, sigma, eta, groups = 1, tau }, cohort) => {
    const inGroup = cohort / groups;
    return { mode, corrupt, dropout, sigma, eta, uploadBytes: packedBytes(length, bits), groups, tau, inGroup };
  },
};

function planOf(mechanism, segments, parameters, cohort) {
  const { bits, groups = 1, spare = 0 } = parameters;
  const length = segments.reduce((sum, segment) => sum + segment.length, 0);
  const scaled = segments.map((segment) => {
    const scale = segmentScale(bits - spare, segment, cohort / groups);
    return { ...segment, scale, error: segmentError(segment, scale, cohort / groups) };
  });
  return { segments: scaled, length, bits, ...PLANS[mechanism](length, parameters, cohort) };
}

/** Refuses groups that there cannot be. With tau 0 the sums of all are added up, and two are enough. */
function requireGroups(groups, tau) {
  const isSplit = tau === 0 ? isCount(groups, 2, 100) : isCount(groups, 3, 100) && tau >= 1 && tau <= 10;
  require(isSplit || (groups === 1 && tau === undefined), "the task has other groups than this client knows");
}

/** Refuses parameters of a mechanism that are weaker than the policy. */
const CHECKS = {
  oneshot({ bits, committee, corrupt, groups = 1, tau }, policy) {
    requireGroups(groups, tau);
    const fits = isCount(committee, policy.minCommittee, 16) && isCount(corrupt, policy.minCorruptMembers, committee - 1);
    require(fits && isCount(bits, policy.minBits, 52), "the committee or the ring is smaller than this client accepts");
  },
  masked({ bits, mode, corrupt, sigma, dropout, eta, groups = 1, tau, spare = 0 }, policy) {
    require(isCount(spare, 0, Math.min(16, bits - 16)), "the task leaves other bits of the ring free than this client knows");
    requireGroups(groups, tau);
    require(mode === "semi-malicious", `this client takes part in semi-malicious mode, not in ${mode}`);
    require(isCount(bits, policy.minBits, 64), "the ring is smaller than this client accepts");
    const fits = corrupt >= policy.minCorrupt && corrupt < 1 && dropout >= 0 && dropout < 1;
    require(fits && isCount(sigma, policy.minSigma, 80) && isCount(eta, 1, 80), "too few colluding clients are withstood");
  },
};

/** All parameters of a recipe or mechanism: as stated, and this client's defaults. */
export function allParameters({ name, parameters }) {
  const unknown = Object.keys(parameters).find((stated) => !Object.hasOwn(DEFAULTS[name], stated));
  require(!unknown, `this client does not know the parameter ${unknown} of ${name}`);
  const all = { ...DEFAULTS[name], ...parameters };
  if (all.groups > 1) all.tau ??= TAU;
  for (const [left, nothing] of Object.entries(LEFT_OUT[name] ?? {})) if (all[left] === nothing) delete all[left];
  return all;
}

function requireSame(found, stated, what) {
  if (canonicalJson(found) === canonicalJson(stated)) return;
  throw new RefusalError(`the server states another ${what} than the task's parameters give`);
}

/**
 * The terms of a task that this client can and will take part in; `PolicyError` or `RefusalError` otherwise. bound: what
 * masks are bound to, as canonical JSON, and what must not change after a client has joined.
 */
export function readTask(task, { organiser = null, policy = POLICY } = {}) {
  const { recipe, mechanism, resolved } = shaped(task, TASK, "task");
  require(Object.hasOwn(PLANS, mechanism.name), `this client takes part in one-shot and masked sums, not in ${mechanism.name}`);
  require(Object.hasOwn(RECIPES, recipe.name), `this client trains colr and fedmf, not ${recipe.name}`);
  const [p, m] = [allParameters(recipe), allParameters(mechanism)];
  const own = { recipe: { name: recipe.name, parameters: p }, mechanism: { name: mechanism.name, parameters: m } };
  requireSame(own, { recipe: resolved.recipe, mechanism: resolved.mechanism }, "recipe or mechanism");
  require(!p.reveal_touched, "the sums of this task show which items its clients have");
  require(!p.start_from, "this client does not start from another task's model");
  require(!task.evaluation, "this client does not measure models");
  const width = RECIPES[recipe.name](p);
  require(isCount(p.items, 2, policy.mostValues) && isCount(p.dim, 1, 4096) && isCount(width, 1, p.dim), "the model is too large");
  require(p.items * width <= policy.mostValues, `a contribution has more than ${policy.mostValues} values`);
  require((p.epochs ?? 1) <= policy.mostEpochs, `the task trains more than ${policy.mostEpochs} epochs in a round`);
  require(task.schedule.cohort_size % (m.groups ?? 1) === 0, "the cohort cannot be split into equal groups");
  require(task.schedule.min_clients >= policy.minCohort, `a sum may be over fewer than ${policy.minCohort} clients`);
  CHECKS[mechanism.name](m, policy);
  require(organiser, "this client takes part only in tasks with an organiser that it knows");
  require(canonicalJson(task.organiser) === canonicalJson(organiser), "the task has another organiser than this app");
  require(!task.privacy, "this client adds no noise, which the privacy block of this task asks for");
  const reads = "in this task the server computes the model, and the sums have no noise: a server that lies about the model can learn";
  const more = "which items clients have, and whoever knows some of a client's items can learn much of the rest from the sums";
  require(policy.trustModels, `${reads} ${more}. To accept that: policy { ...POLICY, trustModels: true }`);
  const counting = p.item_bias === "counts" ? p.count_sums : 0;
  require(counting === 0 || counting === 1, "the task counts items more than once: a later sum would be over few clients");
  require(!task.data_set, "this client keeps no record over several tasks, which a data set label needs");
  const plans = new Map();
  const planAt = (step) => {
    const counted = step <= counting;
    if (!plans.has(counted)) plans.set(counted, planOf(mechanism.name, segmentsOf(width, p, counted), m, task.schedule.cohort_size));
    return plans.get(counted);
  };
  checkStated(resolved.main_sum, planAt(counting + 1), counting + 1);
  const seed = fromBase64Url(task.seed);
  const id = task.task_id;
  const bound = boundTerms(task, { recipe: p, mechanism: m });
  return { task, bound, id, recipe: recipe.name, mechanism: mechanism.name, parameters: p, width, counting, planAt, seed, policy, organiser };
}

/** Compares what the server states of its main sum with this client's own plan. */
function checkStated({ layout, plan, sum_index: index }, own, main) {
  const ownSegments = own.segments.map(({ name, length, clip, integral, scale }) => [name, length, clip, integral, scale]);
  const stated = layout.blocks.flatMap(({ count, segments }) =>
    segments.map(({ name, length, clip, integral, scale }) => [name, length * count, clip, integral, scale]),
  );
  requireSame([main, ownSegments], [index, stated], "layout");
  if (plan.mechanism === "masked") return requireSame(aggregateBytes(own), plan.aggregate_bytes, "plan");
  const { degree, primes, values_per_coefficient: per, threshold, upload_bytes: uploadBytes } = plan;
  requireSame([own.degree, own.primes, own.per], [degree, primes, per], "ring");
  requireSame([own.threshold, own.uploadBytes], [threshold, uploadBytes], "plan");
}

/** The plan and seed of a round; `RefusalError` for a round that contradicts the terms. */
export async function readRound(terms, view) {
  const { policy, task } = terms;
  if (!isCount(view.number, 1, 2 ** 31) || !isCount(view.step, 1, Math.min(view.number, task.schedule.rounds))) throw new RefusalError("a round out of order");
  if (!isCount(view.cohort, policy.minCohort, task.schedule.cohort_size) || view.cohort < task.schedule.min_clients) {
    throw new RefusalError(`round ${view.number} is over ${view.cohort} clients, which the task does not allow`);
  }
  const seed = await roundSeed(terms.seed, view.number);
  if (view.seed !== toBase64Url(seed)) throw new RefusalError("the round's seed does not follow from the task's");
  const plan = terms.planAt(view.step);
  if (![plan.uploadBytes, null].includes(view.contribution_bytes)) throw new RefusalError("the round asks for another length");
  return { number: view.number, step: view.step, cohort: view.cohort, seed, plan };
}

/** Signed whole numbers of a vector in the segments' fixed point; values must be within their clips. */
export function stepsOf(plan, values) {
  let at = 0;
  return plan.segments.flatMap(({ length, scale, clip }) => {
    const part = values.slice(at, (at += length));
    if (part.length !== length || !part.every((x) => Math.abs(x) <= clip)) throw new RefusalError("a value is not within its clip");
    return part.map((x) => roundHalfEven(x * scale));
  });
}
