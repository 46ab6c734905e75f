/** Vectors of a privacy block, by an implementation of its own that follows docs/wire/privacy.md: no client needs it. */

import { fromHex, toHex } from "../../examples/web/hushrec/codec.js";
import { digest } from "../../examples/web/hushrec/domain.js";
import { near, same } from "./checks.mjs";

const ENDLESS = 1n << 300n;

/** floor(2^127 Pr[|X| <= k]) of the Skellam variable, by Miller's recurrence in whole numbers of 2^-300. */
function table(variance) {
  let denominator = 1n;
  while (!Number.isInteger(variance)) [variance, denominator] = [variance * 2, denominator * 2n];
  const numerator = BigInt(variance);
  const size = Number(variance) / Number(denominator);
  let [above, here] = [0n, ENDLESS];
  const weights = [];
  for (let k = Math.ceil(14 * Math.sqrt(size)) + 80; k > 0; k--) {
    weights.unshift(2n * here);
    [above, here] = [here, above + (2n * BigInt(k) * denominator * here) / numerator];
  }
  weights.unshift(here);
  const whole = weights.reduce((sum, one) => sum + one);
  let reached = 0n;
  return weights.map((one) => ((reached += one) << 127n) / whole).filter((entry) => entry < (1n << 127n) - 1n);
}

async function source(secret) {
  const key = await crypto.subtle.importKey("raw", secret, "AES-CTR", false, ["encrypt"]);
  const counter = { name: "AES-CTR", counter: new Uint8Array(16), length: 128 };
  const stream = new Uint8Array(await crypto.subtle.encrypt(counter, key, new Uint8Array(1 << 16)));
  let used = 0;
  return (count) => stream.slice(used, (used += count));
}

const fromLabel = async (label) => source(await digest("vector privacy", label));

function words(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  return Array.from({ length: bytes.length / 8 }, (_, i) => view.getBigUint64(8 * i, true));
}

/** Samples of `count` words of `random`, and of a second word for those with the last 20 bits of an entry's first word. */
function samples(random, count, entries) {
  const first = words(random(8 * count));
  const near = new Set(entries.map((entry) => (entry >> 64n) & 0xfffffn));
  const needs = first.map((word) => near.has((word >> 1n) & 0xfffffn));
  const second = words(random(8 * needs.filter((needed) => needed).length));
  return first.map((word, i) => {
    const value = ((word >> 1n) << 64n) | (needs[i] ? second.shift() : 0n);
    const size = entries.filter((entry) => value >= entry).length;
    return word & 1n && size ? -size : size;
  });
}

/** A source that gives the bytes of `parts`, one after the other. */
function given(...parts) {
  const bytes = parts.flatMap((part) => [...part]);
  return (count) => Uint8Array.from(bytes.splice(0, count));
}

/** Whole numbers as 16 bytes each, little-endian. */
const long = (entries) => new Uint8Array(new BigUint64Array(entries.flatMap((one) => [one & (2n ** 64n - 1n), one >> 64n])).buffer);

const norm = (values) => Math.sqrt(values.reduce((sum, value) => sum + value * value, 0));

function longest(bound, fractions) {
  if (!fractions) return bound;
  const inside = bound ** 2 - (Math.sqrt(fractions) / 2 + 0.5) ** 2 + 0.5;
  return inside > 0 ? Math.sqrt(inside) - 0.5 : -1;
}

/** {steps, scale}, or null where the bound cannot be kept. */
function rounded(values, bound, random) {
  const given = values.filter((value) => value);
  let scale = 1;
  if (norm(given) > longest(bound, given.filter((value) => !Number.isInteger(value)).length)) {
    if (longest(bound, given.length) <= 0) return null;
    scale = Math.min(1, longest(bound, given.length) / norm(given));
  }
  const whole = given.map((value) => Math.floor(value * scale));
  const fractions = given.map((value, i) => value * scale - whole[i]);
  for (let left = fractions.some((one) => one) ? 128 : 1; left; left--) {
    const draws = words(random(8 * given.length)).map((word) => Number(word >> 11n) * 2 ** -53);
    const steps = whole.map((step, i) => step + (draws[i] < fractions[i]));
    if (norm(steps) ** 2 > bound ** 2 * (1 + 2 ** -30)) continue;
    let place = 0;
    return { steps: values.map((value) => (value ? steps[place++] : 0)), scale };
  }
  return null;
}

function curve(orders, l1, l2, m) {
  return orders.map((a) => (a * l2 ** 2) / (2 * m) + Math.min(((2 * a - 1) * l2 ** 2 + 6 * l1) / (4 * m ** 2), (3 * l1) / (2 * m)));
}

function epsilonOf(orders, costs, delta) {
  const each = orders.map((a, i) => costs[i] + Math.log1p(-1 / a) - (Math.log(delta) + Math.log(a)) / (a - 1));
  return Math.max(0, Math.min(...each));
}

function kindOf({ recipe, sum_index: sum, vector }, { most_items: most, clip }) {
  if (recipe === "fedmf" && sum === 1) return { counts: true, l2: Math.sqrt(Math.min(most, vector.length)) };
  const bound = Math.max(64, Math.ceil(3 * Math.sqrt(vector.length)));
  const unit = (recipe === "privirec-k" ? 1 : clip) / bound;
  return { bound, unit, adapts: recipe !== "privirec-k", l2: recipe === "privirec-k" ? bound : Math.hypot(bound, Math.ceil(bound / 10)) };
}

export const RUNNERS = {
  async "privacy.json"({ keystream, sampler, rounding, accountant, contributions }) {
    same(toHex((await source(fromHex(keystream.secret)))(40)), keystream.bytes);

    same(table(sampler.table.variance).map(String), sampler.table.entries);
    for (const one of sampler.cases) {
      const entries = table(one.variance);
      same([entries.length, entries.slice(0, 6).map(String)], [one.entries, one.first]);
      const bytes = long(entries);
      same(toHex(new Uint8Array(await crypto.subtle.digest("SHA-256", bytes))), one.sha256);
      same(toHex((await fromLabel(`sampler ${one.variance}`))(96)), one.words);
      same(samples(given(fromHex(one.words), new Uint8Array(96)), 12, entries), one.samples);
    }

    for (const one of sampler.second_words) {
      const found = samples(given(fromHex(one.words), fromHex(one.second)), one.samples.length, table(one.variance));
      same(found, one.samples);
    }

    for (const { label, values, bound, steps, scale } of rounding.cases) {
      const found = rounded(values, bound, await fromLabel(`rounding ${label}`));
      same(found.steps, steps, label);
      near(found.scale, scale, label);
    }
    same(rounded(Array(100).fill(0.5), 1, await fromLabel("small")), null);
    same(rounded(Array(4).fill(0.5), 1.9, (count) => new Uint8Array(count)), null);

    const { orders, kinds } = accountant;
    for (const { l1, l2, variance, curve: expected, epsilon } of accountant.curves) {
      const found = curve(orders, l1, l2, variance);
      near(found, expected);
      near(epsilonOf(orders, found, 1e-5), epsilon["1 sums, 1e-5"]);
      near(epsilonOf(orders, found.map((one) => 9 * one), 1e-6), epsilon["9 sums, 1e-6"]);
    }
    for (const one of accountant.shares) {
      const cost = (z) => {
        const worst = kinds.map(([l1, l2]) => curve(orders, l1, l2, (z * l2) ** 2));
        return epsilonOf(orders, orders.map((_, i) => one.sums * Math.max(worst[0][i], worst[1][i])), one.delta);
      };
      same([cost(one.multiplier) <= one.epsilon, cost(one.multiplier / 1.00001) > one.epsilon], [true, true]);
      same(one.min_clients - Math.floor(one.corrupt * one.cohort_size), one.honest);
      near(kinds.map(([, l2]) => (one.multiplier * l2) ** 2 / one.honest), one.shares);
      same(kinds.map(([, l2], i) => Math.ceil(l2) + table(one.shares[i]).length), one.largest);
    }

    for (const one of contributions.cases) {
      const random = await source(fromHex(one.secret));
      const { counts, bound, unit, adapts, l2 } = kindOf(one, contributions.privacy);
      near(l2, one.l2);
      const within = norm(one.vector) <= bound * unit;
      const { steps, scale } = counts ? { steps: one.vector, scale: 1 } : rounded(one.vector.map((value) => value / unit), bound, random);
      const all = adapts ? [...steps, within ? Math.ceil(bound / 10) : 0] : steps;
      const entries = table(one.share);
      const noise = samples(random, all.length, entries);
      same(all.map((step, i) => step + noise[i]), one.sent, one.recipe);
      near(scale, one.scaled);
      same([entries.length, Math.ceil(one.l2) + entries.length], [one.entries, one.largest]);
    }
  },
};
