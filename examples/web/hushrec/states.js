/** Contributions, absorbed sums and states of arrays, SVD, PFedCLR, Top-K and RFRec, and of evaluated tasks (docs/wire/states.md).
 *
 * p: the task's parameters with their defaults (`resolved`). total: the opened sum. Each `absorb` returns the next state.
 */

import { concat, exact, littleEndian, Reader } from "./codec.js";
import { digest } from "./domain.js";
import { CodecError, ParameterError } from "./errors.js";
import { fromFloats, toFloats } from "./plain.js";
import { normals, permutation, uniforms } from "./random.js";
import { absorbCounts, bounded, decodeState, divisors, eigen, encodeState, product, rint, rowsOf, transposed } from "./recipes.js";

const held = (x, clip) => Math.max(-clip, Math.min(clip, x));
const round32 = Math.fround;
const sum = (values) => values.reduce((all, x) => all + x, 0);

export function finiteFloats(bytes) {
  const values = fromFloats(bytes);
  if (!values.every(Number.isFinite)) throw new CodecError("a model state holds values that are not finite");
  return values;
}

const integers = (bytes) => Array.from({ length: bytes.length / 4 }, (_, i) => new Reader(bytes.slice(4 * i)).number(4));
export const uint32s = (values) => concat(...values.map((value) => littleEndian(value, 4)));

/** Item factors N(0, std^2), flat. */
const drawn = async (seed, p, std) =>
  (await normals(seed, "initial item factors", p.items * p.dim)).map((x) => round32(std * x));

/** Dense values of rows {items, rows}, each value through `change`, and 0 or 1 for each item. */
function dense({ items, rows }, p, change) {
  const values = new Array(p.items * p.dim).fill(0);
  const touched = new Array(p.items).fill(0);
  items.forEach((item, at) => {
    touched[item] = 1;
    rows[at].forEach((x, j) => (values[item * p.dim + j] = change(x)));
  });
  return { values, touched };
}

// --- arrays ---------------------------------------------------------------------------------------------------------

const LONGEST_PIECE = 2 ** 18;
const lengthOf = (shape) => shape.reduce((all, side) => all * side, 1);

/** The segments of the block: {name, length, clip} and, of an array, its shape and whether it is summed by rows. */
export function arraySegments(p) {
  const segments = [];
  for (const name of Object.keys(p.shapes).sort()) {
    const shape = p.shapes[name];
    const byRows = p.rows.includes(name);
    segments.push({ name, length: lengthOf(shape), clip: p.clips[name] ?? p.clip, shape, byRows });
    if (byRows) segments.push({ name: `${name} touched`, length: shape[0], clip: 1 });
  }
  if (p.max_weight !== null) segments.push({ name: " weight", length: 1, clip: 1 });
  return segments;
}

/** update: flat values by name. */
export function arraysContribution(p, update, weight) {
  const names = Object.keys(p.shapes).sort();
  const norm = Math.sqrt(sum(names.flatMap((name) => update[name].map((x) => x * x))));
  const scaled = p.l2_clip !== null && norm > p.l2_clip ? p.l2_clip / norm : 1;
  const share = p.max_weight === null ? 1 : Math.min(weight ?? 1, p.max_weight) / p.max_weight;
  let clipped = 0;
  const vector = arraySegments(p).flatMap(({ name, length, clip, shape }) => {
    if (shape) {
      clipped += update[name].filter((x) => Math.abs(x * scaled) > clip).length;
      return update[name].map((x) => share * held(x * scaled, clip));
    }
    if (name === " weight") return [share];
    const values = update[name.slice(0, -" touched".length)];
    return rowsOf(values, values.length / length).map((row) => (row.some((x) => x !== 0) ? share : 0));
  });
  return { vector, clipped, scaled };
}

const slots = (p) => ({ mean: 0, momentum: 1, adam: 2, yogi: 2 })[p.optimiser];

export async function arraysInitial(p, seed) {
  const values = [];
  for (const { name, length, shape } of arraySegments(p)) {
    if (!shape) continue;
    const std = p.stds[name] ?? p.std;
    for (let at = 0, piece = 0; at < length; at += LONGEST_PIECE, piece++) {
      const count = Math.min(LONGEST_PIECE, length - at);
      const found = std ? await normals(seed, `initial array ${name} piece ${piece}`, count) : new Array(count).fill(0);
      values.push(...found.map((x) => round32(std * x)));
    }
  }
  const none = (filled, wanted) => (slots(p) >= wanted ? values.map(() => round32(filled)) : []);
  return { values, first: none(0, 1), second: none(p.adaptivity ** 2, 2) };
}

/** The mean change of every value. */
function arraysMean(p, total, contributions) {
  const least = 1 / (2 * (p.max_weight ?? 1));
  const parts = {};
  const segments = arraySegments(p);
  let at = 0;
  for (const { name, length } of segments) parts[name] = total.slice(at, (at += length));
  return segments.flatMap(({ name, length, clip, shape, byRows }) => {
    if (!shape) return [];
    const width = byRows ? length / shape[0] : length;
    return parts[name].map((x, i) => {
      const all = p.max_weight === null ? contributions : parts[" weight"][0];
      const divisor = byRows ? parts[`${name} touched`][Math.floor(i / width)] : all;
      return divisor >= least ? held(x / divisor, clip) : 0;
    });
  });
}

export function arraysAbsorb(p, { values, first, second }, total, contributions) {
  const mean = arraysMean(p, total, contributions);
  const { momentum: b1, second_momentum: b2, server_rate: rate } = p;
  if (p.optimiser === "mean") return { values: values.map((x, i) => round32(x + rate * mean[i])), first, second };
  const m = first.map((x, i) => b1 * x + (p.optimiser === "momentum" ? 1 : 1 - b1) * mean[i]);
  const v = second.map((x, i) => {
    const square = mean[i] ** 2;
    return p.optimiser === "adam" ? b2 * x + (1 - b2) * square : x - (1 - b2) * square * Math.sign(x - square);
  });
  const step = (i) => (p.optimiser === "momentum" ? m[i] : m[i] / (Math.sqrt(v[i]) + p.adaptivity));
  return { values: values.map((x, i) => round32(x + rate * step(i))), first: m.map(round32), second: v.map(round32) };
}

export const encodeArrays = ({ values, first, second }) => toFloats([...values, ...first, ...second]);

export function decodeArrays(p, body) {
  const n = sum(Object.values(p.shapes).map(lengthOf));
  const all = finiteFloats(exact(body, 4 * n * (1 + slots(p)), "a model state"));
  const state = { values: all.slice(0, n), first: slots(p) ? all.slice(n, 2 * n) : [], second: all.slice(2 * n) };
  if (state.second.some((x) => x < 0)) throw new CodecError("a model state holds a negative mean of squares");
  return state;
}

// --- svd ------------------------------------------------------------------------------------------------------------

/** The matrix of this rank that is nearest to rows. */
export function lowRank(rows, rank) {
  const { values, vectors } = eigen(product(transposed(rows), rows));
  const best = values.map((_, i) => i).sort((a, b) => values[b] - values[a]).slice(0, rank);
  const leading = vectors.map((row) => best.map((i) => row[i]));
  return product(product(rows, leading), transposed(leading));
}

export function svdContribution(p, { items, rows }) {
  const low = lowRank(rows, p.rank).map((row) => row.map(round32));
  const { values, touched } = dense(bounded({ items, rows: low }, p), p, (x) => x);
  return [...values, ...(p.normalise === "touched" ? touched : [])];
}

export const svdInitial = (p, seed) => drawn(seed, p, 1 / Math.sqrt(p.dim));
export const svdAbsorb = (p, factors, total, contributions) => {
  const by = divisors(p, {}, contributions, total.slice(p.items * p.dim));
  const mean = rowsOf(total.slice(0, p.items * p.dim), p.dim).map((row, i) => row.map((x) => x / by[i]));
  const change = lowRank(mean, p.rank).flat();
  return factors.map((x, i) => round32(x + p.server_rate * change[i]));
};
export const decodeFactors = (p, body) => finiteFloats(exact(body, 4 * p.items * p.dim, "a model state"));

// --- pfedclr --------------------------------------------------------------------------------------------------------

export const pfedclrInitial = (p, seed) => drawn(seed, p, p.start_scale);

/** p and B of start "shared". */
export async function sharedStart(p) {
  const none = new Uint8Array(32);
  const user = (await normals(none, "pfedclr user factor", p.dim)).map((x) => round32(p.start_scale * x));
  const basis = (await normals(none, "pfedclr buffer basis", p.rank * p.dim)).map(round32);
  return { user, basis: rowsOf(basis, p.dim) };
}

/** A client's weight, and what it sends of it: nothing where all count alike. */
export function weightOf({ max_interactions: most }, interactions) {
  const weight = most ? Math.min(interactions, most) / most : 1;
  return { weight, sent: most ? [weight] : [] };
}

export function pfedclrContribution(p, update, interactions) {
  const { weight, sent } = weightOf(p, interactions);
  return [...dense(bounded(update, p), p, (x) => weight * x).values, ...sent];
}

export function pfedclrAbsorb(p, factors, total, contributions) {
  const weight = p.max_interactions ? total.at(-1) : contributions;
  if (!(weight > 0)) throw new ParameterError("a weighted mean needs a positive sum of weights");
  return factors.map((x, i) => round32(x + p.server_rate * (total[i] / weight)));
}

// --- rfrec, rfrecf --------------------------------------------------------------------------------------------------

export const rfrecCoins = (seed) => digest("rfrecf coins", seed);

/** What comes between the number of sums and V: the seed of the coins, or item totals. */
const rfrecExtra = (name, p) => (name === "rfrecf" ? 32 : p.item_bias === "means" ? 8 * p.items : 0);

export async function rfrecInitial(name, p, seed) {
  const extra = name === "rfrecf" ? await rfrecCoins(seed) : new Uint8Array(rfrecExtra(name, p));
  return { sums: 0, extra, average: await drawn(seed, p, 0.01) };
}

export function rfrecAbsorb(name, p, { sums, extra, average }, index, total, contributions) {
  if (index <= sums) throw new ParameterError(`sum ${index} does not follow a state of sum ${sums}`);
  if (name === "rfrec" && p.item_bias === "means" && index <= p.count_sums) {
    return { sums: index, extra: toFloats(fromFloats(extra).map((x, i) => x + total[i])), average };
  }
  return { sums: index, extra, average: average.map((x, i) => round32(x + total[i] / contributions)) };
}

export const encodeRfrec = ({ sums, extra, average }) => concat(littleEndian(sums, 4), extra, toFloats(average));

export function decodeRfrec(name, p, round, body) {
  const more = rfrecExtra(name, p);
  exact(body, 4 + more + 4 * p.items * p.dim, "a model state");
  const sums = new Reader(body).number(4);
  if (sums > round) throw new CodecError("a model state claims more sums than its round");
  const extra = body.slice(4, 4 + more);
  if (name === "rfrec" && more) finiteFloats(extra);
  return { sums, extra, average: finiteFloats(body.slice(4 + more)) };
}

/** Stretches of rfrecf: {local, moves, until}. moves: `coin` or `run`. */
export async function stretches(coins, iterations, probability, moves) {
  const average = (await uniforms(coins, "rfrecf coins", iterations)).map((u) => u <= probability);
  const found = [];
  average.forEach((now, i) => {
    const before = i > 0 && average[i - 1];
    const trains = moves === "coin" ? !now : !now && !before;
    const move = moves === "coin" ? now : !now && before;
    const last = found.at(-1);
    if (trains && (!last || last.closed)) found.push({ local: 1, moves: 0, until: i + 1, closed: false });
    else if (last) Object.assign(last, trains ? { local: last.local + 1 } : { closed: true, moves: last.moves + Number(move) }, { until: i + 1 });
  });
  return { average, stretches: found.map(({ local, moves: made, until }) => ({ local, moves: made, until })) };
}

// --- topk -----------------------------------------------------------------------------------------------------------

const byRowsOf = (p) => p.support_from === "vote";
export const keptOf = (p) =>
  p.support === "shared" && byRowsOf(p) ? p.dim * Math.max(1, rint(p.share * p.items)) : Math.max(1, rint(p.share * p.items * p.dim));

const entriesOf = (units, p) =>
  byRowsOf(p) ? units.flatMap((unit) => Array.from({ length: p.dim }, (_, j) => unit * p.dim + j)) : units;
const unitsOf = (p) => (byRowsOf(p) ? p.items : p.items * p.dim);
const keptUnits = (p) => (byRowsOf(p) ? keptOf(p) / p.dim : keptOf(p));
const ascending = (values) => values.sort((a, b) => a - b);

/** The candidates with a positive strength, strongest first. */
const strongest = (candidates, strength) =>
  candidates
    .map((number, i) => [number, strength[i]])
    .filter(([, size]) => size > 0)
    .sort((a, b) => b[1] - a[1] || a[0] - b[0])
    .map(([number]) => number);

/** state: {factors: rows, counts, clients, support}. */
export async function topkInitial(p, seed) {
  const counted = p.item_bias === "counts";
  const state = { factors: rowsOf(await svdInitial(p, seed), p.dim), counts: counted ? new Array(p.items).fill(0) : null, clients: 0 };
  if (p.support === "own") return { ...state, support: [] };
  const units = ascending((await permutation(seed, "first support", unitsOf(p))).slice(0, keptUnits(p)));
  return { ...state, support: entriesOf(units, p) };
}

/** Blocks of a contribution; with support "own" of a client that changes at least K entries. */
export function topkContribution(p, { support }, given) {
  const update = bounded(given, p);
  const { values, touched } = dense(update, p, (x) => x);
  const inside = (entry) => values[entry];
  if (p.support === "own") {
    const chosen = ascending(strongest(values.map((_, i) => i), values.map(Math.abs)).slice(0, keptOf(p)));
    return [chosen, chosen.flatMap((entry) => [inside(entry), 1])];
  }
  const votes = new Array(byRowsOf(p) ? p.items : 0).fill(0);
  if (byRowsOf(p)) {
    const norms = update.rows.map((row) => Math.hypot(...row));
    for (const item of strongest(update.items, norms).slice(0, keptUnits(p))) votes[item] = 1;
  }
  return [[...support.map(inside), ...(p.normalise === "touched" ? touched : []), ...votes]];
}

/** index, seed: of the sum and of the round. */
export async function topkAbsorb(p, state, index, total, contributions, seed) {
  const { factors: rows, support } = state;
  if (state.counts && index <= p.count_sums) return { ...absorbCounts(state, total, contributions), support };
  const factors = rows.flat();
  const with_ = (moved, next) => ({ ...state, factors: rowsOf(moved, p.dim), support: next });
  if (p.support === "own") {
    const moved = (x, i) => round32(x + p.server_rate * (total[2 * i] / Math.max(1, total[2 * i + 1])));
    return with_(factors.map(moved), support);
  }
  const kept = keptOf(p);
  const by = divisors(p, state, contributions, total.slice(kept));
  const mean = support.map((entry, i) => total[i] / by[Math.floor(entry / p.dim)]);
  const gain = p.error_feedback ? 1 : (p.items * p.dim) / kept;
  const moved = [...factors];
  support.forEach((entry, i) => (moved[entry] = round32(factors[entry] + p.server_rate * (gain * mean[i]))));
  const order = byRowsOf(p)
    ? strongest(Array.from({ length: p.items }, (_, i) => i), total.slice(total.length - p.items))
    : strongest(support, mean.map(Math.abs));
  const half = order.slice(0, Math.floor(keptUnits(p) / 2));
  const others = (await permutation(seed, "support", unitsOf(p))).filter((unit) => !half.includes(unit));
  return with_(moved, entriesOf(ascending([...half, ...others.slice(0, keptUnits(p) - half.length)]), p));
}

export const encodeTopk = (state) => concat(encodeState(state), uint32s(state.support));

export function decodeTopk(p, body) {
  const [entries, kept] = [p.items * p.dim, p.support === "own" ? 0 : keptOf(p)];
  const end = body.length - 4 * kept;
  const support = integers(body.slice(end));
  if (support.some((entry, i) => entry >= entries || (i && entry <= support[i - 1]))) {
    throw new CodecError("a support must be ascending entry numbers");
  }
  return { ...decodeState(body.slice(0, end), p.items, p.dim, p.item_bias === "counts"), support };
}

// --- evaluation -----------------------------------------------------------------------------------------------------

/** Whether sum `index` is a measurement; first: the first sum after those that count. */
export const measuresIn = (evaluation, rounds, first, index) =>
  index >= first && index <= rounds - (evaluation.final_rounds ?? 0) && (index - first) % (evaluation.every + 1) === 0;

const toFloat64 = (bytes) => [...new Float64Array(bytes.slice().buffer)];

/** point: {modelRound, round, clients, sums}. */
export const encodePoint = ({ modelRound, round, clients, sums }) =>
  concat(littleEndian(modelRound, 8), littleEndian(round, 8), new Uint8Array(new Float64Array([clients, ...sums]).buffer));

/**
 * Split a state into that of the recipe, of `length` bytes, and at most `most` measurements. constants: number of measures
 * of the ranking by item counts, whose sums are between the two after the first measurement. gated: whether the state that
 * was adopted last follows the measurements.
 */
export function splitPoints(body, length, measures, most, round, constants = 0, gated = false) {
  const size = 24 + 8 * measures;
  const popularity = body.length > length ? 8 * constants : 0;
  const adopted = gated && body.length > length ? length : 0;
  const start = length + popularity;
  const count = (body.length - start - adopted) / size;
  if ((popularity || adopted) && count < 1) throw new CodecError("a state of another length");
  if (!Number.isInteger(count) || count < 0 || count > most) throw new CodecError("a state of another length");
  const points = Array.from({ length: count }, (_, i) => {
    const bytes = body.slice(start + i * size, start + (i + 1) * size);
    const [clients, ...sums] = new Float64Array(bytes.slice(16).buffer);
    if (![clients, ...sums].every(Number.isFinite)) throw new CodecError("a measurement is not finite");
    return { modelRound: new Reader(bytes).number(8), round: new Reader(bytes.slice(8)).number(8), clients, sums };
  });
  const rounds = points.flatMap((point) => [point.modelRound, point.round]);
  const unsorted = rounds.some((number, i) => i && number < rounds[i - 1]) || points.some((point) => point.modelRound >= point.round);
  if (unsorted || rounds.some((number) => number > round)) throw new CodecError("measurements are out of order");
  const last = adopted ? body.slice(-adopted) : null;
  return { model: body.slice(0, length), popularity: toFloat64(body.slice(length, start)), points, adopted: last };
}

/** The measurement, of `points`, whose model was adopted last; null without any. ratings: whether errors are measured. */
export function lastAdopted(points, gate, ratings = false) {
  const level = ({ clients, sums }) => (ratings ? -sums[0] : sums[1]) / clients;
  const error = (point) => {
    const mean = Math.min(1, Math.max(0, Math.abs(level(point))));
    return Math.sqrt((ratings ? 2 * mean ** 2 : mean * (1 - mean)) / point.clients);
  };
  const passes = (last, point) => !last || level(point) >= level(last) - (gate * error(last)) / 2;
  return points.filter(({ clients }) => clients >= 1).reduce((last, point) => (passes(last, point) ? point : last), null);
}
