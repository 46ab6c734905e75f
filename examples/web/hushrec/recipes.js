/** FedMF, CoLR and SCoLR: what follows from the seed, contributions and absorbed sums (docs/wire/recipes.md). */

import { concat, littleEndian, Reader } from "./codec.js";
import { digest } from "./domain.js";
import { CodecError } from "./errors.js";
import { fromFloats, toFloats } from "./plain.js";
import { normals, permutation, uniforms } from "./random.js";

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

/** The columns of A that a client of SCoLR trains. */
export async function clientColumns(seed, client, rank) {
  const own = await digest("scolr columns", seed, client);
  const [u] = await uniforms(own, "local rank", 1);
  return (await permutation(own, "columns", rank)).slice(0, Math.ceil(u * rank)).sort((a, b) => a - b);
}

/** Values of a contribution's block (fedmf, colr): dense rows, clipped, then touched. update: {items, rows}. */
export function denseBlock({ items, rows }, count, width, clip) {
  const values = new Array(count * width).fill(0);
  const touched = new Array(count).fill(0);
  items.forEach((item, at) => {
    touched[item] = 1;
    rows[at].forEach((x, j) => (values[item * width + j] = Math.max(-clip, Math.min(clip, x))));
  });
  return { values, touched };
}

/** The blocks that a client contributes; columns: its own, for scolr. */
export function blocksOf(recipe, update, count, width, clip) {
  const { values, touched } = denseBlock(update, count, width, clip);
  if (recipe !== "scolr") return [[...values, ...touched]];
  return [...transposed(rowsOf(values, width)), touched];
}

/** state: {factors: rows, counts: null or numbers}. Returns the state after a sum of counts. */
export const absorbCounts = ({ factors, counts }, total, contributions) => ({
  factors,
  counts: counts.map((count, i) => count + Math.max(0, Math.min(contributions, Math.round(total[i])))),
});

/** The state after a sum of changes. width: rank, or dim for fedmf. */
export async function absorb(recipe, { factors, counts }, total, seed, width, rate = 1) {
  const items = factors.length;
  const dim = factors[0].length;
  let mean;
  if (recipe === "scolr") {
    mean = factors.map((_, i) =>
      Array.from({ length: width }, (__, c) => total[c * items + i] / Math.max(1, total[(width + c) * items + i])),
    );
  } else {
    const touched = total.slice(items * width);
    mean = rowsOf(total.slice(0, items * width), width).map((row, i) => row.map((x) => x / Math.max(1, touched[i])));
  }
  const change = recipe === "fedmf" ? mean : product(mean, await projection(seed, width, dim));
  return { factors: factors.map((row, i) => row.map((x, j) => Math.fround(x + rate * change[i][j]))), counts };
}

export const encodeState = ({ factors, counts }) =>
  concat(toFloats(factors.flat()), ...(counts ?? []).map((count) => littleEndian(count, 4)));

export function decodeState(body, items, dim, counted) {
  if (body.length !== 4 * items * (dim + Number(counted))) throw new CodecError("a model state of another length");
  const factors = fromFloats(body.slice(0, 4 * items * dim));
  if (!factors.every(Number.isFinite)) throw new CodecError("a model state holds values that are not finite");
  const reader = new Reader(body.slice(4 * items * dim));
  const counts = counted ? Array.from({ length: items }, () => reader.number(4)) : null;
  return { factors: rowsOf(factors, dim), counts };
}
