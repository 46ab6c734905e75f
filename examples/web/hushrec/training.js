/** Local training of CoLR and FedMF, and scores: what client_sdk/training computes. Nothing here sends anything. */

import { PolicyError } from "./errors.js";
import { completed } from "./labels.js";

/** Settings where the task states none: those of the released CoLR code (client_sdk/training/mf.py). */
export const TRAINING = { learning_rate: 0.5, epochs: 2, batch_size: 256, weight_decay: 5e-4, negatives: 4 };

export const settingsOf = (parameters) =>
  Object.fromEntries(Object.entries(TRAINING).map(([name, usual]) => [name, parameters[name] ?? usual]));

/** Uniform numbers in [0, 1) with 32 bits from the browser's generator; fills a buffer at a time. */
export function secureUniform() {
  const buffer = new Uint32Array(1024);
  let at = buffer.length;
  return () => {
    if (at === buffer.length) {
      crypto.getRandomValues(buffer);
      at = 0;
    }
    return buffer[at++] / 2 ** 32;
  };
}

/** N(0, 1/dim), dim values. */
export function randomUser(dim, uniform) {
  const one = () => Math.sqrt(-2 * Math.log(1 - uniform())) * Math.cos(2 * Math.PI * uniform());
  return Array.from({ length: dim }, () => one() / Math.sqrt(dim));
}

const dot = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);

/** b_i = ln((c_i + 1) / (mean(c) + 1)); null without counts. */
export function biases(counts) {
  if (!counts) return null;
  const mean = counts.reduce((sum, count) => sum + count, 0) / counts.length;
  return counts.map((count) => Math.log((count + 1) / (mean + 1)));
}

/** [item, label] pairs: each liked item, and for each some items that are not, all equally likely. */
function drawSamples(liked, items, negatives, uniform) {
  const own = new Set(liked);
  const others = Array.from({ length: items }, (_, item) => item).filter((item) => !own.has(item));
  if (!liked.length || !others.length) throw new PolicyError("like at least one item, and not all of them");
  const drawn = Array.from({ length: liked.length * negatives }, () => [others[Math.floor(uniform() * others.length)], 0]);
  return [...liked.map((item) => [item, 1]), ...drawn];
}

function shuffle(list, uniform) {
  for (let i = list.length - 1; i > 0; i--) {
    const j = Math.floor(uniform() * (i + 1));
    [list[i], list[j]] = [list[j], list[i]];
  }
  return list;
}

/** Residuals of a batch by item, and the gradient of p. Adds to `work.loss`. */
function batchGradient(work, taken) {
  const { p, rows, place, bias, negatives, samples } = work;
  const residuals = new Map();
  const gradient = new Array(p.length).fill(0);
  for (const [item, label] of taken) {
    const row = rows[place.get(item)];
    const logit = dot(row, p) + (bias ? bias[item] - Math.log(negatives) : 0);
    const residual = 1 / (1 + Math.exp(-logit)) - label;
    work.loss += (Math.max(logit, 0) + Math.log1p(Math.exp(-Math.abs(logit))) - label * logit) / samples.length;
    row.forEach((x, j) => (gradient[j] += (residual * x) / taken.length));
    if (!residuals.has(item)) residuals.set(item, []);
    residuals.get(item).push(residual);
  }
  return { residuals, gradient };
}

/** Moves the rows of a batch: by a row of A times B for CoLR, freely for FedMF. */
function moveRows({ p, rows, low, place, projection }, residuals, rate, decay) {
  for (const [item, own] of residuals) {
    const at = place.get(item);
    const mean = own.reduce((sum, x) => sum + x, 0) / own.length;
    const full = rows[at].map((x, j) => mean * p[j] + 2 * decay * x);
    const change = (projection ? projection.map((b) => dot(b, full)) : full).map((x) => -rate * x);
    change.forEach((x, c) => (low[at][c] += x));
    rows[at] = rows[at].map((x, j) => x + (projection ? change.reduce((sum, y, c) => sum + y * projection[c][j], 0) : change[j]));
  }
}

/**
 * One round of training. state: {factors, counts}. projection: rows of B for CoLR, null for FedMF. user: factor p.
 * frozen: whether the items keep their factors. Returns {user, items, rows, loss, samples}: rows of A, or changes of the
 * factors, of the items in the samples. The steps are those of client_sdk/training/mf.py and lowrank.py.
 */
export function train({ state, projection, user, liked, settings, uniform, frozen = false }) {
  const { learning_rate: rate, epochs, batch_size: batch, weight_decay: decay, negatives } = settings;
  const samples = drawSamples(liked, state.factors.length, negatives, uniform);
  const items = [...new Set(samples.map(([item]) => item))].sort((a, b) => a - b);
  const width = projection?.length ?? user.length;
  const work = {
    ...{ p: [...user], rows: items.map((item) => state.factors[item]), low: items.map(() => new Array(width).fill(0)) },
    ...{ place: new Map(items.map((item, at) => [item, at])), bias: biases(state.counts) },
    ...{ projection, negatives, samples, loss: 0 },
  };
  for (let epoch = 0; epoch < epochs; epoch++) {
    work.loss = 0;
    shuffle(samples, uniform);
    for (let start = 0; start < samples.length; start += batch) {
      const { residuals, gradient } = batchGradient(work, samples.slice(start, start + batch));
      if (!frozen) moveRows(work, residuals, rate * Math.sqrt(width / user.length), decay);
      work.p = work.p.map((x, j) => x - rate * (gradient[j] + 2 * decay * x));
    }
  }
  if (![...work.p, ...work.low.flat()].every(Number.isFinite)) throw new PolicyError("training diverged");
  return { user: work.p, items, rows: work.low, loss: work.loss, samples: samples.length };
}

/** The user factor that fits the liked items best while the items stay as they are: for recommendations only. */
export function fitUser({ state, user, liked, settings, uniform, rounds = 2 }) {
  let p = user;
  for (let i = 0; i < rounds; i++) p = train({ state, projection: null, user: p, liked, settings, uniform, frozen: true }).user;
  return p;
}

const LEAST_OWNERS = 5;

/**
 * The `count` best items that are not among the liked ones: [{item, score}], best first. labels: of each item, from
 * `decodeCatalogue`; they predict the scores of items that fewer than five clients have.
 */
export function topItems({ factors, counts }, user, liked, count, labels) {
  const own = new Set(liked);
  const bias = biases(counts);
  const made = factors.map((row, item) => dot(row, user) + (bias?.[item] ?? 0));
  const known = counts?.map((owners) => owners >= LEAST_OWNERS);
  const scored = (labels && known ? completed(made, known, labels) : made).map((score, item) => ({ item, score }));
  return scored.filter(({ item }) => !own.has(item)).sort((a, b) => b.score - a.score || a.item - b.item).slice(0, count);
}
