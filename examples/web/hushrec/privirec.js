/** PriviRec: contributions, sums and states (docs/wire/states.md). p: parameters with defaults. Matrices are lists of rows. */

import { concat, exact, littleEndian, Reader } from "./codec.js";
import { CodecError } from "./errors.js";
import { toFloats } from "./plain.js";
import { normals } from "./random.js";
import { eigen, product, readCounts, rint, rowsOf, transposed } from "./recipes.js";
import { finiteFloats, uint32s } from "./states.js";

const round32 = Math.fround;
const norm = (values) => Math.sqrt(values.reduce((sum, x) => sum + x * x, 0));
const columnsOf = (p) => p.components + (p.oversampling ?? 0);
/** Sums before the first iteration: of degrees, and of lists, which limit how many columns a row has. */
const before = (p) => (p.reveal_gram ? 1 : 2);
const hasNext = (p) => p.next_vectors > 0;
/** Gram sums: only `privirec` has blocks, of which docs/wire/defaults.json has one. */
const gramSums = (p) => p.blocks ?? 0;
/** Whether they are of counts. There is no privacy block, whose tasks this client does not join. */
const isCounted = (p) => gramSums(p) > 0 && p.iterations === 0 && (p.degrees ?? true);
const lastGram = (p) => before(p) + p.iterations + gramSums(p);
const stepsOf = (p) => lastGram(p) + Number(hasNext(p)) + Number(p.validation > 0);
export function kindOf(p, index) {
  if (index <= before(p)) return index === 1 ? "degrees" : "lists";
  if (index <= before(p) + p.iterations) return "iteration";
  if (index <= lastGram(p)) return "gram";
  return hasNext(p) && index === lastGram(p) + 1 ? "next" : "validation";
}
const triangleOf = (rows) => (rows * (rows + 1)) / 2;
/** The first value of the triangle that a Gram sum of counts has, and that after its last. */
function spanOf(p, index, rows) {
  const number = index - before(p);
  return [number - 1, number].map((sums) => Math.floor((sums * triangleOf(rows)) / gramSums(p)));
}

/** Q and the diagonal of R, which has no negative entry. */
export function signedQr(rows) {
  const basis = [];
  const diagonal = [];
  for (const column of transposed(rows)) {
    let rest = [...column];
    for (let pass = 0; pass < 2; pass++) {
      for (const q of basis) {
        const part = q.reduce((sum, x, i) => sum + x * rest[i], 0);
        rest = rest.map((x, i) => x - part * q[i]);
      }
    }
    diagonal.push(norm(rest));
    basis.push(rest.map((x) => x / diagonal.at(-1)));
  }
  return { basis: transposed(basis), diagonal };
}

/** Draws that become the first basis. lengths: the standard deviation of each row; none: all are equal. */
export async function gaussian(seed, items, columns, lengths) {
  const drawn = await normals(seed, "start of the power iteration", items * columns);
  if (!columns) return Array.from({ length: items }, () => []);
  const rows = transposed(rowsOf(drawn, items)).map((row, i) => (lengths ? row.map((x) => x * lengths[i]) : row));
  return rows;
}

const EQUATIONS = 8;
const ENTRIES = 6;
const LONGEST_LIST = 1000;
const nextLength = (vectors) => (vectors * (vectors + 1)) / 2 + vectors ** 2;
const itemExponent = (p) => p.item_exponent ?? 1 - p.user_exponent;
/** The items that later sums have rows for. */
export const kept = (p, state) => state.degrees.flatMap((d, i) => (d >= p.min_owners ? [i] : []));

/** How many columns each kept row has in every iteration, and the most. */
export function widthsOf(p, state) {
  const own = kept(p, state);
  const whole = p.krylov ? Math.floor(own.length / p.iterations) : own.length;
  const other = Math.ceil(nextLength(p.next_vectors ?? 0) / Math.max(1, own.length));
  const safe = Math.floor(Math.max(0, Math.floor(Math.min(own.length, state.clients) / EQUATIONS) - other) / p.iterations);
  const isShort = isCounted(p) && triangleOf(own.length) < gramSums(p);
  const most = isShort ? 0 : Math.min(columnsOf(p), p.reveal_gram ? whole : Math.min(whole, safe));
  if (p.reveal_gram || !most || !state.entries) return { widths: own.map(() => most), columns: most };
  const within = (count) => Math.floor((count * own.length) / (ENTRIES * Math.max(1, count + own.length)));
  const able = state.entries.map((count) => Math.floor(within(count) / p.iterations));
  const [steps, fewer] = p.krylov ? [16, Math.floor((3 * own.length) / 4)] : [1, Math.floor(own.length / 20)];
  const columns = Math.min(most, [...able].sort((x, y) => x - y)[fewer]);
  const marks = Array.from({ length: steps + 1 }, (_, i) => Math.floor((columns * i) / steps));
  return { widths: able.map((count) => Math.max(...marks.filter((mark) => mark <= Math.min(count, columns)))), columns };
}

/** Rows, columns and values of the sum after `state`; none before the degrees. */
export function sizeAfter(p, state) {
  if (!state.sums) return [];
  const { widths, columns } = widthsOf(p, state);
  if (state.sums < before(p)) return [widths.length, Math.min(1, columns), widths.length];
  return [widths.length, columns, widths.reduce((sum, width) => sum + width, 0)];
}

/** Columns that equally many rows have, most rows first: their rows, their first column, and the one after the last. */
function tiersOf(widths) {
  const edges = [0, ...new Set(widths.filter((width) => width).sort((x, y) => x - y))];
  return edges.slice(1).map((last, i) => ({ rows: widths.flatMap((width, row) => (width >= last ? [row] : [])), first: edges[i], last }));
}

const zeros = (rows, columns) => Array.from({ length: rows }, () => new Array(columns).fill(0));
const part = (matrix, rows, columns) => rows.map((row) => columns.map((column) => matrix[row][column]));
const range = (first, last) => Array.from({ length: last - first }, (_, i) => first + i);
const less = (left, right) => left.map((row, i) => row.map((x, j) => x - right[i][j]));
function put(matrix, rows, first, block) {
  rows.forEach((row, i) => block[i].forEach((x, j) => (matrix[row][first + j] = x)));
}

/** What members measure, in this order: whether the diagonal is zero, the weight, the part of the vectors, the shift, and the share of next items. */
const settingsWith = (parts, ...first) => [true, false]
  .flatMap((zero) => [1 / 16, 1 / 4, 1, 4].flatMap((weight) => parts.flatMap((part_) => [0, -0.1].map((shift) => ({ zero, weight, part: part_, shift, share: 0 })))))
  .sort((one, other) => placeOf(one, first) - placeOf(other, first));
const SETTINGS = settingsWith([1, 4], 1);
/** Of the vectors of a whole matrix. */
const OF_WHOLE = settingsWith([1, 4, 16, 64], 4, 1);
const WITH_NEXT = [
  ...SETTINGS,
  ...[0.2, 0.5, 0.75].flatMap((share) => [1 / 4, 1, 4].flatMap((weight) => [0, -0.1].map((shift) => ({ zero: true, weight, part: 1, shift, share })))),
  ...[0, -0.1].map((shift) => ({ zero: true, weight: 1, part: 1, shift, share: 1 })),
];
/** Of SLIM, in tasks with `slim`. sizes: above 0 for SLIM, its penalty on sizes, as the weight is that on squares. */
const OF_SLIM = [-0.2, -0.1, 0].map((shift) => ({ zero: true, weight: 1, part: 1, shift, share: 0, sizes: 0.03 }));
const WITH_SLIM = [OF_WHOLE[0], ...OF_SLIM, ...OF_WHOLE.slice(1)];
const ofPairs = (p) => (p.slim ? WITH_SLIM : OF_WHOLE);
const settingsOf = (p) => (isCounted(p) ? ofPairs(p) : hasNext(p) ? WITH_NEXT : SETTINGS);
function placeOf({ zero, weight, part: part_, shift }, first) {
  const place = first.indexOf(part_);
  return zero && weight === 1 && shift === 0 && place >= 0 ? place : first.length;
}

/** The item that a client keeps out of all sums; none for most. drawn: two numbers that it drew once. order: its items by time, or null. */
function heldOut(p, items, drawn, order) {
  if (!(p.validation > 0 && items.length > 1 && drawn[0] < p.validation)) return null;
  return order ? order.at(-1) : [...items].sort((x, y) => x - y)[Math.floor(drawn[1] * items.length)];
}

/** The items by time, those of one time in an order that follows from what the client drew; null without times. */
function inOrder(p, items, drawn, times) {
  if (!hasNext(p) || !times) return null;
  const key = (item) => {
    let mixed = Math.floor((drawn?.[1] ?? 0) * 2 ** 32) ^ Math.imul(item + 1, 0x9e3779b1);
    mixed = Math.imul(mixed ^ (mixed >>> 16), 0x85ebca6b);
    mixed = Math.imul(mixed ^ (mixed >>> 13), 0xc2b2ae35);
    return (mixed ^ (mixed >>> 16)) >>> 0;
  };
  const places = items.map((_, i) => i).sort((i, j) => times[i] - times[j] || key(items[i]) - key(items[j]) || items[i] - items[j]);
  return places.map((i) => items[i]);
}

// --- what follows what, in the space of the leading vectors

const DECAY = Math.exp(-1 / 3);
const AHEAD = 3;
const RIDGE = 0.03;

/** The place of each of these items that has a row: its row of the leading vectors, scaled. */
function placesOf(p, state, items) {
  const rows = new Map(kept(p, state).map((item, row) => [item, row]));
  return items.filter((item) => rows.has(item)).map((item) => {
    const scale = state.degrees[item] ** -itemExponent(p);
    return Array.from({ length: p.next_vectors }, (_, k) => (state.basis[rows.get(item)][k] ?? 0) * scale);
  });
}

/** The fading sum of places after each item. */
function trail(places) {
  let last = null;
  return places.map((place) => (last = place.map((x, k) => x + (last ? DECAY * last[k] : 0))));
}

function transitions(p, places) {
  const count = p.next_vectors;
  if (places.length < 2) return new Array(nextLength(count)).fill(0);
  const past = trail(places).slice(0, -1);
  const following = past.map((_, t) =>
    Array.from({ length: count }, (__, k) => range(0, AHEAD).reduce((sum, j) => sum + DECAY ** j * (places[t + 1 + j]?.[k] ?? 0), 0)));
  const [before_, after] = [past, following].map((other) => product(transposed(past), other));
  const whole = norm([...before_.flat(), ...after.flat()]) || 1;
  return [...before_.flatMap((row, i) => row.slice(i)), ...after.flat()].map((x) => x / whole);
}

/** M of an opened sum. */
function transitionModel(p, state, total) {
  const count = p.next_vectors;
  const used = p.krylov ? count : Math.min(count, p.components);
  const found = Array.from({ length: count }, (_, k) => Number(k < used && (state.values[k] ?? 0) > 0));
  let at = 0;
  const whole = zeros(count, count);
  for (let i = 0; i < count; i++) for (let j = i; j < count; j++) whole[i][j] = whole[j][i] = total[at++] * found[i] * found[j];
  const after = rowsOf(total.slice(at), count).map((row, i) => row.map((x, j) => x * found[i] * found[j]));
  const { values, vectors } = eigen(whole);
  const above = values.map((x) => Math.max(0, x));
  const ridge = (RIDGE * above.reduce((sum, x) => sum + x, 0)) / count;
  if (!ridge) return zeros(count, count);
  const solved = product(vectors, product(transposed(vectors), after).map((row, i) => row.map((x) => x / (above[i] + ridge))));
  return rounded(solved.map((row, i) => row.map((x, j) => x * found[i] * found[j])));
}

/** Scores of a filter with the setting's share of what follows. */
function withNext(p, state, setting, scores, order) {
  const rows = kept(p, state);
  const end = order ? trail(placesOf(p, state, order)).at(-1) : null;
  if (!setting.share || !end) return scores;
  const mixed = product([end], state.transitions)[0];
  const after = new Array(p.items).fill(0);
  rows.forEach((i, row) => {
    after[i] = mixed.reduce((sum, x, k) => sum + x * (state.basis[row][k] ?? 0), 0) * state.degrees[i] ** (itemExponent(p) + setting.shift);
  });
  const [first, second] = [scores, after].map((all) => deviation(rows.map((i) => all[i])));
  if (!second) return scores;
  return scores.map((x, i) => ((1 - setting.share) * x) / (first || 1) + (setting.share * after[i]) / second);
}

function deviation(values) {
  const mean = values.reduce((sum, x) => sum + x, 0) / values.length;
  return Math.sqrt(values.reduce((sum, x) => sum + (x - mean) ** 2, 0) / values.length);
}

/** Scores of all items for a client's items. */
function scoresOf(p, state, setting, items) {
  if (setting.sizes) return slimScores(p, state, setting, items);
  const count = state.values.filter((x) => x > 0).length;
  const used = setting.part > 1 ? Math.max(1, Math.floor(count / setting.part)) : state.values.length;
  const values = state.values.slice(0, used);
  const found = values.filter((x) => x > 0);
  const share = found.length === used ? used / (p.krylov ? 30 : 80) : 1;
  const weight = setting.weight * Math.max(0.3, (found.length ? Math.min(...found) ** 2 : 0) * share);
  const shares = values.map((x) => x ** 2 / (x ** 2 + weight));
  const rows = kept(p, state);
  const x = rows.map((i) => (items.includes(i) ? state.degrees[i] ** -itemExponent(p) : 0));
  const basis = state.basis.map((row) => row.slice(0, used));
  const mixed = product([x], basis)[0].map((y, k) => y * shares[k]);
  const scores = new Array(p.items).fill(0);
  rows.forEach((i, row) => {
    const whole = basis[row].reduce((sum, y, k) => sum + y * mixed[k], 0);
    const diagonal = 1 - basis[row].reduce((sum, y, k) => sum + y * y * shares[k], 0);
    scores[i] = (setting.zero ? x[row] - (x[row] - whole) / diagonal : whole) * state.degrees[i] ** (itemExponent(p) + setting.shift);
  });
  return scores;
}

function slimScores(p, state, setting, items) {
  const rows = kept(p, state);
  const scores = new Array(p.items).fill(0);
  const own = rows.flatMap((i, row) => (items.includes(i) ? [row] : []));
  rows.forEach((i, column) => {
    const sum = own.reduce((all, row) => all + state.degrees[rows[row]] ** -itemExponent(p) * state.learned[row][column], 0);
    scores[i] = sum * state.degrees[i] ** (itemExponent(p) + setting.shift);
  });
  return scores;
}

/** The weights of SLIM by ADMM. whole: P, with its eigenvalues and eigenvectors. */
function slimOf(whole, values, vectors, { weight, sizes }) {
  const mean = whole.reduce((sum, row, i) => sum + row[i], 0) / whole.length;
  const step = 3 * mean;
  const inverse = product(vectors.map((row) => row.map((x, k) => x / (values[k] + weight * mean + step))), transposed(vectors));
  const fitted = product(inverse, whole);
  let [found, dual] = [zeros(whole.length, whole.length), zeros(whole.length, whole.length)];
  for (let steps = 0; steps < 15; steps++) {
    const mixed = product(inverse, found.map((row, i) => row.map((x, j) => step * x - dual[i][j])));
    const free = fitted.map((row, i) => row.map((x, j) => x + mixed[i][j]));
    const diagonal = free.map((row, j) => row[j] / inverse[j][j]);
    free.forEach((row, i) => row.forEach((_, j) => (row[j] -= inverse[i][j] * diagonal[j])));
    free.forEach((row, i) => row.forEach((x, j) => (row[j] += 0.8 * (x - found[i][j]))));
    found = free.map((row, i) => row.map((x, j) => (i === j ? 0 : Math.max(0, x + (dual[i][j] - sizes * mean) / step))));
    dual = dual.map((row, i) => row.map((x, j) => x + step * (free[i][j] - found[i][j])));
  }
  return found;
}

/** A 1, and NDCG@20 of the held-out item under each setting; zeros without one. */
function validation(p, counted, items, held, order) {
  if (held === null) return new Array(1 + settingsOf(p).length).fill(0);
  const state = isCounted(p) ? { ...counted, ...spectrumOf(p, counted) } : counted;
  const own = items.filter((i) => i !== held);
  const measured = settingsOf(p).map((setting) => {
    const scores = withNext(p, state, setting, scoresOf(p, state, setting, own), order);
    const others = scores.filter((_, i) => !items.includes(i));
    const least = scores[held] - 1e-5 * Math.max(0, ...others.map(Math.abs));
    const rank = 1 + others.filter((x) => !(x < least)).length;
    return rank <= 20 ? 1 / Math.log2(rank + 1) : 0;
  });
  return [1, ...measured];
}

/** The setting that is used: the better one of so many `usual` ones, unless the best is clearly above it. */
function chosenSetting([members, ...sums], usual) {
  if (members < 1) return 0;
  const means = sums.map((x) => Math.min(1, x / members));
  const best = means.indexOf(Math.max(...means));
  const mean = Math.max(...means.slice(0, usual));
  return means[best] > mean + 0.75 * Math.sqrt((mean * (1 - mean)) / members) ? best : means.indexOf(mean);
}

/** items: the client's. drawn: see `heldOut`. times: of the items; none if they are not known. Returns the block of sum `index`. */
export function contribution(p, state, index, all, drawn, times) {
  const order = inOrder(p, all, drawn, times);
  const held = heldOut(p, all, drawn, order);
  const others = order?.filter((i) => i !== held) ?? null;
  if (kindOf(p, index) === "validation") return validation(p, state, all, held, others);
  if (kindOf(p, index) === "next") return transitions(p, placesOf(p, state, others ?? []));
  const items = all.filter((i) => i !== held);
  if (index === 1) return Array.from({ length: p.items }, (_, i) => Number(items.includes(i)));
  const rows = kept(p, state);
  const own = rows.filter((i) => items.includes(i)).length;
  if (kindOf(p, index) === "lists") return rows.map((i) => (items.includes(i) ? Math.min(own, LONGEST_LIST, p.items) : 0));
  if (isCounted(p)) {
    const has = rows.map((i) => Number(items.includes(i)));
    return has.flatMap((x, i) => has.slice(i).map((y) => x * y)).slice(...spanOf(p, index, rows.length));
  }
  const r = rows.map((i) => (items.includes(i) ? own ** -p.user_exponent * state.degrees[i] ** -itemExponent(p) : 0));
  if (kindOf(p, index) === "gram") return r.flatMap((x, i) => r.slice(i).map((y) => x * y));
  const mixed = product([r], state.basis)[0];
  const { widths } = widthsOf(p, state);
  return r.flatMap((x, i) => mixed.slice(0, widths[i]).map((y) => x * y));
}

export const empty = () => ({ sums: 0 });

/** seed: of the round. rounding: bound on the error of encoding in a value of the sum; 0 for exact sums. */
export async function absorb(p, state, index, total, contributions, seed, rounding = 0) {
  if (index <= before(p)) {
    const most = index === 1 ? contributions : contributions * Math.min(LONGEST_LIST, p.items);
    const counts = total.map((x) => Math.max(0, Math.min(most, rint(x))));
    const after = index === 1 ? { sums: 1, degrees: counts, clients: contributions } : { ...state, sums: index, entries: counts };
    return index < before(p) ? after : begun(p, after, seed);
  }
  if (kindOf(p, index) === "gram" && isCounted(p)) {
    const pairs = [...(state.pairs ?? []), ...total.map((x) => Math.max(0, Math.min(contributions, rint(x))))];
    const after = { ...state, sums: index, pairs, pairClients: [...(state.pairClients ?? []), contributions] };
    if (index === lastGram(p)) requireOfLists(eigen(matrixOf(p, after)).values, absentOf(after));
    return after;
  }
  if (kindOf(p, index) === "gram") return { ...state, sums: index, more: total.map(round32) };
  if (kindOf(p, index) === "next") return { ...state, sums: index, transitions: transitionModel(p, state, total) };
  if (kindOf(p, index) === "validation") {
    const measured = total.map((x) => Math.max(0, Math.min(contributions, x)));
    return { ...state, sums: index, setting: chosenSetting(measured, isCounted(p) ? 2 : 1), measured };
  }
  const { widths, columns } = widthsOf(p, state);
  let at = 0;
  const product_ = widths.map((width) => [...total.slice(at, (at += width)), ...new Array(columns - width).fill(0)]);
  const half = rounding / Math.max(1, contributions);
  requireOfRows(tiersOf(widths), state.basis, product_, kept(p, state).map((i) => half * Math.sqrt(state.degrees[i] / 3)));
  if (p.krylov) return withMoreDirections(p, state, index, product_, tiersOf(widths), columns);
  const found = signedQr(product_);
  let [basis, values] = [found.basis, found.diagonal.map(Math.sqrt)];
  const change = changeOf(state.values, values);
  const captured = overlap(state.basis, basis);
  const converged = p.tolerance !== null && p.tolerance !== undefined && change <= p.tolerance;
  if (p.rayleigh_ritz && (index === before(p) + p.iterations || converged)) [basis, values] = ritz(state.basis, product_);
  return { ...state, sums: index, basis: rounded(basis), values: values.map(round32), captured, change };
}

/** The state before the first iteration. */
async function begun(p, state, seed) {
  if (isCounted(p)) return state;
  const { widths, columns } = widthsOf(p, state);
  const lengths = p.krylov ? kept(p, state).map((i) => state.degrees[i] ** (0.5 - itemExponent(p))) : null;
  const drawn = await gaussian(seed, widths.length, columns, lengths);
  const basis = zeros(widths.length, columns);
  for (const { rows, first, last } of tiersOf(widths)) put(basis, rows, first, signedQr(part(drawn, rows, range(first, last))).basis);
  return { ...state, basis: rounded(basis), values: new Array(columns).fill(0), captured: 0, change: 1, more: [] };
}

/** How many clients were in the sum of the counted pair at `place` of the triangle of so many items. */
function clientsOf(p, pairClients, rows, place) {
  return pairClients[pairClients.findIndex((_, sum) => place < spanOf(p, before(p) + 1 + sum, rows)[1])];
}

/** Throws `CodecError` unless the sum of an iteration can be P Q: in a tier Q^T Y is symmetric, without negative eigenvalues. deviations: of each row's values. */
function requireOfRows(tiers, basis, sum, deviations) {
  for (const { rows, first, last } of tiers) {
    const [q, y] = [basis, sum].map((one) => part(one, rows, range(first, last)));
    const small = product(transposed(q), y);
    const { values, vectors } = eigen(small.map((row, k) => row.map((x, l) => (x + small[l][k]) / 2)));
    const nearest = product(vectors.map((row) => row.map((x, k) => x * Math.max(0, values[k]))), transposed(vectors));
    const off = norm(small.flatMap((row, k) => row.map((x, l) => x - nearest[k][l])));
    const expected = Math.sqrt(small.length) * norm(q.flatMap((row, i) => row.map((x) => x * deviations[rows[i]])));
    if (off > 0.02 * norm(small.flat()) + 3 * (1 + 1 / small.length) * expected) throw new CodecError("a sum of an iteration is no product with a matrix that clients' rows give");
  }
}

/** The largest share of the clients of the degrees that a sum of counted pairs does not have. */
const absentOf = ({ pairClients, clients }) => 1 - Math.min(...pairClients) / clients;

/** P of counted pairs as they were summed, none above the degree of either item; `CodecError` if too many of them are. */
function matrixOf(p, state) {
  const rows = kept(p, state);
  const scales = rows.map((i) => state.degrees[i] ** -itemExponent(p));
  const whole = zeros(rows.length, rows.length);
  let [at, above] = [0, 0];
  for (let i = 0; i < rows.length; i++) {
    for (let j = i; j < rows.length; j++, at++) {
      const most = Math.min(state.degrees[rows[i]], state.degrees[rows[j]]);
      if (state.pairs[at] > most) above++;
      const count = (Math.min(state.pairs[at], most) / clientsOf(p, state.pairClients, rows.length, at)) * state.clients;
      whole[i][j] = whole[j][i] = (i === j ? most : count) * scales[i] * scales[j];
    }
  }
  if (above > 0.05 * at + 2 * rows.length) throw new CodecError(`${above} of ${at} counted pairs are above the degree of an item of theirs`);
  return whole;
}

/** Throws `CodecError` for eigenvalues of P of which more is negative than clients' lists give. */
function requireOfLists(values, absent) {
  const [sizes, negative] = [values.map(Math.abs), values.map((x) => Math.max(0, -x))].map((all) => all.reduce((sum, x) => sum + x, 0));
  if (negative > (0.15 + absent) * sizes) throw new CodecError("no lists give the counted pairs: too much of the matrix's eigenvalues is negative");
}

/** The leading vectors and singular values of P of counted pairs, and SLIM's weights. */
function spectrumOf(p, state) {
  let whole = matrixOf(p, state);
  const own = whole.map((row, i) => row[i]);
  let { values, vectors } = eigen(whole);
  requireOfLists(values, absentOf(state));
  const factor = vectors.map((row) => row.map((x, k) => x * Math.sqrt(Math.max(0, values[k]))));
  const shrink = shrunkRows(factor, own);
  if (shrink) {
    const within = scaled(factor, shrink);
    whole = product(within, transposed(within));
    ({ values, vectors } = eigen(whole));
  }
  const largest = Math.max(...values, 0);
  const order = values.map((_, i) => i).sort((x, y) => values[y] - values[x]).slice(0, columnsOf(p));
  const slim = settingsOf(p).find(({ sizes }) => sizes);
  return {
    learned: slim && slimOf(whole, values, vectors, slim),
    basis: vectors.map((row) => order.map((k) => round32(row[k]))),
    values: order.map((k) => round32(Math.sqrt(values[k] > 1e-6 * largest ? values[k] : 0))),
  };
}

/** The largest S, at most 1, with which the rows of S F have squares of at most `most`; null if those of F have. */
function shrunkRows(factor, most) {
  const squares = factor.map((row) => norm(row) ** 2);
  if (!squares.some((x, i) => x > most[i] * (1 + 1e-6))) return null;
  return squares.map((x, i) => (x > most[i] * (1 + 1e-6) ? Math.sqrt(most[i] / x) : 1));
}

const scaled = (rows, scales) => rows.map((row, i) => row.map((x) => x * scales[i]));

/** The model with no row of P longer than `item_limit` times what is usual for items of its degree. */
function withUsualRows(p, state, basis, lengths) {
  const found = range(0, lengths.length).filter((k) => lengths[k] > 0);
  if ((p.item_limit ?? null) === null || !found.length) return [basis, lengths];
  const factor = basis.map((row) => found.map((k) => row[k] * lengths[k]));
  const byDegree = kept(p, state).map((i) => state.degrees[i] ** (1 - 2 * itemExponent(p)));
  const usual = median(factor.map((row, i) => norm(row) ** 2 / byDegree[i]));
  const shrink = shrunkRows(factor, byDegree.map((x) => p.item_limit * usual * x));
  return shrink ? ofFactor(scaled(factor, shrink), lengths.length) : [basis, lengths];
}

function median(values) {
  const [order, half] = [[...values].sort((x, y) => x - y), values.length / 2];
  return (order[Math.ceil(half) - 1] + order[Math.floor(half)]) / 2;
}

const rounded = (rows) => rows.map((row) => row.map(round32));
const changeOf = (old, now) => (norm(now) ? norm(now.map((x, i) => x - old[i])) / norm(now) : 0);
const beside = (left, right) => (left.length ? left.map((row, i) => [...row, ...right[i]]) : right);
const overlap = (old, after) =>
  Math.min(1, product(transposed(old), after).flat().reduce((sum, x) => sum + x * x, 0) / after[0].length);

/** The next Q of a block Krylov space, or the model after the last one. `more` holds all Q and all Y so far. */
function withMoreDirections(p, state, index, product_, tiers, columns) {
  const half = state.more.length ? state.more[0].length / 2 : 0;
  const asked = beside(state.more.map((row) => row.slice(0, half)), state.basis);
  const products = beside(state.more.map((row) => row.slice(half)), product_);
  const isLast = index === before(p) + p.iterations;
  const [found, next, values] = [zeros(asked.length, columns), zeros(asked.length, columns), new Array(columns).fill(0)];
  let explained = [];
  for (const { rows, first, last } of tiers) {
    const places = range(0, asked[0].length / columns).flatMap((one) => range(first, last).map((column) => one * columns + column));
    const whole = part(asked, range(0, asked.length), places);
    const own = part(whole, rows, range(0, places.length));
    let rest = part(products, rows, places);
    if (explained.length) rest = less(rest, product(rows.map((row) => explained[row]), product(transposed(explained), whole)));
    const factor = nystroemFactor(own, rest);
    const more = zeros(asked.length, factor[0].length);
    put(more, rows, 0, factor);
    explained = beside(explained, more);
    if (isLast) continue;
    const { basis, diagonal } = signedQr(rest.map((row) => row.slice(first - last)));
    put(found, rows, first, basis);
    put(next, rows, first, outside(own, basis));
    diagonal.forEach((x, i) => (values[first + i] = Math.sqrt(x)));
  }
  if (!isLast) {
    const [captured, change] = [overlap(state.basis, found), changeOf(state.values, values)];
    const more = beside(rounded(asked), rounded(products));
    return { ...state, sums: index, basis: rounded(next), values: values.map(round32), captured, change, more };
  }
  const whole = ofFactor(explained, asked[0].length);
  const model = fits(asked.length, asked[0].length) ? corrected(tiers, asked, products, columns, ...whole) : whole;
  const [basis, lengths] = withUsualRows(p, state, ...model);
  const captured = overlap(state.basis, basis);
  return { ...state, sums: index, basis: rounded(basis), values: lengths.map(round32), captured, more: [] };
}

/** What span(`vectors`) has outside span(`asked`); projected twice, because once loses digits. */
function outside(asked, vectors) {
  let left = vectors;
  for (let pass = 0; pass < 2; pass++) {
    const inside = product(asked, product(transposed(asked), left));
    left = signedQr(left.map((row, i) => row.map((x, j) => x - inside[i][j]))).basis;
  }
  return left;
}

/** F of P ~ F F^T = Y (Q^T Y)^+ Y^T, without directions that are rounding. */
function nystroemFactor(asked, products) {
  const small = product(transposed(asked), products);
  const { values, vectors } = eigen(small.map((row, i) => row.map((x, j) => (x + small[j][i]) / 2)));
  const largest = Math.max(...values, 0);
  const found = values.flatMap((x, i) => (x > 1e-6 * largest ? [i] : []));
  return product(products, vectors.map((row) => found.map((i) => row[i] / Math.sqrt(values[i]))));
}

const fits = (items, columns) => items <= 5_000 && items ** 2 * columns <= 4_000_000_000;

/** The model without entries below 0, which its rows' sums determine: vectors and singular values of P, from those before. */
function corrected(tiers, asked, products, columns, basis, lengths) {
  if (!lengths.some((x) => x > 0)) return [basis, lengths];
  let p = product(basis.map((row) => row.map((x, k) => x * lengths[k] ** 2)), transposed(basis)).map((row) => row.map((x) => Math.max(0, x)));
  let own = [];
  const classes = tiers.map(({ rows, first, last }, t) => {
    own = [...own, ...range(0, asked[0].length / columns).flatMap((one) => range(first, last).map((column) => one * columns + column))];
    const of = asked.map((row) => own.map((k) => row[k]));
    return { rows: rows.filter((row) => !tiers[t + 1]?.rows.includes(row)), own, inverse: pseudoInverse(product(transposed(of), of)) };
  });
  for (let step = 0; step < 4; step++) {
    const missing = less(products, product(p, asked));
    const shares = zeros(asked.length, asked[0].length);
    for (const one of classes) {
      if (!one.rows.length) continue;
      const solved = product(part(missing, one.rows, one.own), one.inverse);
      one.rows.forEach((row, i) => one.own.forEach((k, j) => (shares[row][k] = 0.75 * solved[i][j])));
    }
    const change = product(shares, transposed(asked));
    p = p.map((row, i) => row.map((x, j) => Math.max(0, x + change[i][j] + change[j][i])));
  }
  return leading(p, basis.map((row) => row.filter((_, k) => lengths[k] > 0)), asked[0].length);
}

/** Leading eigenvectors, and roots of the eigenvalues, within the span of V, P V and P^2 V, then zeros up to so many. */
function leading(p, vectors, count) {
  const blocks = [vectors];
  for (let power = 0; power < 2; power++) {
    const next = transposed(product(p, blocks.at(-1)));
    blocks.push(transposed(next.map((column) => column.map((x) => x / (norm(column) || 1)))));
  }
  const span = transposed(independent(blocks.flatMap(transposed)));
  const small = product(transposed(span), product(p, span));
  const { values, vectors: turned } = eigen(small.map((row, i) => row.map((x, j) => (x + small[j][i]) / 2)));
  const order = values.map((_, i) => i).filter((i) => values[i] > 1e-6 * Math.max(...values, 0)).sort((x, y) => values[y] - values[x]);
  const found = order.slice(0, count).map((i) => {
    const column = product(span, turned.map((row) => [row[i]])).flat();
    const peak = column.reduce((best, x) => (Math.abs(x) > Math.abs(best) ? x : best), 0);
    return { column: column.map((x) => x * Math.sign(peak || 1)), length: Math.sqrt(values[i]) };
  });
  while (found.length < count) found.push({ column: new Array(p.length).fill(0), length: 0 });
  return [transposed(found.map(({ column }) => column)), found.map(({ length }) => length)];
}

/** Orthonormal columns of the same span, without those that are nearly of the others'. */
function independent(columns) {
  const found = [];
  for (const column of columns) {
    let rest = column;
    for (let pass = 0; pass < 2; pass++) {
      for (const q of found) {
        const along = q.reduce((sum, x, i) => sum + x * rest[i], 0);
        rest = rest.map((x, i) => x - along * q[i]);
      }
    }
    if (norm(rest) > 1e-6) found.push(rest.map((x) => x / norm(rest)));
  }
  return found;
}

function pseudoInverse(gram) {
  const { values, vectors } = eigen(gram);
  const inverse = values.map((x) => (x > 1e-6 * Math.max(...values) ? 1 / x : 0));
  return product(vectors.map((row) => row.map((x, k) => x * inverse[k])), transposed(vectors));
}

/** Vectors and singular values of F F^T, largest first, then zeros up to so many columns. */
function ofFactor(factor, count) {
  const inner = eigen(product(transposed(factor), factor));
  const order = inner.values.map((_, i) => i).sort((x, y) => inner.values[y] - inner.values[x]);
  const columns = order.map((i) => {
    const column = product(factor, inner.vectors.map((row) => [row[i]])).flat();
    const peak = column.reduce((best, x) => (Math.abs(x) > Math.abs(best) ? x : best), 0);
    return column.map((x) => (x * Math.sign(peak || 1)) / Math.sqrt(inner.values[i]));
  });
  const lengths = order.map((i) => Math.sqrt(inner.values[i]));
  while (lengths.length < count) {
    columns.push(new Array(factor.length).fill(0));
    lengths.push(0);
  }
  return [transposed(columns), lengths];
}

function ritz(basis, sums) {
  const small = product(transposed(basis), sums);
  const { values, vectors } = eigen(small.map((row, i) => row.map((x, j) => (x + small[j][i]) / 2)));
  const order = values.map((_, i) => i).sort((a, b) => values[b] - values[a]);
  const turned = order.map((i) => {
    const column = vectors.map((row) => row[i]);
    const peak = column.reduce((best, x) => (Math.abs(x) > Math.abs(best) ? x : best), 0);
    return column.map((x) => (peak < 0 ? -x : x));
  });
  return [product(basis, transposed(turned)), order.map((i) => Math.sqrt(Math.max(0, values[i])))];
}

export function encode(state) {
  if (!state.sums) return littleEndian(0, 4);
  const first = concat(littleEndian(state.sums, 4), uint32s([...state.degrees, state.clients, ...(state.entries ?? [])]));
  const chosen = state.measured ? [littleEndian(state.setting, 4), new Uint8Array(new Float64Array(state.measured).buffer)] : [];
  if (state.pairs) return concat(first, uint32s([...state.pairClients, ...state.pairs]), ...chosen);
  if (!state.basis) return first;
  const figures = new Uint8Array(new Float64Array([state.captured, state.change]).buffer);
  const floats = toFloats([...state.basis.flat(), ...state.values]);
  const half = Array.isArray(state.more[0]) ? state.more[0].length / 2 : 0;
  const parts = half ? [(row) => row.slice(0, half), (row) => row.slice(half)].flatMap((part) => state.more.flatMap(part)) : state.more;
  return concat(first, floats, figures, toFloats([...parts, ...(state.transitions ?? []).flat()]), ...chosen);
}

export function decode(p, round, body) {
  if (body.length < 4) throw new CodecError("a model state has at least 4 bytes");
  const reader = new Reader(body);
  const [sums, items] = [reader.number(4), p.items];
  if (sums > stepsOf(p) || sums > round) throw new CodecError("a model state claims more sums than there are");
  if (!sums) return exact(body, 4, "a model state") && empty();
  if (body.length < 4 * (items + 2)) throw new CodecError("a model state has its item degrees first");
  const { counts: degrees, clients } = readCounts(reader, items);
  const first = { sums, degrees, clients };
  if (sums < before(p)) return exact(body, 4 * (items + 2), "a model state") && first;
  const own = before(p) === 2 ? kept(p, first).length : 0;
  if (own) {
    if (body.length < 4 * (items + 2 + own)) throw new CodecError("a model state has its lists after the degrees");
    first.entries = Array.from({ length: own }, () => reader.number(4));
    if (first.entries.some((count) => count > clients * Math.min(LONGEST_LIST, items))) {
      throw new CodecError("a model state holds lists that are longer than its clients can have");
    }
  } else if (before(p) === 2) first.entries = [];
  const [rows, columns] = sizeAfter(p, first);
  if (isCounted(p)) return decodePairs(p, first, rows, body, reader);
  const made = sums - before(p);
  const isValidated = p.validation > 0 && made > p.iterations + Number(hasNext(p));
  const following = hasNext(p) && made > p.iterations ? p.next_vectors : 0;
  const vectors = p.krylov && made >= p.iterations ? columns * p.iterations : columns;
  const kept_ = p.krylov && made && made < p.iterations ? made * columns : 0;
  const triangle = made > p.iterations && !isValidated && !following ? (rows * (rows + 1)) / 2 : 0;
  exact(body, 4 * (items + 2 + own) + 4 * vectors * (rows + 1) + 16 + 8 * rows * kept_ + 4 * triangle + 4 * following ** 2 + (isValidated ? 12 + 8 * settingsOf(p).length : 0), "a model state");
  const basis = rowsOf(finiteFloats(reader.fixed(4 * rows * vectors)), vectors);
  const values = finiteFloats(reader.fixed(4 * vectors));
  const [captured, change] = new Float64Array(reader.fixed(16).buffer);
  const both = [0, 1].map(() => rowsOf(finiteFloats(reader.fixed(4 * rows * kept_)), kept_));
  const more = kept_ ? beside(both[0], both[1]) : finiteFloats(reader.fixed(4 * triangle));
  const long = [basis, both[0]].some((block) => block.length && transposed(block).some((column) => norm(column) > 1.001));
  if (long || values.some((x) => x < 0) || !Number.isFinite(captured + change)) {
    throw new CodecError("a model state holds a column longer than 1, or a negative singular value");
  }
  const state = { ...first, basis, values, captured, change, more };
  if (following) state.transitions = rowsOf(finiteFloats(reader.fixed(4 * following ** 2)), following);
  return isValidated ? withChoice(p, state, reader) : state;
}

/** The rest of a state of counted pairs. */
function decodePairs(p, first, rows, body, reader) {
  const sums = Math.min(first.sums, lastGram(p)) - before(p);
  const length = sums ? spanOf(p, before(p) + sums, rows)[1] : 0;
  const isValidated = first.sums > lastGram(p);
  exact(body, 4 * (p.items + 2) + 4 * (sums + length) + (isValidated ? 12 + 8 * settingsOf(p).length : 0), "a model state");
  if (!sums) return first;
  const [pairClients, pairs] = [sums, length].map((count) => Array.from({ length: count }, () => reader.number(4)));
  if (pairClients.some((count) => count > first.clients)) throw new CodecError("a model state has Gram sums of more clients than its degrees");
  if (pairs.some((count, at) => count > clientsOf(p, pairClients, rows, at))) {
    throw new CodecError("a model state has more clients with two items than were in the sum");
  }
  const state = { ...first, pairs, pairClients };
  return isValidated ? withChoice(p, state, reader) : state;
}

/** The state with the setting that was chosen, and the sums of what members measured. */
function withChoice(p, state, reader) {
  const setting = reader.number(4);
  const measured = [...new Float64Array(reader.fixed(8 * (1 + settingsOf(p).length)).buffer)];
  if (setting >= settingsOf(p).length || measured.some((x) => !Number.isFinite(x) || x < 0)) {
    throw new CodecError("a model state holds a setting that there is not, or measured values below 0");
  }
  return { ...state, setting, measured };
}
