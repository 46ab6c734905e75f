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
const stepsOf = (name, p) => 1 + p.iterations + Number(name === "privirec");
export const kindOf = (p, index) => (index === 1 ? "degrees" : index <= 1 + p.iterations ? "iteration" : "gram");

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

/** lengths: the standard deviation of each row; none: all are equal. */
export async function startBasis(seed, items, columns, lengths) {
  const drawn = await normals(seed, "start of the power iteration", items * columns);
  if (!columns) return Array.from({ length: items }, () => []);
  const rows = transposed(rowsOf(drawn, items)).map((row, i) => (lengths ? row.map((x) => x * lengths[i]) : row));
  return signedQr(rows).basis.map((row) => row.map(round32));
}

const EQUATIONS = 8;
const itemExponent = (p) => p.item_exponent ?? 1 - p.user_exponent;
/** The items that later sums have rows for. */
export const kept = (p, state) => state.degrees.flatMap((d, i) => (d >= p.min_owners ? [i] : []));

/** Rows and columns of the sum after `state`; none before the degrees. */
export function sizeAfter(p, state) {
  if (!state.sums) return [];
  const own = kept(p, state);
  const rows = own.length;
  const entries = (p.min_owners * own.reduce((sum, i) => sum + state.degrees[i], 0)) / Math.max(1, state.clients);
  const whole = p.krylov ? Math.floor(rows / p.iterations) : rows;
  const safe = Math.floor(Math.floor(Math.min(Math.floor(Math.min(rows, state.clients) / EQUATIONS), entries)) / p.iterations);
  return [rows, Math.min(columnsOf(p), p.reveal_gram ? whole : Math.min(whole, safe))];
}

/** items: the client's. Returns the block of sum `index`. */
export function contribution(p, state, index, items) {
  if (index === 1) return Array.from({ length: p.items }, (_, i) => Number(items.includes(i)));
  const rows = kept(p, state);
  const own = rows.filter((i) => items.includes(i)).length;
  const r = rows.map((i) => (items.includes(i) ? own ** -p.user_exponent * state.degrees[i] ** -itemExponent(p) : 0));
  if (kindOf(p, index) === "gram") return r.flatMap((x, i) => r.slice(i).map((y) => x * y));
  const mixed = product([r], state.basis)[0];
  return r.flatMap((x) => mixed.map((y) => x * y));
}

export const empty = () => ({ sums: 0 });

/** seed: of the round. */
export async function absorb(p, state, index, total, contributions, seed) {
  if (index === 1) {
    const degrees = total.map((x) => Math.max(0, Math.min(contributions, rint(x))));
    const first = { sums: 1, degrees, clients: contributions };
    const [rows, columns] = sizeAfter(p, first);
    const lengths = p.krylov ? kept(p, first).map((i) => degrees[i] ** (0.5 - itemExponent(p))) : null;
    const basis = await startBasis(seed, rows, columns, lengths);
    return { ...first, basis, values: new Array(columns).fill(0), captured: 0, change: 1, more: [] };
  }
  if (kindOf(p, index) === "gram") return { ...state, sums: index, more: total.map(round32) };
  const columns = sizeAfter(p, state)[1];
  const product_ = rowsOf(total, columns);
  const found = signedQr(product_);
  let [basis, values] = [found.basis, found.diagonal.map(Math.sqrt)];
  const change = norm(values) ? norm(values.map((x, i) => x - state.values[i])) / norm(values) : 0;
  if (p.krylov) return withMoreDirections(p, state, index, product_, basis, values, change);
  const captured = overlap(state.basis, basis);
  const converged = p.tolerance !== null && p.tolerance !== undefined && change <= p.tolerance;
  if (p.rayleigh_ritz && (index === 1 + p.iterations || converged)) [basis, values] = ritz(state.basis, product_);
  return { ...state, sums: index, basis: rounded(basis), values: values.map(round32), captured, change };
}

const rounded = (rows) => rows.map((row) => row.map(round32));
const beside = (left, right) => (left.length ? left.map((row, i) => [...row, ...right[i]]) : right);
const overlap = (before, after) =>
  Math.min(1, product(transposed(before), after).flat().reduce((sum, x) => sum + x * x, 0) / after[0].length);

/** The next Q of a block Krylov space, or the model after the last iteration. `more` holds all Q and all Y so far. */
function withMoreDirections(p, state, index, product_, found, values, change) {
  const half = state.more.length ? state.more[0].length / 2 : 0;
  const asked = beside(state.more.map((row) => row.slice(0, half)), state.basis);
  const products = beside(state.more.map((row) => row.slice(half)), product_);
  if (index < 1 + p.iterations) {
    const captured = overlap(state.basis, found);
    const more = beside(rounded(asked), rounded(products));
    return { ...state, sums: index, basis: rounded(outside(asked, found)), values: values.map(round32), captured, change, more };
  }
  const [basis, lengths] = nystroem(asked, products);
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

/** Vectors and singular values of P ~ Y (Q^T Y)^+ Y^T, largest first; zeros for directions that are rounding. */
function nystroem(asked, products) {
  const small = product(transposed(asked), products);
  const { values, vectors } = eigen(small.map((row, i) => row.map((x, j) => (x + small[j][i]) / 2)));
  const largest = Math.max(...values, 0);
  const found = values.flatMap((x, i) => (x > 1e-6 * largest ? [i] : []));
  const factor = product(products, vectors.map((row) => found.map((i) => row[i] / Math.sqrt(values[i]))));
  const inner = eigen(product(transposed(factor), factor));
  const order = inner.values.map((_, i) => i).sort((x, y) => inner.values[y] - inner.values[x]);
  const columns = order.map((i) => {
    const column = product(factor, inner.vectors.map((row) => [row[i]])).flat();
    const peak = column.reduce((best, x) => (Math.abs(x) > Math.abs(best) ? x : best), 0);
    return column.map((x) => (x * Math.sign(peak || 1)) / Math.sqrt(inner.values[i]));
  });
  const lengths = order.map((i) => Math.sqrt(inner.values[i]));
  while (lengths.length < asked[0].length) {
    columns.push(new Array(asked.length).fill(0));
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
  const figures = new Uint8Array(new Float64Array([state.captured, state.change]).buffer);
  const floats = toFloats([...state.basis.flat(), ...state.values]);
  const half = Array.isArray(state.more[0]) ? state.more[0].length / 2 : 0;
  const parts = half ? [(row) => row.slice(0, half), (row) => row.slice(half)].flatMap((part) => state.more.flatMap(part)) : state.more;
  return concat(littleEndian(state.sums, 4), uint32s([...state.degrees, state.clients]), floats, figures, toFloats(parts));
}

export function decode(name, p, round, body) {
  if (body.length < 4) throw new CodecError("a model state has at least 4 bytes");
  const reader = new Reader(body);
  const [sums, items] = [reader.number(4), p.items];
  if (sums > stepsOf(name, p) || sums > round) throw new CodecError("a model state claims more sums than there are");
  if (!sums) return exact(body, 4, "a model state") && empty();
  if (body.length < 4 * (items + 2)) throw new CodecError("a model state has its item degrees first");
  const { counts: degrees, clients } = readCounts(reader, items);
  const [rows, columns] = sizeAfter(p, { sums, degrees, clients });
  const made = sums - 1;
  const vectors = p.krylov && made === p.iterations ? columns * p.iterations : columns;
  const kept_ = p.krylov && made && made < p.iterations ? made * columns : 0;
  const triangle = made > p.iterations ? (rows * (rows + 1)) / 2 : 0;
  exact(body, 4 * (items + 2) + 4 * vectors * (rows + 1) + 16 + 8 * rows * kept_ + 4 * triangle, "a model state");
  const basis = rowsOf(finiteFloats(reader.fixed(4 * rows * vectors)), vectors);
  const values = finiteFloats(reader.fixed(4 * vectors));
  const [captured, change] = new Float64Array(reader.fixed(16).buffer);
  const both = [0, 1].map(() => rowsOf(finiteFloats(reader.fixed(4 * rows * kept_)), kept_));
  const more = kept_ ? beside(both[0], both[1]) : finiteFloats(reader.fixed(4 * triangle));
  const long = [basis, both[0]].some((block) => block.length && transposed(block).some((column) => norm(column) > 1.001));
  if (long || values.some((x) => x < 0) || !Number.isFinite(captured + change)) {
    throw new CodecError("a model state holds a column longer than 1, or a negative singular value");
  }
  return { sums, degrees, clients, basis, values, captured, change, more };
}
