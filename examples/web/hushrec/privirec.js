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

export async function startBasis(seed, items, columns) {
  const drawn = await normals(seed, "start of the power iteration", items * columns);
  return signedQr(transposed(rowsOf(drawn, items))).basis.map((row) => row.map(round32));
}

/** items: the client's. Returns the block of sum `index`. */
export function contribution(p, state, index, items) {
  const vector = new Array(p.items).fill(0);
  if (index === 1) return vector.map((_, i) => Number(items.includes(i)));
  const a = p.user_exponent;
  const b = p.item_exponent ?? 1 - a;
  const r = vector.map((_, i) => (items.includes(i) && state.degrees[i] ? items.length ** -a * state.degrees[i] ** -b : 0));
  if (kindOf(p, index) === "gram") return r.flatMap((x, i) => r.slice(i).map((y) => x * y));
  const mixed = product([r], state.basis)[0];
  return r.flatMap((x) => mixed.map((y) => x * y));
}

export const empty = () => ({ sums: 0 });

/** seed: of the round. */
export async function absorb(p, state, index, total, contributions, seed) {
  const columns = columnsOf(p);
  if (index === 1) {
    const degrees = total.map((x) => Math.max(0, Math.min(contributions, rint(x))));
    const basis = await startBasis(seed, p.items, columns);
    return { sums: 1, degrees, clients: contributions, basis, values: new Array(columns).fill(0), captured: 0, change: 1, gram: [] };
  }
  if (kindOf(p, index) === "gram") return { ...state, sums: index, gram: total.map(round32) };
  const product_ = rowsOf(total, columns);
  const found = signedQr(product_);
  let [basis, values] = [found.basis, found.diagonal.map(Math.sqrt)];
  const change = norm(values) ? norm(values.map((x, i) => x - state.values[i])) / norm(values) : 0;
  const overlap = product(transposed(state.basis), basis).flat();
  const captured = Math.min(1, overlap.reduce((sum, x) => sum + x * x, 0) / columns);
  const converged = p.tolerance !== null && p.tolerance !== undefined && change <= p.tolerance;
  if (p.rayleigh_ritz && (index === 1 + p.iterations || converged)) [basis, values] = ritz(state.basis, product_);
  return { ...state, sums: index, basis: basis.map((row) => row.map(round32)), values: values.map(round32), captured, change };
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
  return concat(littleEndian(state.sums, 4), uint32s([...state.degrees, state.clients]), floats, figures, toFloats(state.gram));
}

export function decode(name, p, round, body) {
  if (body.length < 4) throw new CodecError("a model state has at least 4 bytes");
  const reader = new Reader(body);
  const [sums, m, columns] = [reader.number(4), p.items, columnsOf(p)];
  if (sums > stepsOf(name, p) || sums > round) throw new CodecError("a model state claims more sums than there are");
  const triangle = sums > 1 + p.iterations ? (m * (m + 1)) / 2 : 0;
  exact(body, 4 + (sums ? 4 * (m + 1) * (1 + columns) + 16 : 0) + 4 * triangle, "a model state");
  if (!sums) return empty();
  const { counts: degrees, clients } = readCounts(reader, m);
  const basis = rowsOf(finiteFloats(reader.fixed(4 * m * columns)), columns);
  const values = finiteFloats(reader.fixed(4 * columns));
  const [captured, change] = new Float64Array(reader.fixed(16).buffer);
  const gram = finiteFloats(reader.fixed(4 * triangle));
  const long = transposed(basis).some((column) => norm(column) > 1.001);
  if (long || values.some((x) => x < 0) || !Number.isFinite(captured + change)) {
    throw new CodecError("a model state holds a column longer than 1, or a negative singular value");
  }
  return { sums, degrees, clients, basis, values, captured, change, gram };
}
