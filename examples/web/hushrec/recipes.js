/** FedMF, CoLR and SCoLR: what follows from the seed, contributions and absorbed sums (docs/wire/recipes.md). */

import { concat, littleEndian, Reader } from "./codec.js";
import { digest } from "./domain.js";
import { CodecError } from "./errors.js";
import { fromFloats, toFloats } from "./plain.js";
import { normals, uniforms } from "./random.js";

/** Round half to even. */
export function rint(x) {
  const down = Math.floor(x);
  return x - down === 0.5 ? down + (down % 2) : Math.round(x);
}

export const roundSeed = (taskSeed, number) => digest("round", taskSeed, number);

/** Rows of the item factors of round 0. */
export async function initialFactors(taskSeed, items, dim) {
  const drawn = (await normals(taskSeed, "initial item factors", items * dim)).map((x) => Math.fround(x / Math.sqrt(dim)));
  return rowsOf(drawn, dim);
}

export const rowsOf = (values, width) =>
  Array.from({ length: values.length / width }, (_, row) => values.slice(row * width, (row + 1) * width));

/** Eigenvalues and vectors (columns) of a small symmetric matrix, by Jacobi's rotations. */
export function eigen(matrix) {
  const n = matrix.length;
  const a = matrix.map((row) => [...row]);
  const v = a.map((_, i) => a.map((__, j) => Number(i === j)));
  for (let sweep = 0; sweep < 60; sweep++) {
    for (let p = 0; p < n; p++) {
      for (let q = p + 1; q < n; q++) {
        if (!a[p][q]) continue;
        const theta = (a[q][q] - a[p][p]) / (2 * a[p][q]);
        const t = (theta < 0 ? -1 : 1) / (Math.abs(theta) + Math.hypot(theta, 1));
        const c = 1 / Math.hypot(t, 1);
        const s = t * c;
        for (let k = 0; k < n; k++) [a[k][p], a[k][q]] = [c * a[k][p] - s * a[k][q], s * a[k][p] + c * a[k][q]];
        for (let k = 0; k < n; k++) [a[p][k], a[q][k]] = [c * a[p][k] - s * a[q][k], s * a[p][k] + c * a[q][k]];
        for (let k = 0; k < n; k++) [v[k][p], v[k][q]] = [c * v[k][p] - s * v[k][q], s * v[k][p] + c * v[k][q]];
      }
    }
  }
  return { values: a.map((row, i) => row[i]), vectors: v };
}

export const product = (a, b) => a.map((row) => b[0].map((_, j) => row.reduce((sum, x, k) => sum + x * b[k][j], 0)));
export const transposed = (a) => a[0].map((_, j) => a.map((row) => row[j]));

/** Projection B of a round: rank rows of dim values. */
export async function projection(seed, rank, dim) {
  const drawn = rowsOf(await normals(seed, "projection", rank * dim), dim);
  const { values, vectors } = eigen(product(drawn, transposed(drawn)));
  const inverse = product(
    vectors.map((row) => row.map((x, j) => x / Math.sqrt(values[j]))),
    transposed(vectors),
  );
  return product(inverse, drawn).map((row) => row.map((x) => Math.fround(x * Math.sqrt(dim / rank))));
}

/** The level of a client of SCoLR in a round, from 1. */
export async function clientLevel(seed, client, levels) {
  const [u] = await uniforms(await digest("scolr level", seed, client), "level", 1);
  return Math.max(1, Math.ceil(u * levels));
}

/** 0, then the rank of each level of SCoLR. */
export function levelEdges({ rank, levels }) {
  const count = levels ?? rank;
  return Array.from({ length: count + 1 }, (_, level) => Math.ceil((level * rank) / count));
}

/** An update {items, rows} with values within `clip`, scaled as a whole if its rows are longer than `row_clip`. */
export function bounded({ items, rows }, { clip, row_clip: rowClip }) {
  const held = rows.map((row) => row.map((x) => Math.max(-clip, Math.min(clip, x))));
  const norm = Math.sqrt(held.flat().reduce((sum, x) => sum + x * x, 0));
  const longest = rowClip * Math.sqrt(items.length);
  const scaled = norm <= longest ? 1 : longest / norm;
  return { items, rows: held.map((row) => row.map((x) => Math.fround(x * scaled))) };
}

/** Values of a contribution's block (fedmf, colr): dense rows, bounded, then touched. update: {items, rows}. */
function denseBlock(update, p, width) {
  const { items, rows } = bounded(update, p);
  const values = new Array(p.items * width).fill(0);
  const touched = new Array(p.items).fill(0);
  items.forEach((item, at) => {
    touched[item] = 1;
    rows[at].forEach((x, j) => (values[item * width + j] = x));
  });
  return { values, touched };
}

/** The blocks that a client contributes. width: values of a row, for scolr the client's own rank. */
export function blocksOf(recipe, p, update, width) {
  const { values, touched } = denseBlock(update, p, width);
  const counts = p.normalise === "touched" ? touched : [];
  if (recipe !== "scolr") return [[...values, ...counts]];
  const columns = transposed(rowsOf(values, width));
  const ranks = levelEdges(p).filter((rank) => rank <= width);
  return ranks.slice(1).map((rank, level) => [...columns.slice(ranks[level], rank).flat(), 1, ...counts]);
}

/** How many of n clients are expected to touch each item, from the task's item counts. */
export function expectedTouches(counts, clients, negatives, n) {
  if (!clients) return counts.map(() => n);
  const mean = counts.reduce((sum, count) => sum + count, 0) / clients;
  const drawn = negatives * mean;
  const chance = drawn / (Math.max(counts.length - mean, 1) + drawn);
  return counts.map((count) => Math.min(count / clients, 1)).map((has) => n * (has + (1 - has) * chance));
}

/** What each item's summed row is divided by. touched: summed touch counts, with normalise "touched". */
export function divisors(p, { counts, clients }, n, touched) {
  const by = p.normalise ?? (p.item_bias === "counts" ? "expected" : "clients");
  const found = by === "touched" ? touched : by === "clients" ? null : expectedTouches(counts, clients, p.negatives ?? 4, n);
  return Array.from({ length: p.items }, (_, i) => Math.max(1, found ? found[i] : n));
}

/** state: {factors: rows, counts: null or numbers, clients}. Returns the state after a sum of counts. */
export const absorbCounts = ({ factors, counts, clients }, total, contributions) => ({
  factors,
  counts: counts.map((count, i) => count + Math.max(0, Math.min(contributions, rint(total[i])))),
  clients: clients + contributions,
});

/** The mean of the clients' rows in a sum of changes: items rows, of rank values or of dim for fedmf. */
function meanRows(recipe, p, state, total, contributions) {
  if (recipe !== "scolr") {
    const width = recipe === "fedmf" ? p.dim : p.rank;
    const by = divisors(p, state, contributions, total.slice(p.items * width));
    return rowsOf(total.slice(0, p.items * width), width).map((row, i) => row.map((x) => x / by[i]));
  }
  const ranks = levelEdges(p);
  const counts = p.normalise === "touched" ? p.items : 0;
  let at = 0;
  const columns = ranks.slice(1).flatMap((rank, level) => {
    const end = at + (rank - ranks[level]) * p.items;
    const block = rowsOf(total.slice(at, end), p.items);
    const by = divisors(p, state, Math.round(total[end]), total.slice(end + 1, end + 1 + counts));
    at = end + 1 + counts;
    return block.map((column) => column.map((x, i) => x / by[i]));
  });
  return transposed(columns);
}

/** The state after a sum of changes. seed: of the round. */
export async function absorb(recipe, p, state, total, contributions, seed) {
  const mean = meanRows(recipe, p, state, total, contributions);
  const change = recipe === "fedmf" ? mean : product(mean, await projection(seed, p.rank, p.dim));
  const moved = (row, i) => row.map((x, j) => Math.fround(x + p.server_rate * change[i][j]));
  return { ...state, factors: state.factors.map(moved) };
}

const uint32s = (values) => concat(...values.map((value) => littleEndian(value, 4)));

export const encodeState = ({ factors, counts, clients }) =>
  concat(toFloats(factors.flat()), uint32s(counts ? [...counts, clients] : []));

/** Item counts and the number of clients, at the reader's place. */
export function readCounts(reader, items) {
  const counts = Array.from({ length: items }, () => reader.number(4));
  const clients = reader.number(4);
  if (counts.some((count) => count > clients)) throw new CodecError("a model state counts an item for more clients than there are");
  return { counts, clients };
}

export function decodeState(body, items, dim, counted) {
  if (body.length !== 4 * items * dim + (counted ? 4 * (items + 1) : 0)) throw new CodecError("a model state of another length");
  const factors = fromFloats(body.slice(0, 4 * items * dim));
  if (!factors.every(Number.isFinite)) throw new CodecError("a model state holds values that are not finite");
  const found = counted ? readCounts(new Reader(body.slice(4 * items * dim)), items) : { counts: null, clients: 0 };
  return { factors: rowsOf(factors, dim), ...found };
}
